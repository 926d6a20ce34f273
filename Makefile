# `make study` and `make test` set everything up themselves, in .venv; a second run starts at once.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python -m
STAMP := $(VENV)/installed
PIP_FLAGS := --quiet --disable-pip-version-check --no-input

.PHONY: study test bench proposal clean
.DELETE_ON_ERROR:

study: $(STAMP)
	$(VENV)/bin/lowprec study evals/studies/smollm2.toml --out runs/smollm2

test: $(STAMP)
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(RUN) pytest --numprocesses logical --dist worksteal

# The worked example, from its records to the package in proposals/fp5_ue5m3/package.
proposal: $(STAMP)
	$(VENV)/bin/lowprec propose proposals/fp5_ue5m3/study --out proposals/fp5_ue5m3/package \
	  --format proposals/fp5_ue5m3/fp5_ue5m3.toml --baseline mxfp8_e4m3

bench: $(STAMP)
	$(VENV)/bin/python benchmarks/kernels.py --peers
	$(VENV)/bin/python benchmarks/models.py
	$(VENV)/bin/python benchmarks/datapaths.py
	$(VENV)/bin/python benchmarks/gpu.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "lowprec needs Python 3.11 or newer, and '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Setting up $(VENV): a minute or two, and a few more where torch has to be downloaded ..."
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@$(RUN) pip install $(PIP_FLAGS) --constraint constraints.txt --editable '.[test]'
	@touch $@
	@echo "Done: $(VENV)/bin/lowprec"
