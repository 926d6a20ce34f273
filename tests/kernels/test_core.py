"""The CPU core against the definition in torch: the same bits, or it leaves the case alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from torch import Tensor

from lowprec import LowprecError, kernels, quantizer
from lowprec.eval import hard_inputs
from lowprec.eval.conformance import dtype_for
from lowprec.kernels import core, cpu
from lowprec.kernels.ops import Call, define, define_in_parts
from lowprec.spec import Format, Quantizer
from tests import strategies
from tests.kernels.oracle import SCALARS, assert_same_bits
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
        assert_same_bits(found, define(x, Call(q, axis)), x)


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
        every = hard_inputs.every_bfloat16()
        edges = hard_inputs.edges(fmt, torch.float32, most=2000)
        x = torch.cat([every, edges, hard_inputs.random_bits(20_000)])
        check(x, quantizer(f"{fmt.name}/cast/{saturation}"))


@CORE
@pytest.mark.parametrize("q", QUANTIZERS, **NAMED)
def test_blocks(q: Quantizer) -> None:
    bits = hard_inputs.random_bits(3 * 4 * 50).view(3, 4, 50)
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


@pytest.mark.parametrize(
    "name", [HOT[0], HOT[5], HOT[8], "nf4/amax:16", "mxfp4/floor/stochastic:4"]
)
def test_slices_change_nothing(name: str) -> None:
    """Without the core, large tensors are computed in slices."""
    q = quantizer(name)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 131, 330, generator=generator)
    random = torch.randint(0, 16, x.shape, generator=generator) if q.projection.bits else None
    turned, bits = x.transpose(0, 1), None if random is None else random.transpose(0, 1)
    for axis in (-1, 0, 1):
        assert_same_bits(
            define_in_parts(x, Call(q, axis, random)), define(x, Call(q, axis, random))
        )
        expected = define(turned.contiguous(), Call(q, axis, bits))
        assert_same_bits(define_in_parts(turned, Call(q, axis, bits)).contiguous(), expected)


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


def test_the_backend_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWPREC_BACKEND", "torch")
    library, backend = core.load.__wrapped__()
    assert library is None
    assert (backend.name, backend.reason) == ("torch", "LOWPREC_BACKEND=torch")
    monkeypatch.setenv("LOWPREC_BACKEND", "fast")
    with pytest.raises(LowprecError, match="expected 'core' or 'torch'"):
        core.load.__wrapped__()


def test_without_a_compiler_the_definition_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {"PATH": "/nowhere", "CC": "", "XDG_CACHE_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    library, backend = core.load.__wrapped__()
    assert library is None
    assert backend.name == "torch"
    assert "no C compiler" in backend.reason
    monkeypatch.setenv("LOWPREC_BACKEND", "core")
    with pytest.raises(LowprecError, match="no C compiler"):
        core.load.__wrapped__()


@CORE
def test_flush_to_zero_is_noticed() -> None:
    torch.set_flush_denormal(True)
    try:
        library, backend = core.load.__wrapped__()
    finally:
        torch.set_flush_denormal(False)
    assert library is None
    assert "flush-to-zero" in backend.reason


@CORE
def test_the_core_is_compiled_when_the_cache_is_empty(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library, backend = core.load.__wrapped__()
    assert library is not None, backend
    assert len(list(tmp_path.rglob("core-*.so"))) == 1
