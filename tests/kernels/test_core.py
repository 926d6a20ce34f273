"""The CPU core against the definition in torch: the same bits, or it leaves the case alone."""

from __future__ import annotations

import ctypes
import math
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lowprec import LowprecError, exact, kernels, quantizer
from lowprec.eval import hard_inputs
from lowprec.eval.conformance.scalars import dtype_for
from lowprec.kernels import core, counter, cpu
from lowprec.kernels.block import scaled
from lowprec.kernels.calls import Call, define, define_in_parts
from lowprec.kernels.codec import codes_of
from lowprec.kernels.plan import plan_of
from lowprec.spec import BlockFormat, CodebookFormat, Format, Quantizer
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
GIVEN = ["nvfp4/fixed=0.03125", "nvfp4/fixed=0.1", "nvfp4/fixed=1e-44", "nvfp4/fixed=3e38"]
HOT += GIVEN[:1]


def check(x: Tensor, q: Quantizer, axis: int = -1, seed: int | None = None) -> None:
    """The core's values and codes against the definition's, where it has them."""
    found = cpu.fake_quantize(x, q, axis, seed=seed)
    if found is not None:
        assert_same_bits(found, define(x, Call(q, axis, seed=seed)), x)
    coded = cpu.quantize(x, q, axis, seed)
    if coded is not None:
        check_codes(x, q, axis, seed, *coded)


def check_codes(
    x: Tensor,
    q: Quantizer,
    axis: int,
    seed: int | None,
    codes: Tensor,
    scale: Tensor | None,
    outer: Tensor | None,
) -> None:
    call = Call(q, axis, seed=seed)
    values = define(x, call)
    if not isinstance(q.format, BlockFormat):
        assert torch.equal(codes.long(), codes_of(values, q.format))
        assert_same_bits(decoded(codes, q.format, None), values, x)
        return
    parts = scaled(x, q, axis, call.bits_for(x))
    assert torch.equal(codes.long(), codes_of(parts.elements, q.format.element))
    assert scale is not None
    assert_same_bits(scale, parts.shared.scale)
    assert (outer is None) == (parts.shared.outer is None)
    whole = scale
    if outer is not None and parts.shared.outer is not None:
        assert_same_bits(outer, parts.shared.outer)
        whole = scale * outer
    assert_same_bits(decoded(codes, q.format.element, whole, axis, q.format.block), values, x)


def decoded(codes: Tensor, fmt: Format, whole: Tensor | None, *rest: Any) -> Tensor:
    table = torch.zeros(256)
    numbers = range(1 << fmt.bits)
    table[: len(numbers)] = torch.tensor([float(exact.value(c, fmt)) for c in numbers])
    found = cpu.dequantize(codes, table, whole, *rest)
    assert found is not None
    return found


def at_random(q: Quantizer, bits: int) -> Quantizer:
    projection = q.projection.model_copy(update={"rounding": "stochastic", "bits": bits})
    return q.model_copy(update={"projection": projection})


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
@pytest.mark.parametrize("q", [*QUANTIZERS, *map(quantizer, GIVEN)], **NAMED)
def test_blocks(q: Quantizer) -> None:
    bits = hard_inputs.random_bits(3 * 4 * 50).view(3, 4, 50)
    normal = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(0))
    for x in (breaking(70), breaking(70)[:14], bits, normal, bits.nan_to_num(0.0)):
        for axis in range(-x.dim(), 0):
            check(x, q, axis)


@CORE
@pytest.mark.parametrize("bits", [1, 8, 31])
@pytest.mark.parametrize("name", [*HOT, "float8_e4m3fn/cast/OvfInf", "float16", "float8_e5m2fnuz"])
def test_stochastic_rounding_from_a_seed(name: str, bits: int) -> None:
    q = at_random(quantizer(name), bits)
    fmt = q.format.element if isinstance(q.format, BlockFormat) else q.format
    edges = hard_inputs.edges(fmt, torch.float32, most=500)
    x = torch.cat([edges, hard_inputs.random_bits(500), torch.randn(2000)])
    x = torch.cat([x, x[: -len(x) % 32]]).view(-1, 32)
    for axis in (-1, -2):
        assert cpu.fake_quantize(x, q, axis, seed=3) is not None
        check(x, q, axis, seed=(5 << 32) + 7)
        check(breaking(70), q, axis, seed=0)


@CORE
@settings(max_examples=60)
@given(q=strategies.quantizers(), x=strategies.tensors(), bits=st.integers(0, 32))
def test_any_format_rule_and_tensor(q: Quantizer, x: Tensor, bits: int) -> None:
    seed = None
    if bits and not isinstance(element_of(q), CodebookFormat):
        q, seed = at_random(q, bits), 1 << bits
    for axis in range(-x.dim(), 0):
        # So many bits are not possible below the smallest value of every format.
        with suppress(LowprecError):
            check(x, q, axis, seed)


def element_of(q: Quantizer) -> Format:
    return q.format.element if isinstance(q.format, BlockFormat) else q.format


@CORE
@pytest.mark.parametrize("name", [*HOT, "mxfp8_e4m3/floor/stochastic:8"])
def test_past_the_caches_and_at_any_address(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large results take other stores than small ones, where their addresses allow that."""
    q = quantizer(name)
    seed = 1 if q.projection.bits else None
    memory = torch.randn(96 * 67 + 64, generator=torch.Generator().manual_seed(0)) * 40
    for limit in (0, 1 << 40):
        monkeypatch.setattr(cpu, "STREAMED", limit)
        monkeypatch.setattr(cpu, "HUGE", limit)
        for shape in ((67, 96), (96, 67), (6432,), (3, 2, 1072), (201, 4, 8)):
            for first in (0, 1, 3, 8):
                x = memory[first : first + math.prod(shape)].view(shape)
                out = torch.zeros(x.numel() + 16)[first : first + x.numel()].view(shape)
                for axis in range(-x.dim(), 0):
                    expected = define(x, Call(q, axis, seed=seed))
                    assert cpu.fake_quantize(x, q, axis, out, seed) is out
                    assert_same_bits(out, expected, x)
                check(x, q, -1, seed)


@CORE
@pytest.mark.parametrize(
    "name", ["mxfp8_e4m3/floor", "mxfp8_e5m2/ceil", "mxfp4/even", "mxint8/floor"]
)
def test_blocks_of_every_exponent(name: str) -> None:
    """Whole strips of one scale, up to the ends of float32, where it cannot move the grid."""
    x = torch.randn(1 << 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = (x * 2.0 ** torch.arange(-152, 129, dtype=torch.float64)[:, None]).float()
    check(x[x.isfinite().all(dim=1)], quantizer(name))
    check(x, quantizer(name))


@CORE
def test_random_bits_at_high_indices() -> None:
    """Elements beyond 2^32, where the keys change, which no test has the memory for."""

    def mix(h: int, key: int = 0) -> int:
        h ^= h >> 17
        h = h * 0xED5AD4BB % 2**32
        h ^= h >> 11
        h = (h + key) * 0xAC4C1B51 % 2**32
        h ^= h >> 15
        h = h * 0x31848BAB % 2**32
        return h ^ h >> 14

    def word(seed: int, i: int) -> int:
        k0 = mix(seed % 2**32 ^ mix(((i >> 32) + 0x9E3779B9) % 2**32))
        k1 = mix(seed >> 32 ^ mix((k0 + 0x85EBCA6B) % 2**32))
        return mix(i % 2**32 ^ k0, k1)

    library, plan = core.load()[0], plan_of(quantizer("int8/cast/stochastic:31"))
    assert library is not None
    assert plan is not None
    x, seed = torch.full((64,), 0.5), (123 << 32) + 456
    for first in (0, 2**32 - 20, 3 * 2**32 - 16, 2**40 + 5):
        y = torch.empty_like(x)
        task = core.Task(*plan.addresses)
        library.lp_quantize(
            ctypes.addressof(task), x.data_ptr(), y.data_ptr(), None, None,
            first, len(x), seed, 0, 0.0, 0, None,
        )  # fmt: skip
        expected = [float(word(seed, first + i) >> 31) for i in range(len(x))]
        assert y.tolist() == expected
    drawn = counter.bits(seed, torch.Size([64]), 32, x.device).tolist()
    assert drawn == [word(seed, i) for i in range(64)]


def test_random_bits_look_random() -> None:
    """Bits are ones half the time, and so are differences of neighbours and of seeds; bytes are
    uniform, also in pairs of neighbours."""
    n = 1 << 20
    one, other = (counter.bits(s, torch.Size([n]), 32, torch.device("cpu")) for s in (1, 2))
    for word in (one, one ^ other, one[1:] ^ one[:-1]):
        for bit in range(32):
            assert abs(float((word >> bit & 1).double().mean()) - 0.5) < 2.5 * n**-0.5
    top = one >> 24
    for number, size in ((top, 256), (one >> 16 & 255, 256), (top[1:] << 8 | top[:-1], 1 << 16)):
        expected = len(number) / size
        counts = torch.bincount(number, minlength=size).double()
        chi_squared = float(((counts - expected) ** 2).sum() / expected)
        assert abs(chi_squared - (size - 1)) < 5 * (2 * size) ** 0.5


@CORE
@pytest.mark.parametrize("bits", range(1, 9))
def test_packed_bits(bits: int) -> None:
    generator = torch.Generator().manual_seed(bits)
    for count in (0, 1, 7, 31, 32, 95, 96, 97, 200, 1001):
        codes = torch.randint(0, 1 << bits, (count,), generator=generator, dtype=torch.uint8)
        stream = sum(code << (i * bits) for i, code in enumerate(codes.tolist()))
        packed = cpu.pack(codes, bits)
        assert packed is not None
        assert bytes(packed.tolist()) == stream.to_bytes(-(-count * bits // 8), "little")
        found = cpu.unpack(packed, bits, count)
        assert found is not None
        assert torch.equal(found, codes)
        assert cpu.unpack(packed, bits, count + 8) is None
    if bits < 8:
        assert cpu.pack(torch.tensor([0] * 50 + [1 << bits], dtype=torch.uint8), bits) is None
        assert cpu.unpack(torch.tensor([0x80], dtype=torch.uint8), bits, 7 // bits) is None


@CORE
def test_decoded_codes() -> None:
    """Sixteen values are looked up in other ways than more; a code beyond the format is noticed."""
    table = torch.randn(256, generator=torch.Generator().manual_seed(0))
    for top, bits in ((16, 4), (64, 6), (256, 8)):
        codes = (torch.arange(3 * 27) * 5 % top).to(torch.uint8)
        for n in (3, 8, 27, 81):
            found = cpu.dequantize(codes[:n], table, bits=bits)
            assert found is not None
            assert torch.equal(found, table[codes[:n].long()])
    for wrong in (0, 7, 8, 26):
        codes = torch.zeros(27, dtype=torch.uint8)
        codes[wrong] = 16
        assert cpu.dequantize(codes, table, bits=4) is None
        assert cpu.dequantize(codes, table, bits=5) is not None


@CORE
def test_codes_in_threads() -> None:
    x = torch.randn(1100, 1001, generator=torch.Generator().manual_seed(0))
    for name in ("mxfp4/floor", "float8_e4m3fn", "float6_e2m3fn"):
        q, results = quantizer(name), []
        bits = element_of(q).bits
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found = cpu.quantize(x, q, -1)
            assert found is not None
            packed = cpu.pack(found[0], bits)
            assert packed is not None
            unpacked = cpu.unpack(packed, bits, x.numel())
            assert unpacked is not None
            assert torch.equal(unpacked.view(x.shape), found[0])
            whole = found[1]
            block = q.format.block if isinstance(q.format, BlockFormat) else "tensor"
            y = decoded(found[0], element_of(q), whole, -1, block)
            results.append((y, packed))
        assert_same_bits(results[0][0], results[1][0])
        assert torch.equal(results[0][1], results[1][1])


@CORE
def test_a_nan_without_a_code_is_left_to_the_definition() -> None:
    x = torch.tensor([[1.0, math.nan] * 16])
    assert cpu.quantize(x, quantizer("int8"), -1) is None
    assert cpu.quantize(x, quantizer("float8_e4m3fn"), -1) is not None
    assert cpu.quantize(x, quantizer("mxint8/floor"), -1) is not None


@CORE
@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86 processors")
@pytest.mark.parametrize("march", ["x86-64", "x86-64-v2", "x86-64-v3"])
def test_the_instructions_change_nothing(march: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = core.opened(core.compiled(march))
    monkeypatch.setattr(cpu, "load", lambda: (library, core.Backend("core", march)))
    test_past_the_caches_and_at_any_address("nvfp4/amax", monkeypatch)
    for name in (*HOT, "float8_e4m3fn/cast/OvfInf", "float8_e5m2fnuz"):
        test_blocks(quantizer(name))
        test_stochastic_rounding_from_a_seed(name, 8)
    for bits in range(1, 9):
        test_packed_bits(bits)


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
    for axis in (-1, -2, -3):
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


@CORE
@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("shape", [(7, 100), (64, 96), (1100, 2048)])
def test_a_known_largest_magnitude(shape: tuple[int, ...], axis: int) -> None:
    """It gives the same values, and one that is not the tensor's changes nothing."""
    x, q = torch.randn(shape, generator=torch.Generator().manual_seed(0)), quantizer("nvfp4/amax")
    assert cpu.needs_largest(x, q, axis)
    for value in (x, x * 3, torch.zeros(shape), x.clone().fill_diagonal_(math.nan)):
        expected = cpu.fake_quantize(value, q, axis)
        assert expected is not None
        for amax in (cpu.largest(value), cpu.largest(x), 0, 1):
            found = cpu.fake_quantize(value, q, axis, amax=amax)
            assert found is not None
            assert_same_bits(found, expected, value)
