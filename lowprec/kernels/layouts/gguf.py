"""Blocks of GGUF files, byte for byte.

The bytes are those of ggml's `block_*` structures (llama.cpp, ggml-common.h) as gguf 0.19.0 reads
them (gguf/quants.py). Every one is a sequence of *planes*: equally wide bit fields of consecutive
codes, several to a byte. Only the 6-bit scales of Q4_K and Q5_K are packed otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from lowprec.errors import unknown
from lowprec.kernels.codec import check_codes, codes_of, store_codes, values_of
from lowprec.kernels.layouts.common import (
    qtensor,
    require_bytes,
    require_rank,
    require_shipped,
    require_whole,
)
from lowprec.kernels.qtensor import QTensor
from lowprec.spec import load_format
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import CodebookFormat, Format


@dataclass(frozen=True)
class Plane:
    """Bits `low` to ``low + width - 1`` of each code of the parts, 8 / width codes to a byte.

    parts: fields of a `QTensor`, their codes after each other. The bytes come in runs of `lanes`;
    run r holds the codes from ``r * lanes * 8 / width`` on, the first `lanes` of them in bits 0 to
    width - 1 of its bytes, the next in the next bits.
    """

    parts: tuple[str, ...]
    low: int
    width: int
    lanes: int

    def bytes_of(self, codes: Tensor) -> Tensor:
        fields = (codes >> self.low) & ((1 << self.width) - 1)
        fields = fields.reshape(len(codes), -1, 8 // self.width, self.lanes)
        each = (fields[:, :, i] << (i * self.width) for i in range(8 // self.width))
        return reduce(torch.bitwise_or, each).flatten(1).to(torch.uint8)

    def codes_of(self, data: Tensor) -> Tensor:
        runs = data.reshape(len(data), -1, self.lanes)
        runs = runs.int() if self.low + self.width > 8 else runs
        each = [(runs >> shift) & ((1 << self.width) - 1) for shift in range(0, 8, self.width)]
        return torch.stack(each, 2).flatten(1) << self.low

    def size(self, codes: int) -> int:
        return codes * self.width // 8


@dataclass(frozen=True)
class SixBits:
    """Eight 6-bit scales s and eight offsets m in 12 bytes: s0..s3 and m0..m3, each with the two
    high bits of s4..s7 and m4..m7 above it, then the low four bits of these, s in the low nibble.
    """

    parts: tuple[str, ...] = ("scales", "offset")

    def bytes_of(self, codes: Tensor) -> Tensor:
        s0, s4, m0, m4 = codes.split(4, 1)
        low = (s4 & 0xF) | ((m4 & 0xF) << 4)
        return torch.cat([s0 | (s4 >> 4 << 6), m0 | (m4 >> 4 << 6), low], 1)

    def codes_of(self, data: Tensor) -> Tensor:
        s, m, low = data.split(4, 1)
        s4, m4 = (low & 0xF) | (s >> 6 << 4), (low >> 4) | (m >> 6 << 4)
        return torch.cat([s & 0x3F, s4, m & 0x3F, m4], 1)

    def size(self, codes: int) -> int:
        return codes * 6 // 8


@dataclass(frozen=True)
class Layout:
    """size: elements of a super-block. flip: parts that are stored with the sign bit inverted,
    in other words plus half their range (offset: negated, ggml adds it)."""

    size: int
    planes: tuple[Plane | SixBits, ...]
    flip: tuple[str, ...] = ()


def _plane(part: str, low: int, width: int, lanes: int) -> Plane:
    return Plane((part,), low, width, lanes)


def _word(part: str) -> tuple[Plane, Plane]:
    """A code of 16 bits, its low byte first."""
    return _plane(part, 0, 8, 1), _plane(part, 8, 8, 1)


_NIBBLES = _plane("codes", 0, 4, 16)
_FIFTH = _plane("codes", 4, 1, 1)
_D, _M = _word("scales"), _word("offset")
_OUTER, _OUTER_OFFSET = _word("outer_scale"), _word("outer_offset")
_SIX_BITS = SixBits()
LAYOUTS = {
    "gguf_q4_0": Layout(32, (*_D, _NIBBLES), flip=("codes",)),
    "gguf_q4_1": Layout(32, (*_D, *_M, _NIBBLES), flip=("offset",)),
    "gguf_q5_0": Layout(32, (*_D, _FIFTH, _NIBBLES), flip=("codes",)),
    "gguf_q5_1": Layout(32, (*_D, *_M, _FIFTH, _NIBBLES), flip=("offset",)),
    "gguf_q8_0": Layout(32, (*_D, _plane("codes", 0, 8, 1))),
    "gguf_iq4_nl": Layout(32, (*_D, _NIBBLES)),
    "mxfp4": Layout(32, (_plane("scales", 0, 8, 1), _NIBBLES)),
    "gguf_q2_k": Layout(
        256,
        (Plane(("scales", "offset"), 0, 4, 16), _plane("codes", 0, 2, 32), *_OUTER, *_OUTER_OFFSET),
    ),
    "gguf_q3_k": Layout(
        256,
        (
            _plane("codes", 2, 1, 32),
            _plane("codes", 0, 2, 32),
            _plane("scales", 0, 4, 8),
            _plane("scales", 4, 2, 4),
            *_OUTER,
        ),
        flip=("codes", "scales"),
    ),
    "gguf_q4_k": Layout(256, (*_OUTER, *_OUTER_OFFSET, _SIX_BITS, _plane("codes", 0, 4, 32))),
    "gguf_q5_k": Layout(
        256,
        (
            *_OUTER,
            *_OUTER_OFFSET,
            _SIX_BITS,
            _plane("codes", 4, 1, 32),
            _plane("codes", 0, 4, 32),
        ),
    ),
    "gguf_q6_k": Layout(
        256,
        (
            _plane("codes", 0, 4, 64),
            _plane("codes", 4, 2, 32),
            _plane("scales", 0, 8, 1),
            *_OUTER,
        ),
        flip=("codes",),
    ),
    "gguf_iq4_xs": Layout(
        256,
        (*_OUTER, _plane("scales", 4, 2, 1), _plane("scales", 0, 4, 1), _NIBBLES),
        flip=("scales",),
    ),
    "gguf_tq2_0": Layout(256, (_plane("codes", 0, 2, 32), *_D)),
}


def to_gguf(q: QTensor) -> Tensor:
    """`q` as the rows of a GGUF tensor: uint8 of shape (..., bytes of a row).

    The format is one of `LAYOUTS`, by name; blocks run along the last axis, in whole super-blocks
    (else LowprecError). An outer scale that is NaN becomes float16's quiet NaN.
    """
    fmt = q.quantizer.format
    layout = _layout(fmt.name)
    require_shipped(q, f"GGUF {fmt.name}", fmt.name)
    require_whole(q.shape[-1], layout.size, f"GGUF {fmt.name}")
    parts = {}
    for part, scalar, count in _parts(fmt, layout):
        codes = getattr(q, part)
        if part.startswith("outer"):
            codes = codes_of(codes, scalar)
        codes = codes if codes.dtype == torch.uint8 else codes.int()
        parts[part] = codes.reshape(-1, count) ^ _flip(layout, part, scalar)
    rows = [p.bytes_of(torch.cat([parts[name] for name in p.parts], 1)) for p in layout.planes]
    data = torch.cat(rows, 1)
    return data.reshape(*q.shape[:-1], q.shape[-1] // layout.size * data.shape[1])


def from_gguf(data: Tensor, name: str, shape: tuple[int, ...]) -> QTensor:
    """The rows of a GGUF tensor of `shape` as codes of the format `name`, one of `LAYOUTS`.

    data: uint8 of shape (..., bytes of a row), as `to_gguf` gives it (else LowprecError). What
    ggml makes of it is `dequantize`, but for three things: its MXFP4 has no -0 and reads scale
    code 255, a NaN, as 2^128; its TQ2_0 reads code 3, here an error, as the value 2.
    """
    layout = _layout(name)
    fmt = load_format(name)
    require_rank(shape, 1, f"GGUF {name}")
    require_whole(shape[-1], layout.size, f"GGUF {name}")
    scalars = {part: (scalar, count) for part, scalar, count in _parts(fmt, layout)}
    sizes = [p.size(sum(scalars[part][1] for part in p.parts)) for p in layout.planes]
    require_bytes(data, (*shape[:-1], shape[-1] // layout.size * sum(sizes)), f"GGUF {name}")
    parts: dict[str, Tensor] = {}
    pieces = data.reshape(-1, sum(sizes)).split(sizes, 1)
    for plane, piece in zip(layout.planes, pieces, strict=True):
        codes = plane.codes_of(piece).chunk(len(plane.parts), 1)
        for part, bits in zip(plane.parts, codes, strict=True):
            parts[part] = parts.get(part, 0) | bits
    fields = {}
    for part, (scalar, count) in scalars.items():
        codes = parts[part] ^ _flip(layout, part, scalar)
        codes = codes.reshape(*shape[:-1], shape[-1] // layout.size * count)
        if isinstance(scalar, CodebookFormat):
            check_codes(codes, scalar)
        outer = part.startswith("outer")
        fields[part] = (
            values_of(codes.long(), scalar).float() if outer else store_codes(codes, scalar)
        )
    return qtensor(fmt, **fields)


def _layout(name: str) -> Layout:
    if name not in LAYOUTS:
        raise unknown("GGUF format", name, LAYOUTS)
    return LAYOUTS[name]


def _parts(fmt: BlockFormat, layout: Layout) -> Iterator[tuple[str, Format, int]]:
    """The fields of a `QTensor` that a super-block has: name, format, number of codes."""
    blocks = layout.size // math.prod(fmt.block)
    yield "codes", fmt.element, layout.size
    yield "scales", fmt.scale, blocks
    if fmt.offset:
        yield "offset", fmt.offset, blocks
    if fmt.outer:
        yield "outer_scale", fmt.outer.scale, 1
    if fmt.outer and fmt.offset:
        yield "outer_offset", fmt.outer.scale, 1


def _flip(layout: Layout, part: str, scalar: Format) -> int:
    return 1 << (scalar.bits - 1) if part in layout.flip else 0
