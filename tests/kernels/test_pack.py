"""Dense bits against Python's integers, and packed tensors against their own formats."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lowprec as lp
from lowprec.errors import LowprecError
from lowprec.kernels import cpu
from lowprec.kernels import packing as module
from lowprec.kernels.packing import Packed, pack, pack_bits, unpack, unpack_bits
from lowprec.spec import BlockFormat, FloatFormat

UNSIGNED = {8: torch.uint8, 16: torch.uint16, 32: torch.uint32, 64: torch.uint64}


def stream(codes: list[int], bits: int) -> bytes:
    """The definition: the sum of code i times 2^(i * bits), as little-endian bytes."""
    number = sum(code << (i * bits) for i, code in enumerate(codes))
    return number.to_bytes((len(codes) * bits + 7) // 8, "little")


def tensor(codes: list[int], bits: int) -> torch.Tensor:
    wide = [c - (1 << 64) if c >> 63 else c for c in codes]
    wide = torch.tensor(wide, dtype=torch.int64)
    dtype = next(d for size, d in UNSIGNED.items() if bits <= size)
    return wide.view(torch.uint64) if bits > 32 else wide.to(dtype)


def integers(codes: torch.Tensor) -> list[int]:
    return [int(c) for c in codes.tolist()]


def check(codes: list[int], bits: int) -> None:
    packed = pack_bits(tensor(codes, bits), bits)
    assert packed.dtype == torch.uint8
    assert bytes(packed.tolist()) == stream(codes, bits)
    back = unpack_bits(packed, bits, len(codes))
    assert back.dtype == tensor([], bits).dtype
    assert integers(back) == codes


@pytest.mark.parametrize("bits", range(1, 65))
def test_bits_are_those_of_one_great_integer(bits):
    random = Random(bits)
    for count in range(18):
        check([random.getrandbits(bits) for _ in range(count)], bits)
    check([(1 << bits) - 1] * 17, bits)


@given(data=st.data(), bits=st.integers(1, 64))
def test_any_codes_come_back(data, bits):
    check(data.draw(st.lists(st.integers(0, (1 << bits) - 1), max_size=40)), bits)


@pytest.mark.parametrize("bits", [1, 3, 4, 5, 8, 11, 12, 16, 33, 64])
def test_chunks_join(bits, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 16)
    generator = torch.Generator().manual_seed(bits)
    codes = torch.randint(0, 1 << min(bits, 62), (333,), generator=generator)
    packed = pack_bits(codes, bits)
    assert bytes(packed.tolist()) == stream(codes.tolist(), bits)
    assert integers(unpack_bits(packed, bits, 333)) == codes.tolist()


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64, torch.uint16])
def test_any_integer_dtype_and_any_layout(dtype):
    codes = torch.arange(60).reshape(3, 4, 5).to(dtype)
    assert torch.equal(pack_bits(codes, 6), pack_bits(codes.long().reshape(-1), 6))
    assert torch.equal(pack_bits(codes.mT, 6), pack_bits(codes.mT.contiguous(), 6))
    assert torch.equal(pack_bits(codes[:1].expand(7, 4, 5), 6), pack_bits(codes[0].repeat(7, 1), 6))


@pytest.mark.parametrize("bits", [5, 8, 16, 32, 64])
def test_strided_bytes_and_codes(bits):
    codes = tensor(list(range(24)), bits)
    packed = pack_bits(codes, bits)
    spread = torch.stack([packed, packed], 1)[:, 0]
    assert integers(unpack_bits(spread, bits, 24)) == list(range(24))
    assert torch.equal(pack_bits(torch.stack([codes, codes], 1)[:, 0], bits), packed)


def test_a_machine_of_other_byte_order(monkeypatch):
    monkeypatch.setattr(module, "_STREAMS", {})
    for bits in (8, 16, 32, 64):
        check([0, 1, (1 << bits) - 1, (1 << bits) - 2, 1 << (bits - 1)], bits)


def test_the_first_fp4_code_is_the_low_nibble():
    assert pack_bits(torch.tensor([0x1, 0x2, 0xF], dtype=torch.uint8), 4).tolist() == [0x21, 0x0F]


@pytest.mark.parametrize(
    ("codes", "bits", "message"),
    [
        (torch.tensor([16]), 4, "expected 0 to 0xf"),
        (torch.tensor([16], dtype=torch.uint8), 4, "expected 0 to 0xf"),
        (torch.tensor([256]), 8, "expected 0 to 0xff"),
        (torch.tensor([-1]), 4, "expected 0 to 0xf"),
        (torch.tensor([-1], dtype=torch.int8), 8, "expected 0 to 0xff"),
        (torch.tensor([-1]), 63, "expected 0 to 0x7f"),
        (torch.tensor([-1]), 64, "expected 0 to 0xf"),
        (torch.tensor([1.0]), 4, "expected integers"),
        (torch.tensor([True]), 4, "expected integers"),
        (torch.tensor([1]), 0, "expected 1 to 64"),
        (torch.tensor([1]), 65, "expected 1 to 64"),
    ],
)
def test_what_is_no_code_is_refused(codes, bits, message):
    with pytest.raises(LowprecError, match=message):
        pack_bits(codes, bits)


@pytest.mark.parametrize(
    ("packed", "bits", "count", "message"),
    [
        ([1, 2], 4, 5, "5 codes of 4 bits are 3 of torch.uint8"),
        ([1, 2], 4, 2, "2 codes of 4 bits are 1 of torch.uint8"),
        ([0x10], 4, 1, "the last 4 are not zero"),
        ([1], 4, -1, "count=-1"),
        ([1], 0, 1, "expected 1 to 64"),
    ],
)
def test_wrong_sizes_and_stray_bits_are_refused(packed, bits, count, message):
    with pytest.raises(LowprecError, match=message):
        unpack_bits(torch.tensor(packed, dtype=torch.uint8), bits, count)


def test_packed_bits_are_bytes():
    with pytest.raises(LowprecError, match=r"torch.int64"):
        unpack_bits(torch.tensor([1]), 8, 1)


BLOCKS = [name for name in lp.list_formats() if isinstance(lp.format(name), BlockFormat)]


def quantizer(name: str) -> str:
    fmt = lp.format(name)
    if fmt.zero_point or fmt.offset:
        return f"{name}/minmax"
    power = isinstance(fmt.scale, FloatFormat) and fmt.scale.precision == 1 and not fmt.outer
    return f"{name}/floor" if power else f"{name}/amax"


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def tensors(x: lp.QTensor | Packed) -> list[torch.Tensor]:
    """All that it is made of, in the order of its fields."""
    own = [getattr(x, field.name) for field in fields(x)]
    flat = [y for part in own for y in (part if isinstance(part, tuple) else (part,))]
    return [y for y in flat if isinstance(y, torch.Tensor)]


def assert_same(a: lp.QTensor, b: lp.QTensor) -> None:
    assert (a.quantizer, a.axis, a.shape) == (b.quantizer, b.axis, b.shape)
    pairs = list(zip(tensors(a), tensors(b), strict=True))
    assert all(torch.equal(x.double(), y.double()) for x, y in pairs)
    assert a.codes.dtype == b.codes.dtype
    assert a.scales is None or a.scales.dtype == b.scales.dtype


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize(
    ("shape", "axis"), [((256, 512), -1), ((3, 5, 77), -1), ((77, 5), 0), ((0, 32), -1)]
)
def test_a_tensor_comes_back_of_exactly_its_size(name, shape, axis):
    q = lp.quantize(normal(*shape), quantizer(name), axis=axis)
    packed = pack(q)
    assert_same(unpack(packed), q)
    streams = tensors(packed)
    assert all(stream.dtype == torch.uint8 and stream.dim() == 1 for stream in streams)
    assert packed.nbytes == sum(stream.numel() for stream in streams)
    bits = q.quantizer.format.storage_bits_of(shape, axis)
    assert bits <= 8 * packed.nbytes < bits + 8 * len(streams)
    if shape == (256, 512):  # all streams are whole bytes
        assert bits == 8 * packed.nbytes


SCALARS = ["float6_e3m2fn", "int4", "bfloat16", "float32", "ternary"]


@pytest.mark.parametrize("name", SCALARS)
def test_a_scalar_tensor_comes_back(name):
    q = lp.quantize(normal(7, 11), name)
    packed = pack(q)
    assert packed.nbytes == math.ceil(77 * lp.format(name).bits / 8)
    assert_same(unpack(packed), q)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["mxfp4/floor", "nvfp4/amax", "mxfp6_e3m2/floor/stochastic:8"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((256, 512), -1), ((3, 5, 77), -1), ((77, 5), 0), ((96, 24), 0), ((7, 9, 13), 1), ((0, 3), 1)],
)
def test_packed_at_once_in_parts(name, shape, axis, threads, monkeypatch):
    monkeypatch.setattr(cpu, "CODES", 1 << 7)
    monkeypatch.setattr(cpu, "PER_THREAD", 1 << 8)
    x = normal(*shape)
    x.view(-1)[100:101] = torch.nan
    torch.set_num_threads(threads)
    assert_packed_at_once(x, name, axis, 3 if "stochastic" in name else None)


@pytest.mark.parametrize("name", [*map(quantizer, BLOCKS), *SCALARS, "float8_e5m2/amax:tensor"])
def test_packed_at_once(name):
    for shape, axis in (((9, 77), -1), ((64, 8), 0), ((1, 1), -1), ((0, 32), -1)):
        assert_packed_at_once(normal(*shape), name, axis)


def assert_packed_at_once(x, name, axis, random=None):
    once = lp.quantize_packed(x, name, axis, random)
    later = lp.quantize(x, name, axis, random).pack()
    assert all(torch.equal(a, b) for a, b in zip(tensors(once), tensors(later), strict=True))
    for field in ("shape", "axis", "quantizer"):
        assert getattr(once, field) == getattr(later, field)
    empty = [f.name for f in fields(Packed) if getattr(once, f.name) is None]
    assert empty == [f.name for f in fields(Packed) if getattr(later, f.name) is None]


def test_packed_at_once_nan_without_a_code_is_refused():
    with pytest.raises(LowprecError, match="NaN has no code point"):
        lp.quantize_packed(torch.tensor([1.0, torch.nan]), "float4_e2m1fn")


def test_a_packed_tensor_of_another_size_is_refused():
    packed = pack(lp.quantize(normal(4, 64), "nvfp4/amax"))
    with pytest.raises(LowprecError, match="320 codes of 4 bits are 160"):
        unpack(replace(packed, shape=(5, 64)))
    with pytest.raises(LowprecError, match="16 codes of 8 bits are 16"):
        unpack(replace(packed, scales=packed.scales[:-1]))


def test_a_nan_outer_scale_comes_back():
    q = lp.quantize(torch.tensor([1.0, torch.nan]), "nvfp4/amax")
    back = unpack(pack(q))
    assert bool(back.outer_scale.isnan())
    assert torch.equal(back.scales, q.scales)
