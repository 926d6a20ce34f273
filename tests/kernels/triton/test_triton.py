"""The Triton kernels: in the interpreter, through the compiler for a GPU, and without Triton."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, cwd=ROOT,
        env=os.environ | environment,
    )  # fmt: skip


def interpreted(marker: str) -> None:
    suite = str(HERE / "interpreted.py")
    done = run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marker, suite, TRITON_INTERPRET="1"
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_in_the_interpreter() -> None:
    interpreted("not slow")


@pytest.mark.slow
def test_every_format_in_the_interpreter() -> None:
    interpreted("slow")


@pytest.mark.parametrize("arch", ["90", pytest.param("100", marks=pytest.mark.slow)])
def test_compiled_for_a_gpu_arithmetic_is_exact(arch: str) -> None:
    """Without a GPU: the instructions of an H100 (90) and a B200 (100) that it comes to."""
    done = run(str(HERE / "compile_for_gpu.py"), arch, TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stderr[-4000:]


WITHOUT = """
import sys
sys.modules["triton"] = None
sys.path_importer_cache.clear()
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "triton" else find(name, *rest)
import lowprec.kernels.triton
"""


def test_without_triton_it_says_what_is_missing() -> None:
    done = run("-c", WITHOUT)
    assert done.returncode == 1
    assert (
        "LowprecError: lowprec.kernels.triton needs the package triton: pip install" in done.stderr
    )


ON_A_CPU = """
import torch
from lowprec import LowprecError
from lowprec.kernels import triton
try:
    triton.fake_quantize(torch.ones(4), "float8_e4m3fn")
except LowprecError as error:
    assert "expected a GPU's" in str(error) and "TRITON_INTERPRET=1" in str(error)
else:
    raise AssertionError
"""


def test_a_cpu_tensor_is_refused_without_the_interpreter() -> None:
    done = run("-c", ON_A_CPU, TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stderr[-2000:]
