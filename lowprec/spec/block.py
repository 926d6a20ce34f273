"""Block formats: elements of a scalar format that share scales."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from lowprec.errors import LowprecError
from lowprec.spec.base import Spec
from lowprec.spec.format import AnyFormat, FloatFormat, Format, IntFormat

BlockSize = Annotated[int, Field(ge=1, le=1 << 20)]
Block = (
    Annotated[tuple[BlockSize, ...], Field(min_length=1, max_length=2)]
    | Literal["channel", "tensor"]
)


class Level(Spec):
    """Scales of another granularity than a format's own, coarser or finer."""

    scale: AnyFormat
    block: Block


class Outlier(Spec):
    """The element of largest magnitude of each block (of equals the first) stored in a format of
    its own, of as many bits as the others; `index_bits` per block say which one it is. An index
    of all ones: the block has none."""

    element: AnyFormat
    index_bits: Annotated[int, Field(ge=1, le=16)]


class BlockFormat(Spec):
    """Elements times a scale per block, and what else they may share.

    block: the number of elements along the blocked axis, (32,), or a two-dimensional tile
    (rows, along the blocked axis), (128, 128); "channel" is the whole blocked axis (one scale per
    row of x_MK and w_NK: per token and per output channel), "tensor" everything. A ragged last
    block is a short block with a scale of its own.
    outer: a coarser scale, which multiplies the blocks' (NVFP4, VS-Quant, K-quants).
    inner: finer scales, powers of two, each along the blocked axis (MX9, HiF4).
    zero_point: an integer per block that is subtracted from its integer elements.
    offset: a number per block that is subtracted from the scaled elements; with `outer` it is
    multiplied by an outer scale of its own, of the same format and block (K-quants).
    outlier: the block's largest element in another format (MX+).
    The value of an element e is ``(e - zero_point) * scale * outer * inner... - offset``.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80)]
    element: AnyFormat
    scale: AnyFormat
    block: Block
    outer: Level | None = None
    inner: tuple[Level, ...] = ()
    zero_point: AnyFormat | None = None
    offset: AnyFormat | None = None
    outlier: Outlier | None = None

    @model_validator(mode="after")
    def _possible(self) -> BlockFormat:
        self._check_outer()
        self._check_inner()
        if self.zero_point is not None:
            integers = (self.element, self.zero_point)
            if not all(isinstance(f, IntFormat) and not f.exponent for f in integers):
                raise ValueError("zero_point needs integers without exponent, it and the element")
            if max(f.bits for f in integers) > 16:
                raise ValueError("zero_point needs integers of at most 16 bits")
        shared = [k for k in ("zero_point", "offset", "outlier") if getattr(self, k) is not None]
        if len(shared) + bool(self.inner) > 1:
            raise ValueError(
                f"{' and '.join([*shared, *['inner'][: len(self.inner)]])} exclude each other"
            )
        if self.outlier is not None:
            if self.outlier.element.bits != self.element.bits:
                raise ValueError(
                    f"outlier: {self.outlier.element.name} has {self.outlier.element.bits} bits; "
                    f"expected the element's {self.element.bits}"
                )
            if isinstance(self.block, str) or math.prod(self.block) >= 1 << self.outlier.index_bits:
                raise ValueError(
                    f"outlier: index_bits={self.outlier.index_bits} do not count a block"
                )
        return self

    def _check_outer(self) -> None:
        if self.outer is None:
            return
        own, outer = _length(self.block), _length(self.outer.block)
        multiple = own is not None and outer is not None and outer % own == 0
        along = self.outer.block == "channel" and own is not None
        everything = self.outer.block == "tensor" and self.block != "tensor"
        if not (multiple or along or everything):
            raise ValueError(
                f"outer: block {_show(self.outer.block)} is not made of whole blocks "
                f"{_show(self.block)}"
            )

    def _check_inner(self) -> None:
        block = self.block
        for level in self.inner:
            scale = level.scale
            if not (isinstance(scale, FloatFormat) and scale.precision == 1 and not scale.zero):
                raise ValueError(
                    f"inner: {scale.name!r} is no float of precision 1 without zero, whose values "
                    f"are powers of two"
                )
            size, part = _length(block), _length(level.block)
            if size is None or part is None or size % part:
                raise ValueError(
                    f"inner: blocks {_show(block)} are not made of {_show(level.block)}"
                )
            block = level.block

    @property
    def elements_max(self) -> float:
        """The largest finite magnitude that the format has at a scale of one."""
        return float(
            self.element.max_exact * math.prod(level.scale.max_exact for level in self.inner)
        )

    @property
    def is_only_scaled(self) -> bool:
        """Whether blocks share a scale, perhaps under an outer one, and nothing else."""
        return not (self.inner or self.zero_point or self.offset or self.outlier)

    @property
    def parts(self) -> dict[str, Format]:
        """The scalar formats that it is made of, by key."""
        found: dict[str, Format] = {"element": self.element, "scale": self.scale}
        found |= {"outer.scale": self.outer.scale} if self.outer else {}
        found |= {f"inner.{i}.scale": level.scale for i, level in enumerate(self.inner)}
        found |= {k: f for k in ("zero_point", "offset") if (f := getattr(self, k)) is not None}
        return found | ({"outlier.element": self.outlier.element} if self.outlier else {})

    @property
    def per_block_bits(self) -> int:
        """Bits that every block has beside its elements and the scales of other granularities."""
        own = (self.scale, self.zero_point, self.offset)
        return sum(f.bits for f in own if f) + (self.outlier.index_bits if self.outlier else 0)

    @property
    def per_outer_bits(self) -> int:
        """Bits of every outer block: its scale, and the offset's."""
        return self.outer.scale.bits * (1 if self.offset is None else 2) if self.outer else 0

    @property
    def bits_per_element(self) -> float:
        """Bits of an element with its share of everything else, in whole blocks of an unbounded
        tensor (so what there is once per channel or tensor adds nothing)."""
        bits = float(self.element.bits)
        for block, shared in [
            (self.block, self.per_block_bits),
            (self.outer.block if self.outer else "tensor", self.per_outer_bits),
            *((level.block, level.scale.bits) for level in self.inner),
        ]:
            bits += 0.0 if isinstance(block, str) else shared / math.prod(block)
        return bits

    def block_sizes(
        self, shape: tuple[int, ...], axis: int = -1, block: Block | None = None
    ) -> tuple[int, ...]:
        """Elements of a block along every dimension of a tensor of `shape` blocked along `axis`.

        block: that of another level than the format's own. Two-dimensional tiles take the other
        direction from the last dimension that is not `axis`. LowprecError for an axis or a tile
        that the shape does not have.
        """
        block = self.block if block is None else block
        if block == "tensor":
            return tuple(max(n, 1) for n in shape)
        if not -len(shape) <= axis < len(shape):
            raise LowprecError(f"{self.name}: axis {axis} of a tensor of shape {shape}")
        axis %= len(shape)
        sizes = [1] * len(shape)
        sizes[axis] = max(shape[axis], 1) if block == "channel" else int(block[-1])
        if not isinstance(block, str) and len(block) == 2:
            if len(shape) < 2:
                raise LowprecError(f"{self.name}: tiles {block} need a tensor of rank 2 or more")
            sizes[-1 if axis != len(shape) - 1 else -2] = block[0]
        return tuple(sizes)

    def scale_shape(
        self, shape: tuple[int, ...], axis: int = -1, block: Block | None = None
    ) -> tuple[int, ...]:
        """Shape of the scales of a tensor of `shape`; a ragged tail has one of its own."""
        sizes = self.block_sizes(shape, axis, block)
        return tuple(-(-n // size) for n, size in zip(shape, sizes, strict=True))

    def storage_bits_of(self, shape: tuple[int, ...], axis: int = -1) -> int:
        """Bits that a tensor of `shape` takes: elements and all that they share."""
        levels = [(self.block, self.per_block_bits)]
        levels += [(level.block, level.scale.bits) for level in self.inner]
        if self.outer and self.outer.block != "tensor":
            levels.append((self.outer.block, self.per_outer_bits))
        bits = math.prod(shape) * self.element.bits
        bits += sum(math.prod(self.scale_shape(shape, axis, b)) * n for b, n in levels)
        return bits + (self.per_outer_bits if self.outer and self.outer.block == "tensor" else 0)


def _length(block: Block) -> int | None:
    """Elements of a one-dimensional block, or None."""
    return None if isinstance(block, str) or len(block) > 1 else int(block[0])


def _show(block: Block) -> str:
    return repr(block) if isinstance(block, str) else "x".join(map(str, block))
