"""What the elements of a block share, and their values under it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lowprec.kernels.arith import product
from lowprec.kernels.blocking import Layout, places, spread
from lowprec.kernels.scale import whole_scale


@dataclass(frozen=True)
class Shared:
    """What elements share, in the tensor's own dtype (float32 or float64).

    scale, offset (z or o): of `BlockFormat.scale_shape`. outer, outer_offset: of that shape for
    the outer block, of rank 0 where it is the tensor. inner: u for every inner level. outlier: the
    index in each block, all ones where there is none.
    """

    scale: Tensor
    outer: Tensor | None = None
    inner: tuple[Tensor, ...] = ()
    offset: Tensor | None = None
    outer_offset: Tensor | None = None
    outlier: Tensor | None = None


def whole_and_shift(shared: Shared, layout: Layout) -> tuple[Tensor, Tensor | None]:
    """S, with the inner scales, and O (None without), at every element."""
    fmt = layout.fmt
    outer = None if shared.outer is None else layout.at_blocks(shared.outer)
    whole = spread(whole_scale(shared.scale, outer), layout.sizes, layout.shape)
    for level, u in enumerate(shared.inner):
        whole = whole * spread(u, layout.inner_sizes(level), layout.shape)
    if fmt.offset is None or shared.offset is None:
        return whole, None
    outer = None if shared.outer_offset is None else layout.at_blocks(shared.outer_offset)
    return whole, spread(whole_scale(shared.offset, outer), layout.sizes, layout.shape)


def values_of(
    elements: Tensor, shared: Shared, layout: Layout, whole: Tensor, shift: Tensor | None
) -> Tensor:
    """``RN(RN((element - z) * S) - O)``."""
    if layout.fmt.zero_point is not None and shared.offset is not None:
        zero = spread(shared.offset, layout.sizes, layout.shape)
        elements = torch.where(elements.isnan(), torch.nan, elements - zero)
    values = product(elements, whole)
    return values if shift is None else values - shift


def outlier_mask(outlier: Tensor, layout: Layout, device: torch.device) -> Tensor:
    """Where an element is its block's outlier."""
    index = spread(outlier, layout.sizes, layout.shape)
    return index == places(layout.shape, layout.sizes, device)
