"""The layers: who may import whom, and that the fast commands start without torch."""

from __future__ import annotations

import ast
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import lowprec

PACKAGE = Path(lowprec.__file__).parent

_DATA = {"errors", "spec"}
_CORE = _DATA | {"exact", "kernels", "perf"}
# Whom each part of lowprec may import, itself aside. exact, kernels and perf are siblings; a
# study writes its report, which reads records and knows nothing of studies.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "spec": {"errors"},
    "exact": _DATA,
    "kernels": _DATA,
    "perf": _DATA,
    "rtl": _DATA | {"exact"},
    "nn": _CORE,
    "checkpoints": _CORE | {"nn"},
    "eval": _CORE | {"nn", "checkpoints"},
    "report": _DATA | {"exact", "perf"},
    "proposal": _DATA | {"exact", "perf", "report", "rtl"},
    "studies": _CORE | {"nn", "eval", "report"},
    "cli": _CORE | {"rtl", "nn", "eval", "studies", "report", "proposal"},
    "__init__": _CORE | {"nn", "checkpoints", "eval", "studies", "report", "proposal"},
}
# What the two outermost parts may import before a function of theirs runs.
MAY_IMPORT_EAGERLY = {"cli": _DATA, "__init__": _DATA}
# The whole of what the innermost parts may use besides the standard library.
LIBRARIES: dict[str, set[str]] = {
    "errors": set(),
    "spec": {"pydantic", "pydantic_core"},
    "exact": set(),
    # All but pydantic inside the functions that need them.
    "perf": {"pydantic", "pydantic_core", "simpy", "numpy", "scipy", "pyarrow"},
}
TORCH_IN = {"kernels", "nn", "checkpoints", "eval", "studies"}
MAY_USE_TRANSFORMERS = re.compile(r"(nn|nn/attention|checkpoints)/hf\w*\.py")


@dataclass(frozen=True)
class Import:
    """One imported module, by its absolute name; `eager` if it happens when the file loads."""

    module: str
    line: int
    eager: bool


def _nodes(node: ast.AST, eager: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        yield child, eager
        lazy = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        types_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield from _nodes(child, eager and not lazy and not types_only)


def _modules(node: ast.AST, package: tuple[str, ...]) -> list[str]:
    """The absolute names of what one statement or call imports."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            base = package[: len(package) + 1 - level] if level else ()
            source = ".".join([*base, *([module] if module else [])])
            return [f"{source}.{alias.name}" for alias in names]
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[argument, *_]) if (
            name in {"import_module", "__import__"}
        ):
            constant = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            return [argument.value if constant else "<computed>"]
    return []


def imports(path: Path, root: Path) -> list[Import]:
    """Everything that `path`, a file of the package in `root`, imports anywhere in it."""
    package = path.relative_to(root.parent).parts[:-1]
    return [
        Import(module, node.lineno, eager)
        for node, eager in _nodes(ast.parse(path.read_text()))
        for module in _modules(node, package)
    ]


def _fault(part: str, file: str, found: Import) -> str | None:
    """What is wrong with an import in `file`, which belongs to `part`, or None."""
    top, _, rest = found.module.partition(".")
    if found.module == "<computed>":
        return None if part == "__init__" else "a computed import, which no test can check"
    if top == "lowprec":
        target = rest.split(".")[0]
        allowed = MAY_IMPORT_EAGERLY.get(part) if found.eager else None
        allowed = MAY_IMPORT[part] if allowed is None else allowed
        ok = target in allowed | {part, "__version__"}
        return None if ok else f"{part} may not import lowprec.{target}"
    if top in sys.stdlib_module_names:
        return None
    if part in LIBRARIES and top not in LIBRARIES[part]:
        return f"{part} may not use {top}"
    if top == "torch" and part not in TORCH_IN and (found.eager or part != "cli"):
        return f"{part} may not use torch"
    if top == "transformers" and part != "eval" and not MAY_USE_TRANSFORMERS.fullmatch(file):
        return "only eval and the hf*.py of nn and checkpoints may use transformers"
    return None


def faults(root: Path) -> list[str]:
    """Each breach of the layers in the package in `root`, as file:line: what is wrong."""
    found = []
    for path in sorted(root.rglob("*.py")):
        file = path.relative_to(root).as_posix()
        part = file.split("/")[0].removesuffix(".py")
        if part not in MAY_IMPORT:
            found.append(f"{file}:1: {part} has no place among the layers")
            continue
        for each in imports(path, root):
            fault = _fault(part, file, each)
            if fault:
                found.append(f"{file}:{each.line}: {fault}")
    return found


def test_every_import_keeps_the_layers() -> None:
    assert faults(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "source", "fault"),
    [
        ("errors.py", "import pydantic", "errors may not use pydantic"),
        ("spec/a.py", "import numpy", "spec may not use numpy"),
        ("spec/a.py", "from lowprec import exact", "spec may not import lowprec.exact"),
        ("spec/a.py", "from .. import kernels", "spec may not import lowprec.kernels"),
        ("spec/b/a.py", "from ... import kernels", "spec may not import lowprec.kernels"),
        ("spec/__init__.py", "from ..exact import x", "spec may not import lowprec.exact"),
        ("exact/a.py", "import torch", "exact may not use torch"),
        (
            "exact/a.py",
            "def f():\n  import lowprec.kernels",
            "exact may not import lowprec.kernels",
        ),
        ("exact/a.py", "import lowprec", "exact may not import lowprec."),
        (
            "kernels/a.py",
            "from lowprec.exact.values import x",
            "kernels may not import lowprec.exact",
        ),
        (
            "kernels/a.py",
            "import transformers",
            "only eval and the hf*.py of nn and checkpoints may use transformers",
        ),
        ("perf/a.py", "from lowprec.kernels import x", "perf may not import lowprec.kernels"),
        ("perf/a.py", "import_module('torch')", "perf may not use torch"),
        (
            "nn/wrap.py",
            "from transformers import x",
            "only eval and the hf*.py of nn and checkpoints may use transformers",
        ),
        ("nn/a.py", "importlib.import_module('lowprec.eval')", "nn may not import lowprec.eval"),
        ("nn/a.py", "import_module(name)", "a computed import, which no test can check"),
        (
            "checkpoints/a.py",
            "from lowprec.eval import x",
            "checkpoints may not import lowprec.eval",
        ),
        ("eval/a.py", "from ..studies import x", "eval may not import lowprec.studies"),
        ("report/a.py", "from lowprec.eval import x", "report may not import lowprec.eval"),
        ("report/a.py", "def f():\n  import torch.nn", "report may not use torch"),
        ("cli.py", "import torch", "cli may not use torch"),
        ("cli.py", "from lowprec.perf import x", "cli may not import lowprec.perf"),
        ("__init__.py", "from lowprec.nn import wrap", "__init__ may not import lowprec.nn"),
        ("misc.py", "", "misc has no place among the layers"),
    ],
)
def test_a_planted_breach_is_found(tmp_path: Path, file: str, source: str, fault: str) -> None:
    path = tmp_path / "lowprec" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    line = source.count("\n") + 1
    assert faults(tmp_path / "lowprec") == [f"{file}:{line}: {fault}"]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("spec/a.py", "import tomllib\nimport pydantic\nfrom lowprec.errors import LowprecError"),
        ("exact/a.py", "from .values import x\nfrom lowprec.spec.format import Format"),
        ("nn/hf.py", "import torch\nimport transformers"),
        ("checkpoints/hf_gguf.py", "from transformers import x\nfrom lowprec.nn import y"),
        ("cli.py", "import typer\ndef f():\n  import torch\n  from lowprec.nn import wrap"),
        ("__init__.py", "if TYPE_CHECKING:\n  from lowprec.nn import wrap"),
        ("studies/a.py", "from lowprec import __version__\nfrom lowprec.report import write"),
    ],
)
def test_a_lawful_import_is_not(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / "lowprec" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert faults(tmp_path / "lowprec") == []


# Runs its arguments' code, then says on the last line of stderr which heavy modules were loaded.
_PROBE = """
import json, sys
try:
    exec(sys.argv[1])
except SystemExit as stop:
    assert not stop.code, stop.code
print(json.dumps(sorted({"torch", "transformers"} & set(sys.modules))), file=sys.stderr)
"""


def _probe(code: str) -> tuple[list[str], float]:
    """The heavy modules that `code` loads in a fresh interpreter, and its CPU time in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", _PROBE, code]
    # As a user's machine starts it: with the bytecode of the start before.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    child = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert child.returncode == 0, child.stderr
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(child.stderr.splitlines()[-1]), seconds


def _command(*arguments: str) -> str:
    argv = ["lowprec", *arguments]
    return f"sys.argv = {argv!r}; from lowprec.cli import main; main()"


LIGHT = {
    "import lowprec": "import lowprec",
    "import lowprec.spec": "import lowprec.spec",
    "import lowprec.exact": "import lowprec.exact",
    "import lowprec.perf": "import lowprec.perf",
    "import lowprec.report": "import lowprec.report",
    "lowprec --help": _command("--help"),
    "lowprec formats": _command("formats"),
    "lowprec formats mxfp4": _command("formats", "mxfp4"),
    "lowprec perf --help": _command("perf", "--help"),
    "lowprec vectors --help": _command("vectors", "--help"),
    "lowprec verify --help": _command("verify", "--help"),
    "lowprec compare-platforms": _command(
        "compare-platforms", "llama-3.1-8b", "--machine", "b200", "--recipe", "mxfp8"
    ),
    "import lowprec.proposal.verify": "import lowprec.proposal.verify",
    "import lowprec.proposal.vectors": "import lowprec.proposal.vectors",
    "import lowprec.proposal.package": "import lowprec.proposal.package",
    "lowprec propose --help": _command("propose", "--help"),
}


def test_the_probe_sees_what_is_loaded() -> None:
    fake = "import sys, types; sys.modules['torch'] = types.ModuleType('torch')"
    spin = "; import time\nwhile time.process_time() < 0.6: pass"
    modules, seconds = _probe(fake + spin)
    assert modules == ["torch"]
    assert seconds >= 0.6


@pytest.mark.parametrize("name", LIGHT)
def test_light_things_start_fast_and_without_torch(name: str) -> None:
    # The first writes bytecode. What the machine does besides only ever adds time, so one fast
    # start of several is the answer. On a quiet core half of that is enough; the other tests
    # that run at the same time share this one.
    least = float("inf")
    for _ in range(8):
        modules, seconds = _probe(LIGHT[name])
        assert modules == []
        least = min(least, seconds)
        if least < 1.0:
            break
    assert least < 1.0
