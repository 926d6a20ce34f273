"""Static scales: what calibration keeps of them, and the shape that a quantizer takes."""

from __future__ import annotations

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import cast
from lowprec.spec import BlockFormat, Quantizer


def given(scale: Tensor, quantizer: Quantizer, shape: tuple[int, ...], axis: int) -> Tensor:
    """A kept scale as `fake_quantize(x, quantizer, axis, scale=)` takes it for `x` of `shape`.

    scale: of that shape already (a weight's); of rank 0, one for all; or of rank 1, one for each
    block along `axis`, the same in all other dimensions. LowprecError for another number of blocks.
    """
    asked = scale_shape(quantizer, shape, axis)
    if scale.dim() == 1 and asked:
        each = [1] * len(asked)
        each[axis] = -1
        scale = scale.view(each)
    try:
        return scale.expand(asked)
    except RuntimeError:
        raise LowprecError(
            f"{quantizer.spell()}: calibrated scales of shape {tuple(scale.shape)} do not fit "
            f"{tuple(shape)}, whose scales have the shape {asked}"
        ) from None


def scale_shape(quantizer: Quantizer, shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """The shape of the outermost scales of a tensor; () for an outer scale per tensor."""
    fmt = quantizer.format
    assert isinstance(fmt, BlockFormat)
    if fmt.outer is None:
        return fmt.scale_shape(shape, axis)
    return () if fmt.outer.block == "tensor" else fmt.scale_shape(shape, axis, fmt.outer.block)


def block_sizes(quantizer: Quantizer, shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Elements under one outermost scale, along every dimension."""
    fmt = quantizer.format
    assert isinstance(fmt, BlockFormat)
    return fmt.block_sizes(shape, axis, fmt.outer.block if fmt.outer else fmt.block)


def scale_of(amax: Tensor, quantizer: Quantizer) -> Tensor:
    """The outermost scales, float32, of blocks whose largest magnitudes are `amax`: what the rule
    amax gives, rounded to the scale's format."""
    fmt = quantizer.format
    assert isinstance(fmt, BlockFormat)
    amax, largest = amax.float(), torch.tensor(fmt.elements_max)
    if fmt.outer is None:
        return cast(amax / largest, fmt.scale)
    inner = torch.tensor(float(fmt.scale.max_exact))
    return cast(amax / (largest * inner), fmt.outer.scale)
