"""Block quantization in torch: the definition, for every device, shape and axis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from lowprec.kernels.arith import product
from lowprec.kernels.element import Projector, projector
from lowprec.kernels.scale import ScaleRule, block_scale, rule_of, tensor_scale, whole_scale
from lowprec.kernels.word import FLOAT32, FLOAT64, holds
from lowprec.spec.block import BlockFormat
from lowprec.spec.quantizer import Quantizer


@dataclass(frozen=True)
class BlockNumbers:
    """A block quantizer as numbers."""

    rule: ScaleRule
    element: Projector


@dataclass(frozen=True)
class Scaled:
    """Elements (float32, or float64 where float32 does not hold them all) and their scales.

    `scale` (of `BlockFormat.scale_shape`) and `tensor_scale` (of rank 0, or None) are float32;
    `whole` is S spread over the shape of `elements`.
    """

    elements: Tensor
    scale: Tensor
    tensor_scale: Tensor | None
    whole: Tensor

    @property
    def values(self) -> Tensor:
        return product(self.elements, self.whole)


@lru_cache(maxsize=1024)
def numbers_of(quantizer: Quantizer) -> BlockNumbers:
    """LowprecError where no dtype holds the elements, or float32 not the scales."""
    fmt = quantizer.format
    assert isinstance(fmt, BlockFormat)
    word = FLOAT32 if holds(torch.float32, fmt.element) else FLOAT64
    return BlockNumbers(rule_of(quantizer), projector(fmt.element, quantizer.projection, word))


def scaled(x: Tensor, quantizer: Quantizer, axis: int, random: Tensor | None) -> Scaled:
    """Scales and elements of `x` (float32): `Quantizer`'s docstring in its own order."""
    fmt = quantizer.format
    assert isinstance(fmt, BlockFormat)
    numbers = numbers_of(quantizer)
    sizes = fmt.block_sizes(tuple(x.shape), axis)
    pattern = x.view(torch.int32) & FLOAT32.magnitude
    amax = block_amax(pattern, sizes)
    tensor = tensor_scale(amax.amax(), numbers.rule) if amax.numel() else None
    scale = block_scale(amax, numbers.rule, tensor)
    whole = spread(whole_scale(scale, tensor), sizes, x.shape)
    units = torch.where(whole == 0, x * 0, x / whole)
    elements = numbers.element(units.to(numbers.element.word.dtype), random)
    return Scaled(elements, scale, tensor, whole)


def block_amax(pattern: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """The largest pattern of each block; a ragged tail is a block of its own."""
    for axis, size in enumerate(sizes):
        if size > 1 and pattern.numel():
            before = [0, 0] * (pattern.dim() - 1 - axis)
            padded = F.pad(pattern, [*before, 0, -pattern.shape[axis] % size])
            pattern = padded.unflatten(axis, (-1, size)).amax(axis + 1)
    return pattern


def spread(scale: Tensor, sizes: tuple[int, ...], shape: torch.Size) -> Tensor:
    """Each scale at all elements of its block."""
    for axis, size in enumerate(sizes):
        if scale.shape[axis] > 1 and size > 1:
            scale = scale.repeat_interleave(size, axis).narrow(axis, 0, shape[axis])
    return scale.expand(shape)
