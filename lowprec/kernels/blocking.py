"""Tensors cut into blocks: `sizes` are the elements of a block along every dimension."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lowprec.spec.block import Block, BlockFormat

Sizes = tuple[int, ...]


def largest(x: Tensor, sizes: Sizes) -> Tensor:
    """The largest number of each block; a ragged tail is a block of its own."""
    low = -torch.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    for axis, size in enumerate(sizes):
        if size > 1 and x.numel():
            x = _cut(x, axis, size, low).amax(axis + 1)
    return x


def smallest(x: Tensor, sizes: Sizes) -> Tensor:
    """The smallest number of each block, of floats."""
    return -largest(-x, sizes)


def members(x: Tensor, sizes: Sizes) -> Tensor:
    """The numbers of each block along a new last dimension, row by row, zeros beyond the tensor."""
    rank = x.dim()
    for axis in reversed(range(rank)):
        x = _cut(x, axis, sizes[axis], 0)
    within = [2 * axis + 1 for axis in range(rank)]
    return x.permute([2 * axis for axis in range(rank)] + within).flatten(rank)


def places(shape: torch.Size, sizes: Sizes, device: torch.device) -> Tensor:
    """Where each element of a tensor stands in its block, row by row."""
    place = torch.zeros([1] * len(shape), dtype=torch.int64, device=device)
    for axis, (n, size) in enumerate(zip(shape, sizes, strict=True)):
        along = torch.arange(n, device=device) % size
        place = place * size + along.view([-1 if a == axis else 1 for a in range(len(shape))])
    return place.expand(shape)


def spread(scale: Tensor, sizes: Sizes, shape: torch.Size) -> Tensor:
    """What each block has, at all elements of the block."""
    for axis, size in enumerate(sizes):
        if scale.shape[axis] > 1 and size > 1:
            each = [-1] * (axis + 1) + [size] + [-1] * (scale.dim() - axis - 1)
            scale = scale.unsqueeze(axis + 1).expand(each).flatten(axis, axis + 1)
            scale = scale.narrow(axis, 0, shape[axis])
    return scale.expand(shape)


def _cut(x: Tensor, axis: int, size: int, fill: float) -> Tensor:
    """Dimension `axis` as two: blocks, and the elements of a block."""
    missing = -x.shape[axis] % size
    if missing:
        before = [0, 0] * (x.dim() - 1 - axis)
        x = F.pad(x, [*before, 0, missing], value=fill)
    return x.unflatten(axis, (-1, size))


@dataclass(frozen=True)
class Layout:
    """The blocks of one tensor. `axis` is counted from the end; cut: it is one block."""

    fmt: BlockFormat
    shape: torch.Size
    axis: int
    cut: bool = False

    @property
    def block(self) -> Block:
        return "channel" if self.cut else self.fmt.block

    @property
    def is_cut_evenly(self) -> bool:
        """Whether the blocked axis is made of whole one-dimensional blocks, and scales are of those
        or of the whole tensor."""
        block = self.fmt.block
        flat = not isinstance(block, str) and len(block) == 1 and len(self.fmt.inner) == 0
        return (
            flat
            and (self.fmt.outer is None or self.is_whole)
            and (self.shape[self.axis] % int(block[0]) == 0)
        )

    @property
    def sizes(self) -> Sizes:
        return self.fmt.block_sizes(tuple(self.shape), self.axis, self.block)

    @property
    def blocks(self) -> torch.Size:
        return torch.Size(self.fmt.scale_shape(tuple(self.shape), self.axis, self.block))

    def inner_sizes(self, level: int) -> Sizes:
        return self.fmt.block_sizes(tuple(self.shape), self.axis, self.fmt.inner[level].block)

    @property
    def outer_sizes(self) -> Sizes:
        """Blocks of an outer block along every dimension of the tensor of blocks."""
        assert self.fmt.outer is not None
        block = self.fmt.outer.block
        if not isinstance(block, str):
            block = (int(block[0]) // int(self.fmt.block[0]),)
        return self.fmt.block_sizes(tuple(self.blocks), self.axis, block)

    def over_outer(self, x: Tensor) -> Tensor:
        """The largest of each outer block, of a tensor of blocks; of rank 0 for the tensor."""
        x = largest(x, self.outer_sizes)
        return x.view(()) if self.is_whole else x

    def at_blocks(self, x: Tensor) -> Tensor:
        """What each outer block has, at all its blocks."""
        return x.expand(self.blocks) if self.is_whole else spread(x, self.outer_sizes, self.blocks)

    @property
    def is_whole(self) -> bool:
        return self.fmt.outer is not None and self.fmt.outer.block == "tensor"
