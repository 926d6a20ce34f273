"""The CPU core against the definition in torch: the same bits, or it leaves the case alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from torch import Tensor

from lowprec import kernels, quantizer
from lowprec.kernels import cpu
from lowprec.kernels.ops import define
from lowprec.spec import Format, Quantizer
from tests import strategies
from tests.kernels import oracle
from tests.kernels.oracle import SCALARS, assert_same_bits, dtype_for
from tests.kernels.test_block import QUANTIZERS, breaking

NAMED = {"ids": lambda value: value.name if isinstance(value, Format) else value.spell()}
CORE = pytest.mark.skipif(
    kernels.backend().name != "core", reason=f"no CPU core: {kernels.backend().reason}"
)
HOT = ["mxfp8_e4m3/floor", "mxfp6_e2m3/rceil", "mxfp4/even", "mxint8/ceil", "nvfp4/amax"]
HOT += ["float8_e4m3fn/amax:channel", "int8/amax:channel", "float8_e5m2/amax:tensor"]
HOT += ["float8_e4m3fn", "float4_e2m1fn", "int8"]


def check(x: Tensor, q: Quantizer, axis: int = -1) -> None:
    found = cpu.fake_quantize(x, q, axis)
    if found is not None:
        assert_same_bits(found, define(x, q, axis, None), x)


@CORE
@pytest.mark.parametrize("name", HOT)
def test_the_hot_cases_are_covered(name: str) -> None:
    x = torch.randn(4, 64)
    assert cpu.fake_quantize(x, quantizer(name), -1) is not None
    assert cpu.fake_quantize(x, quantizer(name), 0) is not None


@CORE
@pytest.mark.parametrize("saturation", ["SatFinite", "SatPropagate", "OvfInf"])
@pytest.mark.parametrize("fmt", SCALARS, **NAMED)
def test_casts(fmt: Format, saturation: str) -> None:
    if dtype_for(fmt) == torch.float32:
        every = oracle.every_bfloat16()
        edges = oracle.edges(fmt, torch.float32, most=2000)
        x = torch.cat([every, edges, oracle.random_bits(100_000)])
        check(x, quantizer(f"{fmt.name}/cast/{saturation}"))


@CORE
@pytest.mark.parametrize("q", QUANTIZERS, **NAMED)
def test_blocks(q: Quantizer) -> None:
    bits = oracle.random_bits(3 * 4 * 50).view(3, 4, 50)
    normal = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(0))
    for x in (breaking(70), breaking(70)[:14], bits, normal, bits.nan_to_num(0.0)):
        for axis in range(-x.dim(), 0):
            check(x, q, axis)


@CORE
@given(q=strategies.quantizers(), x=strategies.tensors())
def test_any_format_rule_and_tensor(q: Quantizer, x: Tensor) -> None:
    for axis in range(-x.dim(), 0):
        check(x, q, axis)


@CORE
@pytest.mark.parametrize("name", [HOT[0], HOT[4], HOT[5], HOT[7], HOT[8]])
def test_threads_change_nothing(name: str) -> None:
    x = torch.randn(3, 1100, 330, generator=torch.Generator().manual_seed(0))
    assert x.numel() > 2 * cpu.PER_THREAD
    for axis in (-1, 0, 1):
        torch.set_num_threads(1)
        alone = kernels.fake_quantize(x, name, axis)
        torch.set_num_threads(3)
        assert_same_bits(kernels.fake_quantize(x, name, axis), alone)


@pytest.mark.parametrize("name", HOT)
def test_out(name: str) -> None:
    """out= holds the answer and is returned, also where it is x or overlaps with it."""
    x = breaking(64)[:14]
    answer = kernels.fake_quantize(x, name)
    out = torch.empty_like(x)
    assert kernels.fake_quantize(x, name, out=out) is out
    assert_same_bits(out, answer)
    columns = torch.empty(64, 14).T
    assert_same_bits(kernels.fake_quantize(x, name, out=columns).contiguous(), answer)
    memory = torch.cat([x.flatten(), torch.zeros(64)])
    inside = memory[: x.numel()].view_as(x)
    later = memory[64:].view_as(x)
    assert_same_bits(kernels.fake_quantize(inside, name, out=later).clone(), answer)
    assert_same_bits(kernels.fake_quantize(x, name, out=x), answer)


def _child(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_backend_can_be_asked_and_forced(tmp_path: object) -> None:
    """Without a compiler the definition runs, says so, and gives the same bits."""
    code = (
        "import torch; from lowprec import kernels as k; b = k.backend(); print(b.name, b.reason);"
        "print(k.fake_quantize(torch.linspace(-9, 9, 50), 'nvfp4/amax').tolist())"
    )
    forced = _child(code, LOWPREC_BACKEND="torch")
    lacking = _child(code, PATH="/nowhere", CC="", XDG_CACHE_HOME=str(tmp_path))
    here = kernels.fake_quantize(torch.linspace(-9, 9, 50), "nvfp4/amax").tolist()
    for child, reason in ((forced, "LOWPREC_BACKEND"), (lacking, "compiler")):
        assert child.returncode == 0, child.stderr
        first, second = child.stdout.splitlines()
        assert first.startswith("torch ")
        assert reason in first
        assert second == str(here)
    wrong = _child(code, LOWPREC_BACKEND="fast")
    assert "expected 'core' or 'torch'" in wrong.stderr


@CORE
def test_flush_to_zero_is_noticed() -> None:
    code = (
        "import torch; torch.set_flush_denormal(True);"
        "from lowprec import kernels as k; print(k.backend())"
    )
    child = _child(code)
    assert child.returncode == 0, child.stderr
    assert "torch" in child.stdout
