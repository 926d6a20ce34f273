"""Block formats: elements of a scalar format that share a scale."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from lowprec.errors import LowprecError
from lowprec.spec.base import Spec
from lowprec.spec.format import AnyFormat

BlockSize = Annotated[int, Field(ge=1, le=1 << 20)]


class BlockFormat(Spec):
    """Elements times a scale per block, times a scale per tensor where there is one.

    block: the number of elements along the blocked axis, (32,), or a two-dimensional tile
    (rows, along the blocked axis), (128, 128); "channel" is the whole blocked axis (one scale per
    row of x_MK and w_NK: per token and per output channel), "tensor" everything.
    The value of an element is ``element * scale * tensor_scale``. A ragged last block is a short
    block with a scale of its own.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80)]
    element: AnyFormat
    scale: AnyFormat
    block: (
        Annotated[tuple[BlockSize, ...], Field(min_length=1, max_length=2)]
        | Literal["channel", "tensor"]
    )
    tensor_scale: AnyFormat | None = None

    @model_validator(mode="after")
    def _possible(self) -> BlockFormat:
        if self.tensor_scale is not None and self.block == "tensor":
            raise ValueError("block='tensor' has one scale already; leave tensor_scale out")
        return self

    @property
    def bits_per_element(self) -> float:
        """Bits of an element with its share of the block's scale, in whole blocks of an
        unbounded tensor (so a scale per channel or tensor adds nothing)."""
        if isinstance(self.block, str):
            return float(self.element.bits)
        return self.element.bits + self.scale.bits / math.prod(self.block)

    def block_sizes(self, shape: tuple[int, ...], axis: int = -1) -> tuple[int, ...]:
        """Elements of a block along every dimension of a tensor of `shape` blocked along `axis`.

        Two-dimensional tiles take the other direction from the last dimension that is not `axis`.
        LowprecError for an axis or a tile that the shape does not have.
        """
        if self.block == "tensor":
            return tuple(max(n, 1) for n in shape)
        if not -len(shape) <= axis < len(shape):
            raise LowprecError(f"{self.name}: axis {axis} of a tensor of shape {shape}")
        axis %= len(shape)
        sizes = [1] * len(shape)
        sizes[axis] = max(shape[axis], 1) if self.block == "channel" else int(self.block[-1])
        if not isinstance(self.block, str) and len(self.block) == 2:
            if len(shape) < 2:
                raise LowprecError(
                    f"{self.name}: tiles {self.block} need a tensor of rank 2 or more"
                )
            sizes[-1 if axis != len(shape) - 1 else -2] = self.block[0]
        return tuple(sizes)

    def scale_shape(self, shape: tuple[int, ...], axis: int = -1) -> tuple[int, ...]:
        """Shape of the block scales of a tensor of `shape`; a ragged tail has one of its own."""
        sizes = self.block_sizes(shape, axis)
        return tuple(-(-n // size) for n, size in zip(shape, sizes, strict=True))

    def storage_bits_of(self, shape: tuple[int, ...], axis: int = -1) -> int:
        """Bits that a tensor of `shape` takes: elements, block scales and the tensor scale."""
        bits = math.prod(shape) * self.element.bits
        bits += math.prod(self.scale_shape(shape, axis)) * self.scale.bits
        return bits + (self.tensor_scale.bits if self.tensor_scale else 0)
