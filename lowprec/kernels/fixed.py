"""Rounding under scales that are already chosen: what algorithms that alter a matrix while they
quantize it, such as GPTQ, need beside `quantize`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lowprec.kernels.block import numbers_of, scaled
from lowprec.kernels.blocking import Layout, spread
from lowprec.kernels.calls import Call, compute
from lowprec.kernels.codec import codes_of, store_codes
from lowprec.kernels.shared import outlier_mask, whole_and_shift
from lowprec.kernels.word import word_of
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import Format
from lowprec.spec.quantizer import Quantizer


@dataclass(frozen=True)
class _Shared:
    """What each element of an (N, K) matrix shares with its block, as (K, N): a column in one
    piece. empty: where the scale is zero, None where none is."""

    whole: Tensor
    empty: Tensor | None
    inverse: Tensor | None
    zero: Tensor | None
    shift: Tensor | None
    outlier: Tensor | None


@dataclass(frozen=True)
class Fixed:
    """The scales, zero points, offsets and places of outliers that a quantizer chose for a matrix
    (N, K), blocked along K; `column` rounds other numbers under them. dtype: of its elements."""

    quantizer: Quantizer
    dtype: torch.dtype
    element: Call
    shared: _Shared | None = None
    outlier: Call | None = None

    def column(self, x: Tensor, j: int) -> tuple[Tensor, Tensor]:
        """Elements, and their values, of `x` (N,) in the place of column `j`."""
        if self.shared is None:
            elements = compute(x.to(self.dtype), self.element)
            return elements, elements.to(x.dtype)
        s, whole = self.shared, self.shared.whole[j]
        units = x if s.shift is None else x + s.shift[j]
        if s.inverse is not None:
            units = units * s.inverse[j]
        elif s.empty is not None:
            units = torch.where(s.empty[j], units * whole, units / whole)
        else:
            units = units / whole
        if s.zero is not None:
            units = units + s.zero[j]
        elements = compute(units.to(self.dtype), self.element)
        if s.outlier is not None and self.outlier is not None:
            there = s.outlier[j]
            elements = torch.where(there, compute(units.to(self.dtype), self.outlier), elements)
        values = elements if s.zero is None else elements - s.zero[j]
        values = (values * whole.to(self.dtype)).to(x.dtype)
        return elements, values if s.shift is None else values - s.shift[j]

    def codes(self, elements: Tensor) -> Tensor:
        """Code points of the elements (N, K) that `column` gave, as `QTensor.codes` holds them."""
        fmt = self.quantizer.format
        if not isinstance(fmt, BlockFormat):
            return store_codes(codes_of(elements, fmt), fmt)
        codes = codes_of(elements, fmt.element)
        if fmt.outlier is not None and self.shared is not None and self.shared.outlier is not None:
            other = codes_of(elements, fmt.outlier.element)
            codes = torch.where(self.shared.outlier.T, other, codes)
        return store_codes(codes, fmt.element)


def fixed(x: Tensor, quantizer: Quantizer, scale: Tensor | None = None) -> Fixed:
    """The scales of `x` (N, K; float32 or float64), those of ``quantize(x, quantizer)``.

    scale: as there. Rounding is the quantizer's, which must not be stochastic.
    """
    fmt, word = quantizer.format, word_of(x.dtype)
    if not isinstance(fmt, BlockFormat):
        return Fixed(quantizer, word.dtype, _projection(fmt, quantizer))
    numbers, layout = numbers_of(quantizer, word), Layout(fmt, x.shape, -1)
    shared = scaled(x, quantizer, -1, given=scale).shared
    whole, shift = whole_and_shift(shared, layout)
    empty = whole == 0
    inverse = spread(1 / shared.scale, layout.sizes, x.shape) if numbers.rule.has_inverse else None
    zero = there = None
    if fmt.zero_point is not None and shared.offset is not None:
        zero = spread(shared.offset, layout.sizes, x.shape)
    if shared.outlier is not None:
        there = outlier_mask(shared.outlier, layout, x.device)
    each = (whole, empty if bool(empty.any()) else None, inverse, zero, shift, there)
    return Fixed(
        quantizer,
        numbers.element.word.dtype,
        _projection(fmt.element, quantizer),
        _Shared(*(None if part is None else part.T.contiguous() for part in each)),
        _projection(fmt.outlier.element, quantizer) if fmt.outlier else None,
    )


def _projection(fmt: Format, quantizer: Quantizer) -> Call:
    cast = Quantizer(format=fmt, rule="cast", projection=quantizer.projection)
    return Call(cast, -1)
