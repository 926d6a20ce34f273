"""Quantized tensors as code points."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import cpu
from lowprec.kernels.block import scaled
from lowprec.kernels.blocking import Layout
from lowprec.kernels.calls import Call
from lowprec.kernels.codec import check_codes, codes_of, store_codes
from lowprec.kernels.codec import values_of as values_of_codes
from lowprec.kernels.element import projector
from lowprec.kernels.shared import Shared, outlier_mask, values_of, whole_and_shift
from lowprec.kernels.word import FLOAT32, check_out, holds, require, word_of
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import FloatFormat, Format
from lowprec.spec.projection import Projection
from lowprec.spec.quantizer import GIVEN_RULES, Quantizer

if TYPE_CHECKING:
    from lowprec.kernels.packing import Packed


@dataclass(frozen=True)
class QTensor:
    """Code points of elements and scales, unpacked: one code in each (unsigned) integer.

    codes: of the tensor's shape. scales: codes of the block scales, of `BlockFormat.scale_shape`,
    or None for a scalar format. outer_scale: t as float32 or float64 numbers, of rank 0 for a scale
    per tensor, or None. inner: codes of each inner level's scales. offset: codes of the zero points
    or offsets of the blocks, or None; outer_offset: their outer scale, like `outer_scale`.
    outlier: the index of each block's outlier, or None. axis: the blocked axis, counted from the
    end (negative).
    """

    codes: Tensor
    scales: Tensor | None
    outer_scale: Tensor | None
    quantizer: Quantizer
    axis: int
    inner: tuple[Tensor, ...] = ()
    offset: Tensor | None = None
    outer_offset: Tensor | None = None
    outlier: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the whole, its codes packed densely into bits, elements and scales apart."""
        fmt = self.quantizer.format
        if isinstance(fmt, BlockFormat):
            bits = fmt.storage_bits_of(tuple(self.shape), self.axis)
        else:
            bits = self.codes.numel() * fmt.bits
        return -(-bits // 8)

    def pack(self) -> Packed:
        """See `lowprec.kernels.pack`."""
        from lowprec.kernels.packing import pack

        return pack(self)

    def dequantize(self, dtype: torch.dtype = torch.float32, out: Tensor | None = None) -> Tensor:
        """See `lowprec.kernels.dequantize`."""
        return dequantize(self, dtype, out)


def quantize_tensor(x: Tensor, c: Call) -> QTensor:
    fmt, quantizer, axis = c.quantizer.format, c.quantizer, c.axis
    if isinstance(fmt, BlockFormat) and c.scale is None and c.random is None:
        found = cpu.quantize(x, quantizer, axis, c.seed)
        if found is not None and found[1] is not None:
            codes, scale, outer = found
            return QTensor(codes, codes_of_numbers(scale, fmt.scale), outer, quantizer, axis)
    if not isinstance(fmt, BlockFormat):
        return QTensor(encode_tensor(x, c), None, None, quantizer, axis)
    wide = x.to(word_of(x.dtype).dtype)
    parts = scaled(wide, quantizer, axis, c.bits_for(x), c.scale)
    shared = parts.shared
    if quantizer.rule in GIVEN_RULES and fmt.outer is None:
        _refuse_nan(parts.elements, fmt.element)
    codes = codes_of(parts.elements, fmt.element)
    if fmt.outlier is not None and shared.outlier is not None:
        there = outlier_mask(shared.outlier, Layout(fmt, x.shape, axis), x.device)
        codes = torch.where(there, codes_of(parts.elements, fmt.outlier.element), codes)
    offset, scale = fmt.zero_point or fmt.offset, shared.scale
    if shared.outer is not None:
        # Where the outer scale is NaN, the block's need not say so.
        missing = Layout(fmt, x.shape, axis).at_blocks(shared.outer).isnan()
        scale = scale if fmt.scale.has_nan else torch.where(missing, scale.new_zeros(()), scale)
    return QTensor(
        store_codes(codes, fmt.element),
        codes_of_numbers(scale, fmt.scale),
        shared.outer,
        quantizer,
        axis,
        tuple(
            store_codes(codes_of(u, level.scale), level.scale)
            for u, level in zip(shared.inner, fmt.inner, strict=True)
        ),
        None
        if offset is None or shared.offset is None
        else store_codes(codes_of(shared.offset, offset), offset),
        shared.outer_offset,
        None
        if fmt.outlier is None or shared.outlier is None
        else shared.outlier.to(torch.uint8 if fmt.outlier.index_bits <= 8 else torch.uint16),
    )


def encode_tensor(x: Tensor, c: Call) -> Tensor:
    """Code points of the projection of `x` onto a scalar format."""
    fmt = c.quantizer.format
    assert isinstance(fmt, Format)
    if c.random is None and (found := cpu.quantize(x, c.quantizer, -1, c.seed)) is not None:
        return found[0]
    # Where float32 does not hold the values, float64 does: a code says nothing of the dtype.
    word = word_of(x.dtype if holds(word_of(x.dtype).dtype, fmt) else torch.float64)
    project = projector(fmt, c.quantizer.projection, word)
    return codes_of_numbers(project(x.to(word.dtype), c.bits_for(x)), fmt)


def _refuse_nan(values: Tensor, fmt: Format) -> None:
    if not fmt.has_nan and bool(values.isnan().any()):
        raise LowprecError(f"{fmt.name}: NaN has no code point")


def codes_of_numbers(values: Tensor, fmt: Format) -> Tensor:
    """Code points of values of a scalar format; LowprecError for NaN where it has none."""
    _refuse_nan(values, fmt)
    if (found := cpu.quantize(values, _cast(fmt), -1)) is not None:
        return found[0]
    if fmt.bits == 8 and values.dtype == torch.float32 and _is_float32_exponent(fmt):
        return (values.view(torch.int32) >> FLOAT32.trailing).to(torch.uint8)
    return store_codes(codes_of(values, fmt), fmt)


@lru_cache(maxsize=256)
def _cast(fmt: Format) -> Quantizer:
    return Quantizer(format=fmt, rule="cast", projection=Projection(saturation="SatPropagate"))


def _is_float32_exponent(fmt: Format) -> bool:
    """Whether a code is the exponent field of the float32 value, as E8M0's are, NaN's too."""
    if not isinstance(fmt, FloatFormat) or (fmt.precision, fmt.signed, fmt.zero) != (
        1,
        False,
        False,
    ):
        return False
    return fmt.bias == FLOAT32.bias and fmt.nan == "all-ones" and not fmt.infinity


@lru_cache(maxsize=256)
def _table(fmt: Format) -> Tensor:
    """The values of a format of up to 8 bits, float32; zeros beyond them."""
    table = torch.zeros(256)
    table[: fmt.code_points] = values_of_codes(torch.arange(fmt.code_points), fmt)
    return table


def decode_tensor(
    codes: Tensor, fmt: Format, dtype: torch.dtype, out: Tensor | None = None
) -> Tensor:
    require(dtype, fmt)
    check_out(out, codes.shape, dtype)
    if dtype == torch.float32 and _are_bytes(codes, fmt):
        found = cpu.dequantize(codes, _table(fmt), out=out, bits=fmt.bits)
        if found is not None:
            return found
    y = values_of_codes(check_codes(codes, fmt), fmt).to(dtype)
    return y if out is None else out.copy_(y)


def dequantize(q: QTensor, dtype: torch.dtype = torch.float32, out: Tensor | None = None) -> Tensor:
    """The values of a quantized tensor: those that `fake_quantize` gives, rounded to `dtype`, and
    in float64 where that is `dtype`; of a scalar format the values themselves, which `dtype` must
    hold (else LowprecError). out: a tensor of that dtype and the shape of `q`."""
    fmt = q.quantizer.format
    if not isinstance(fmt, BlockFormat):
        return decode_tensor(q.codes, fmt, dtype, out)
    check_out(out, q.shape, dtype)
    if dtype == torch.float32 and (found := _by_core(q, fmt, out)) is not None:
        return found
    word, layout = word_of(dtype), Layout(fmt, q.shape, q.axis)
    elements = _elements(q, fmt, word.dtype, layout)
    offset = fmt.zero_point or fmt.offset
    assert q.scales is not None
    shared = Shared(
        decode_tensor(q.scales, fmt.scale, word.dtype),
        None if q.outer_scale is None else q.outer_scale.to(word.dtype),
        tuple(
            decode_tensor(u, level.scale, word.dtype)
            for u, level in zip(q.inner, fmt.inner, strict=True)
        ),
        None if offset is None or q.offset is None else decode_tensor(q.offset, offset, word.dtype),
        None if q.outer_offset is None else q.outer_offset.to(word.dtype),
        q.outlier,
    )
    whole, shift = whole_and_shift(shared, layout)
    y = values_of(elements, shared, layout, whole, shift).to(dtype)
    return y if out is None else out.copy_(y)


def _are_bytes(codes: Tensor, fmt: Format) -> bool:
    """Whether a table of 256 values serves all codes that have no more bits than the format."""
    if fmt.bits > 8 or codes.dtype != torch.uint8 or not codes.is_cpu or not codes.numel():
        return False
    every = fmt.code_points == 1 << fmt.bits
    return holds(torch.float32, fmt) and (every or int(codes.amax()) < fmt.code_points)


def _by_core(q: QTensor, fmt: BlockFormat, out: Tensor | None) -> Tensor | None:
    """`dequantize` by the CPU core, or None where it does not cover the case."""
    coarse = fmt.outer is not None and fmt.outer.block != "tensor"
    if not fmt.is_only_scaled or coarse or q.scales is None or not _are_bytes(q.codes, fmt.element):
        return None
    scale = decode_tensor(q.scales, fmt.scale, torch.float32)
    # In place: the scales have just been decoded, and fresh memory costs more than the product.
    whole = scale.contiguous() if q.outer_scale is None else scale.mul_(q.outer_scale.float())
    element = fmt.element
    return cpu.dequantize(
        q.codes, _table(element), whole, q.axis, fmt.block, out, bits=element.bits
    )


def _elements(q: QTensor, fmt: BlockFormat, dtype: torch.dtype, layout: Layout) -> Tensor:
    outlier = fmt.outlier.element if fmt.outlier else None
    held = all(holds(dtype, f) for f in (fmt.element, outlier) if f)
    wide = dtype if held else torch.float64
    if outlier is None or q.outlier is None:
        return decode_tensor(q.codes, fmt.element, wide)
    there = outlier_mask(q.outlier.long(), layout, q.codes.device)
    # The code of an outlier may be none of the element's, and the other way round.
    one = torch.where(there, 0, q.codes.long())
    other = torch.where(there, q.codes.long(), 0)
    return torch.where(
        there, decode_tensor(other, outlier, wide), decode_tensor(one, fmt.element, wide)
    )
