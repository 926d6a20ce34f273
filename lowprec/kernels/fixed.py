"""Rounding under scales that are already chosen: what algorithms that alter a matrix while they
quantize it, such as GPTQ, need beside `quantize`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lowprec.kernels.block import numbers_of, scaled
from lowprec.kernels.blocking import Layout, spread
from lowprec.kernels.codec import codes_of, store_codes
from lowprec.kernels.element import Projector, projector
from lowprec.kernels.shared import outlier_mask, whole_and_shift
from lowprec.kernels.word import word_of
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import Format
from lowprec.spec.quantizer import Quantizer


@dataclass(frozen=True)
class _Shared:
    """What each element of an (N, K) matrix shares with its block."""

    whole: Tensor
    inverse: Tensor | None
    zero: Tensor | None
    shift: Tensor | None
    outlier: Tensor | None


@dataclass(frozen=True)
class Fixed:
    """The scales, zero points, offsets and places of outliers that a quantizer chose for a matrix
    (N, K), blocked along K; `column` rounds other numbers under them."""

    quantizer: Quantizer
    element: Projector
    shared: _Shared | None = None
    outlier: Projector | None = None

    def column(self, x: Tensor, j: int) -> tuple[Tensor, Tensor]:
        """Elements, and their values, of `x` (N,) in the place of column `j`."""
        if self.shared is None:
            values = self.element(x.to(self.element.word.dtype))
            return values, values.to(x.dtype)
        s, dtype = self.shared, self.element.word.dtype
        whole = s.whole[:, j]
        units = x if s.shift is None else x + s.shift[:, j]
        if s.inverse is not None:
            units = units * s.inverse[:, j]
        else:
            units = torch.where(whole == 0, units * whole, units / whole)
        if s.zero is not None:
            units = units + s.zero[:, j]
        elements = self.element(units.to(dtype))
        if s.outlier is not None and self.outlier is not None:
            elements = torch.where(s.outlier[:, j], self.outlier(units.to(dtype)), elements)
        values = elements if s.zero is None else elements - s.zero[:, j]
        values = (values * whole.to(dtype)).to(x.dtype)
        return elements, values if s.shift is None else values - s.shift[:, j]

    def codes(self, elements: Tensor) -> Tensor:
        """Code points of the elements (N, K) that `column` gave, as `QTensor.codes` holds them."""
        fmt = self.quantizer.format
        if not isinstance(fmt, BlockFormat):
            return store_codes(codes_of(elements, fmt), fmt)
        codes = codes_of(elements, fmt.element)
        if fmt.outlier is not None and self.shared is not None and self.shared.outlier is not None:
            other = codes_of(elements, fmt.outlier.element)
            codes = torch.where(self.shared.outlier, other, codes)
        return store_codes(codes, fmt.element)


def fixed(x: Tensor, quantizer: Quantizer, scale: Tensor | None = None) -> Fixed:
    """The scales of `x` (N, K; float32 or float64), those of ``quantize(x, quantizer)``.

    scale: as there. Rounding is the quantizer's, which must not be stochastic.
    """
    fmt, word = quantizer.format, word_of(x.dtype)
    if not isinstance(fmt, BlockFormat):
        assert isinstance(fmt, Format)
        return Fixed(quantizer, projector(fmt, quantizer.projection, word))
    numbers, layout = numbers_of(quantizer, word), Layout(fmt, x.shape, -1)
    shared = scaled(x, quantizer, -1, given=scale).shared
    whole, shift = whole_and_shift(shared, layout)
    inverse = spread(1 / shared.scale, layout.sizes, x.shape) if numbers.rule.has_inverse else None
    zero = None
    if fmt.zero_point is not None and shared.offset is not None:
        zero = spread(shared.offset, layout.sizes, x.shape)
    there = None
    if shared.outlier is not None:
        there = outlier_mask(shared.outlier, layout, x.device)
    each = _Shared(whole, inverse, zero, shift, there)
    return Fixed(quantizer, numbers.element, each, numbers.outlier)
