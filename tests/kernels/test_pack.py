"""Dense bits against Python's integers, and packed tensors against their own formats."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lowprec.errors import LowprecError
from lowprec.kernels import pack as module
from lowprec.kernels.pack import pack, unpack

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
    packed = pack(tensor(codes, bits), bits)
    assert packed.dtype == torch.uint8
    assert bytes(packed.tolist()) == stream(codes, bits)
    back = unpack(packed, bits, len(codes))
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
    packed = pack(codes, bits)
    assert bytes(packed.tolist()) == stream(codes.tolist(), bits)
    assert integers(unpack(packed, bits, 333)) == codes.tolist()


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64, torch.uint16])
def test_any_integer_dtype_and_any_layout(dtype):
    codes = torch.arange(60).reshape(3, 4, 5).to(dtype)
    assert torch.equal(pack(codes, 6), pack(codes.long().reshape(-1), 6))
    assert torch.equal(pack(codes.mT, 6), pack(codes.mT.contiguous(), 6))
    assert torch.equal(pack(codes[:1].expand(7, 4, 5), 6), pack(codes[0].repeat(7, 1), 6))


def test_the_first_fp4_code_is_the_low_nibble():
    assert pack(torch.tensor([0x1, 0x2, 0xF], dtype=torch.uint8), 4).tolist() == [0x21, 0x0F]


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
        pack(codes, bits)


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
        unpack(torch.tensor(packed, dtype=torch.uint8), bits, count)


def test_packed_bits_are_bytes():
    with pytest.raises(LowprecError, match=r"torch.int64"):
        unpack(torch.tensor([1]), 8, 1)
