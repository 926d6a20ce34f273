"""Codes as dense bits: of a tensor, and of everything that a quantized tensor consists of."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import cpu
from lowprec.kernels.calls import Call
from lowprec.kernels.codec import check_codes, codes_of, values_of
from lowprec.kernels.qtensor import QTensor, codes_of_numbers, quantize_tensor
from lowprec.spec.block import Block, BlockFormat
from lowprec.spec.quantizer import Quantizer

# Codes that are widened and shifted at a time; temporaries are that large and no larger.
_CHUNK = 1 << 18
_DTYPES = {8: torch.uint8, 16: torch.uint16, 32: torch.uint32, 64: torch.uint64}
# Those whose memory is the stream already.
_STREAMS = _DTYPES if sys.byteorder == "little" else {}


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Codes as a little-endian stream of bits, uint8 of rank 1.

    Code i, counted in row-major order, takes the bits ``i * bits`` to ``(i + 1) * bits - 1``, its
    lowest first; bit j of the stream is bit ``j % 8`` of byte ``j // 8`` (of two 4-bit codes the
    first is the low nibble). The bits left in the last byte are zero. Codes of 8, 16, 32 or 64 bits
    are such a stream already: theirs shares their memory. LowprecError unless the
    codes are integers of 0 to 2^bits - 1 and bits is 1 to 64.
    """
    _check_bits(bits)
    if codes.dtype.is_floating_point or codes.dtype.is_complex or codes.dtype == torch.bool:
        raise LowprecError(f"codes of {codes.dtype}: expected integers")
    if bits != 8 and codes.numel() and (found := cpu.pack(codes, bits)) is not None:
        return found
    period, width = _period(bits)
    flat = codes.reshape(-1)
    if flat.dtype == _STREAMS.get(bits):
        return flat.contiguous().view(torch.uint8)
    groups = -(-flat.numel() // period)
    packed = torch.empty(groups, width, dtype=torch.uint8, device=codes.device)
    for first, last in _chunks(groups, period):
        part = _checked(flat[first * period : last * period], bits)
        part = F.pad(part, (0, (last - first) * period - part.numel())).view(-1, period)
        for j in range(width):
            packed[first:last, j] = _byte(part, j, bits)
    return packed.view(-1)[: _bytes(flat.numel(), bits)]


def unpack_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    """The `count` codes that `pack_bits` packed, of rank 1, in the smallest unsigned dtype.

    LowprecError unless `packed` is uint8 of exactly the bytes that they take, its last bits zero.
    """
    _check_bits(bits)
    if count < 0:
        raise LowprecError(f"count={count}: expected 0 or more")
    if packed.dtype != torch.uint8 or packed.numel() != _bytes(count, bits):
        raise LowprecError(
            f"packed bits of {packed.dtype}, {packed.numel()} elements: {count} codes of {bits} "
            f"bits are {_bytes(count, bits)} of torch.uint8"
        )
    flat = packed.reshape(-1)
    tail = count * bits % 8
    if tail and int(flat[-1]) >> tail:
        raise LowprecError(f"packed bits: the last {8 - tail} are not zero")
    if bits in _STREAMS:
        return flat.contiguous().view(_STREAMS[bits])
    if count and (found := cpu.unpack(flat, bits, count)) is not None:
        return found
    period, width = _period(bits)
    groups = -(-count // period)
    dtype = next(dtype for size, dtype in _DTYPES.items() if bits <= size)
    codes = torch.empty(groups, period, dtype=dtype, device=packed.device)
    for first, last in _chunks(groups, period):
        part = flat[first * width : last * width]
        part = F.pad(part, (0, (last - first) * width - part.numel())).view(-1, width)
        part = part if bits <= 8 else part.long()
        for i in range(period):
            code = _code(part, i, bits)
            codes[first:last, i] = code.view(dtype) if bits > 32 else code.to(dtype)
    return codes.view(-1)[:count]


def _check_bits(bits: int) -> None:
    if not 1 <= bits <= 64:
        raise LowprecError(f"bits={bits}: expected 1 to 64")


def _bytes(count: int, bits: int) -> int:
    return -(-count * bits // 8)


def _period(bits: int) -> tuple[int, int]:
    """The least number of codes that end with a byte, and their bytes."""
    shared = math.gcd(bits, 8)
    return 8 // shared, bits // shared


def _chunks(groups: int, period: int) -> Iterator[tuple[int, int]]:
    step = _CHUNK // period
    return ((first, min(first + step, groups)) for first in range(0, groups, step))


def _checked(codes: Tensor, bits: int) -> Tensor:
    """uint8 where that holds codes and input, else int64 of the same bits."""
    narrow = codes.dtype == torch.uint8
    wide = codes.view(torch.int64) if codes.dtype == torch.uint64 else codes
    wide = wide if narrow else wide.long()
    if bits == 64:
        beyond = codes.dtype != torch.uint64 and bool((wide < 0).any())
    else:
        beyond = (bits < 8 or not narrow) and bool((wide >> bits).any())
    if beyond:
        raise LowprecError(f"codes beyond {bits} bits: expected 0 to {(1 << bits) - 1:#x}")
    return wide.to(torch.uint8) if bits <= 8 else wide.long()


def _byte(codes: Tensor, j: int, bits: int) -> Tensor:
    """Byte j of each group: the bits of all codes that reach into it."""
    byte = torch.zeros((), dtype=codes.dtype, device=codes.device)
    for i in range(8 * j // bits, (8 * j + 7) // bits + 1):
        byte = byte | _shift(codes[:, i], i * bits - 8 * j)
    return byte & 0xFF


def _code(packed: Tensor, i: int, bits: int) -> Tensor:
    """Code i of each group: the bits of all bytes that it reaches into."""
    code = torch.zeros((), dtype=packed.dtype, device=packed.device)
    for j in range(i * bits // 8, ((i + 1) * bits - 1) // 8 + 1):
        code = code | _shift(packed[:, j], 8 * j - i * bits)
    return code if bits == 64 else code & ((1 << bits) - 1)


def _shift(x: Tensor, left: int) -> Tensor:
    return x << left if left >= 0 else x >> -left


@dataclass(frozen=True)
class Packed:
    """A `QTensor` as dense bits: each stream is `pack_bits` of the codes of one of its fields.

    The outer scales are codes of their own format. shape and axis: the tensor's. None where the
    format has no such part.
    """

    elements: Tensor
    scales: Tensor | None
    outer_scale: Tensor | None
    inner: tuple[Tensor, ...]
    offset: Tensor | None
    outer_offset: Tensor | None
    outlier: Tensor | None
    shape: tuple[int, ...]
    quantizer: Quantizer
    axis: int

    @property
    def nbytes(self) -> int:
        """Bytes of all streams: `BlockFormat.storage_bits_of`, each rounded up to whole bytes."""
        own = (getattr(self, field.name) for field in fields(self))
        streams = [*(part for part in own if isinstance(part, Tensor)), *self.inner]
        return sum(stream.numel() for stream in streams)

    def unpack(self) -> QTensor:
        """See `lowprec.kernels.unpack`."""
        return unpack(self)


def pack(q: QTensor) -> Packed:
    """Everything of `q` as dense bits; `unpack` gives equal codes and numbers back."""
    fmt = q.quantizer.format
    shape = tuple(q.shape)
    if not isinstance(fmt, BlockFormat):
        elements = pack_bits(q.codes, fmt.bits)
        return Packed(elements, None, None, (), None, None, None, shape, q.quantizer, q.axis)

    offset = fmt.zero_point or fmt.offset
    return Packed(
        elements=pack_bits(q.codes, fmt.element.bits),
        scales=pack_bits(q.scales, fmt.scale.bits),
        outer_scale=_pack_outer(q.outer_scale, fmt),
        inner=tuple(pack_bits(c, f.scale.bits) for c, f in zip(q.inner, fmt.inner, strict=True)),
        offset=pack_bits(q.offset, offset.bits) if offset else None,
        outer_offset=_pack_outer(q.outer_offset, fmt),
        outlier=pack_bits(q.outlier, fmt.outlier.index_bits) if fmt.outlier else None,
        shape=shape,
        quantizer=q.quantizer,
        axis=q.axis,
    )


def _pack_outer(x: Tensor | None, fmt: BlockFormat) -> Tensor | None:
    return None if x is None else pack_bits(codes_of(x, fmt.outer.scale), fmt.outer.scale.bits)


def quantize_packed(x: Tensor, c: Call) -> Packed:
    """`pack` of `quantize_tensor`, without unpacked codes in memory where the CPU core does it."""
    fmt, shape = c.quantizer.format, tuple(x.shape)
    found = None
    if c.scale is None and c.random is None:
        found = cpu.quantize(x, c.quantizer, c.axis, c.seed, packed=True)
    if found is None:
        return pack(quantize_tensor(x, c))
    elements, scale, outer = found
    if isinstance(fmt, BlockFormat):
        assert scale is not None
        scales = pack_bits(codes_of_numbers(scale, fmt.scale), fmt.scale.bits)
        outer = _pack_outer(outer, fmt)
    else:
        scales = None
    return Packed(elements, scales, outer, (), None, None, None, shape, c.quantizer, c.axis)


def unpack(packed: Packed) -> QTensor:
    """The `QTensor` of `pack`; LowprecError where a stream is not as long as its shape."""
    fmt, shape, axis = packed.quantizer.format, packed.shape, packed.axis
    if not isinstance(fmt, BlockFormat):
        elements = unpack_bits(packed.elements, fmt.bits, math.prod(shape)).reshape(shape)
        return QTensor(elements, None, None, packed.quantizer, axis)

    def codes(stream: Tensor, bits: int, granularity: Block) -> Tensor:
        each = fmt.scale_shape(shape, axis, granularity)
        return unpack_bits(stream, bits, math.prod(each)).reshape(each)

    def values(stream: Tensor | None) -> Tensor | None:
        if stream is None:
            return None
        each = () if fmt.outer.block == "tensor" else fmt.scale_shape(shape, axis, fmt.outer.block)
        found = unpack_bits(stream, fmt.outer.scale.bits, math.prod(each)).reshape(each)
        return values_of(check_codes(found, fmt.outer.scale), fmt.outer.scale).float()

    offset, outlier = fmt.zero_point or fmt.offset, fmt.outlier
    inner = zip(packed.inner, fmt.inner, strict=True)
    return QTensor(
        codes=unpack_bits(packed.elements, fmt.element.bits, math.prod(shape)).reshape(shape),
        scales=codes(packed.scales, fmt.scale.bits, fmt.block),
        outer_scale=values(packed.outer_scale),
        inner=tuple(codes(stream, f.scale.bits, f.block) for stream, f in inner),
        offset=codes(packed.offset, offset.bits, fmt.block) if offset else None,
        outer_offset=values(packed.outer_offset),
        outlier=codes(packed.outlier, outlier.index_bits, fmt.block) if outlier else None,
        quantizer=packed.quantizer,
        axis=axis,
    )
