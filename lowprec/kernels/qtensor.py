"""Quantized tensors as code points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels.arith import product
from lowprec.kernels.block import scaled, spread
from lowprec.kernels.codec import check_codes, codes_of, store_codes, values_of
from lowprec.kernels.element import projector
from lowprec.kernels.scale import whole_scale
from lowprec.kernels.word import FLOAT32, holds, require, word_of
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import Format
from lowprec.spec.quantizer import Quantizer


@dataclass(frozen=True)
class QTensor:
    """Code points of elements and scales, unpacked: one code in each (unsigned) integer.

    codes: of the tensor's shape. scales: codes of the block scales, of `BlockFormat.scale_shape`,
    or None for a scalar format. tensor_scale: t as a float32 tensor of rank 0, or None. axis: the
    blocked axis, counted from the end (negative).
    """

    codes: Tensor
    scales: Tensor | None
    tensor_scale: Tensor | None
    quantizer: Quantizer
    axis: int

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

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """See `lowprec.kernels.dequantize`."""
        return dequantize(self, dtype)


def quantize_tensor(x: Tensor, quantizer: Quantizer, axis: int, random: Tensor | None) -> QTensor:
    fmt = quantizer.format
    if not isinstance(fmt, BlockFormat):
        return QTensor(encode_tensor(x, quantizer, random), None, None, quantizer, axis)
    parts = scaled(x.float(), quantizer, axis, random)
    codes = codes_of(parts.elements, fmt.element)
    tensor = parts.tensor_scale
    return QTensor(
        store_codes(codes, fmt.element),
        _codes_of_numbers(parts.scale, fmt.scale),
        tensor,
        quantizer,
        axis,
    )


def encode_tensor(x: Tensor, quantizer: Quantizer, random: Tensor | None) -> Tensor:
    """Code points of the projection of `x` onto a scalar format."""
    fmt = quantizer.format
    assert isinstance(fmt, Format)
    # Where float32 does not hold the values, float64 does: a code says nothing of the dtype.
    word = word_of(x.dtype if holds(word_of(x.dtype).dtype, fmt) else torch.float64)
    return _codes_of_numbers(
        projector(fmt, quantizer.projection, word)(x.to(word.dtype), random), fmt
    )


def _codes_of_numbers(values: Tensor, fmt: Format) -> Tensor:
    if not fmt.has_nan and bool(values.isnan().any()):
        raise LowprecError(f"{fmt.name}: NaN has no code point")
    return store_codes(codes_of(values, fmt), fmt)


def decode_tensor(codes: Tensor, fmt: Format, dtype: torch.dtype) -> Tensor:
    require(dtype, fmt)
    return values_of(check_codes(codes, fmt), fmt).to(dtype)


def dequantize(q: QTensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The values of a quantized tensor: ``RN(element * S)`` for blocks, rounded to `dtype`; of a
    scalar format the values themselves, which `dtype` must hold (else LowprecError)."""
    fmt = q.quantizer.format
    if not isinstance(fmt, BlockFormat):
        return decode_tensor(q.codes, fmt, dtype)
    assert q.scales is not None
    word_of(dtype)
    word = torch.float32 if holds(torch.float32, fmt.element) else torch.float64
    elements = decode_tensor(q.codes, fmt.element, word)
    scale = decode_tensor(q.scales, fmt.scale, FLOAT32.dtype)
    whole = whole_scale(scale, q.tensor_scale)
    sizes = fmt.block_sizes(tuple(q.shape), q.axis)
    return product(elements, spread(whole, sizes, q.shape)).to(dtype)
