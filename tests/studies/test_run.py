from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lowprec.errors import LowprecError
from lowprec.studies import StudyResult, study
from lowprec.studies.summary import rows


def cells(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "cells").iterdir()}


@pytest.fixture
def copy(undisturbed: StudyResult, tmp_path: Path) -> Path:
    return shutil.copytree(undisturbed.folder, tmp_path / "out")


def test_the_records_say_what_was_measured(undisturbed: StudyResult) -> None:
    accuracy = [r for r in undisturbed.records if r.kind == "accuracy"]
    throughput = [r for r in undisturbed.records if r.kind == "throughput"]
    assert (len(accuracy), len(throughput)) == (4, 8)
    exact, mxfp8, nvfp4, weights = accuracy
    # Plain casts to float32 change nothing at all: the wrapped model is the model.
    assert exact.metrics["kl"].value == 0
    assert exact.metrics["dnll"].value == 0
    assert exact.metrics["top1"].value == 1
    assert 0 < mxfp8.metrics["kl"].value < nvfp4.metrics["kl"].value
    assert weights.metrics["kl"].value > 0
    assert all(r.metrics["dnll"].se is not None for r in accuracy)
    assert len(mxfp8.details["layers"]) == 14
    assert all(25 < layer["weight_db"] < 40 for layer in mxfp8.details["layers"])
    assert all(layer["activation_db"] is None for layer in weights.details["layers"])
    assert all(math.isinf(layer["weight_db"]) for layer in exact.details["layers"])
    assert sum(row["share_of_flops"] for row in mxfp8.details["coverage"]) == pytest.approx(1)
    assert all(len(r.metrics) == 2 for r in throughput)
    # What stays in memory is what tables and charts show.
    for candidate, record in zip(undisturbed.report.candidates, accuracy, strict=True):
        assert candidate.record is not None
        assert candidate.record.metrics == record.metrics
        assert "operands" in record.details
        assert "operands" not in candidate.record.details


def test_again_computes_nothing_and_says_the_same(
    undisturbed: StudyResult, tiny: Path, copy: Path
) -> None:
    again = study(tiny, copy)
    assert again.computed == 0
    assert again.records == undisturbed.records
    assert cells(copy) == cells(undisturbed.folder)
    assert again.page.read_bytes() == undisturbed.page.read_bytes()


@pytest.mark.usefixtures("no_page")
def test_a_fresh_run_gives_the_same_bytes(
    undisturbed: StudyResult, tiny: Path, tmp_path: Path
) -> None:
    fresh = study(tiny, tmp_path / "out")
    assert fresh.computed == len(fresh.records)
    assert cells(fresh.folder) == cells(undisturbed.folder)


@pytest.mark.usefixtures("no_page")
def test_an_edit_computes_only_what_changed(tiny: Path, copy: Path) -> None:
    text = tiny.read_text()
    edited = tiny.with_name("edited.toml")
    # Another format for one recipe, another name for a second: 1 accuracy and 2 throughput cells.
    edited.write_text(text.replace("mxfp8_e4m3", "mxfp8_e5m2").replace("mxfp4 weights", "renamed"))
    assert study(edited, copy).computed == 3
    # A machine more: four recipes on it, no accuracy.
    edited.write_text(text.replace('"h100_sxm"', '"h100_sxm", "mi355x"'))
    assert study(edited, copy).computed == 4
    # Another seed: all accuracy cells, for a stochastic rounding would change.
    edited.write_text(text.replace("seed = 1", "seed = 2"))
    assert study(edited, copy).computed == 4


@pytest.mark.usefixtures("no_page")
def test_a_damaged_cell_is_reported_and_computed_anew(
    undisturbed: StudyResult, tiny: Path, copy: Path
) -> None:
    victims = sorted((copy / "cells").iterdir())[:3]
    victims[0].write_bytes(victims[0].read_bytes()[:-20])
    victims[1].write_bytes(victims[2].read_bytes())
    again = study(tiny, copy)
    assert sorted(again.corrupt) == victims[:2]
    assert again.computed == 2
    assert cells(copy) == cells(undisturbed.folder)


def test_a_pattern_that_matches_nothing_stops_it_early(tiny: Path, tmp_path: Path) -> None:
    bad = tiny.with_name("bad.toml")
    bad.write_text(
        tiny.read_text().replace("lm_head: keep; *: weight=nvfp4", "lm_haed: keep; *: weight=nvfp4")
    )
    with pytest.raises(LowprecError, match=r"recipes\.2 \(nvfp4\): rule 'lm_haed' matches no mod"):
        study(bad, tmp_path / "out")
    assert not list((tmp_path / "out" / "cells").iterdir())


def test_the_closing_table(undisturbed: StudyResult) -> None:
    first, *_ = rows(undisturbed.report)
    assert first["recipe"] == "float32"
    assert first["bits"] == [32, 32]
    assert list(first["tokens_per_second"]) == ["b200", "h100_sxm"]
    json.dumps(first, allow_nan=False)


# Forks a child per round that runs the study, and kills it after the given share of the time
# that a whole run takes; one of its workers too, if it has any, halfway there. The parent never
# computes, so that no thread of torch is forked.
KILLER = """
import os, signal, subprocess, sys, time
from pathlib import Path
import torch, transformers
import lowprec.studies.accuracy
from lowprec.report import page
from lowprec.studies import Executor, study
page.write = lambda _report, folder: folder / "report.html"
file, out, workers, *shares = sys.argv[1:]
def run(out):
    child = os.fork()
    if child == 0:
        study(file, out, executor=Executor(int(workers), 1))
        os._exit(0)
    return child
def workers_of(pid):
    ps = subprocess.run(["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True)
    return [int(line) for line in ps.stdout.split()]
start = time.perf_counter()
assert os.waitpid(run(out + "-timed"), 0)[1] == 0
whole = time.perf_counter() - start
killed = 0
for share in map(float, shares):
    child = run(out)
    time.sleep(share / 2 * whole)
    for worker in workers_of(child)[:1]:
        os.kill(worker, signal.SIGKILL)
    time.sleep(share / 2 * whole)
    os.kill(child, signal.SIGKILL)
    killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
print("killed", killed)
assert os.waitpid(run(out), 0)[1] == 0
"""
TWENTY = [(i * 0.381966) % 1 * 0.9 for i in range(1, 21)]


@pytest.mark.parametrize(
    ("workers", "shares"),
    [
        (1, (0.2, 0.5, 0.8)),
        pytest.param(1, TWENTY, marks=pytest.mark.slow),
        pytest.param(2, TWENTY, marks=pytest.mark.slow),
    ],
)
def test_killed_at_any_moment_it_resumes_to_the_same_records(
    undisturbed: StudyResult, tiny: Path, tmp_path: Path, workers: int, shares: list[float]
) -> None:
    out = str(tmp_path / "out")
    command = [sys.executable, "-c", KILLER, str(tiny), out, str(workers), *map(str, shares)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) >= 1
    assert cells(tmp_path / "out") == cells(undisturbed.folder)
