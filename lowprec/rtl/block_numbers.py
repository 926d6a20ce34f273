"""The numbers of a block in hardware: the largest magnitude, its place, and the range."""

from __future__ import annotations

from functools import cached_property

from amaranth.hdl import C, Cat, Module, Mux, Value

from lowprec.rtl.align import parts_of
from lowprec.rtl.block_range import Range, block_range
from lowprec.rtl.real import Real, named, unpacked
from lowprec.rtl.scales import largest_of
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import FloatFormat
from lowprec.spec.quantizer import Quantizer


class BlockNumbers:
    """Largest and smallest of a block's numbers, each found where it is asked for.

    x: their codes, of the format `source`. parts: of the block that have a scale of their own.
    """

    def __init__(
        self, m: Module, x: Value, source: FloatFormat, quantizer: Quantizer, parts: int
    ) -> None:
        self.m, self.source, self.quantizer, self.parts = m, source, quantizer, parts
        self.lanes = parts_of(x, len(x) // source.bits)

    def real(self, magnitude: Value, name: str) -> Real:
        return unpacked(self.m, Cat(magnitude, C(0, 1)), self.source, name)

    @cached_property
    def maxima(self) -> list[Value]:
        """The code of the largest magnitude of every part of the block."""
        size = len(self.lanes) // self.parts
        magnitudes = [x[:-1] for x in self.lanes]
        return [
            largest_of(self.m, magnitudes[k * size : (k + 1) * size], f"part{k}")
            for k in range(self.parts)
        ]

    @cached_property
    def _largest(self) -> Value:
        return named(self.m, largest_of(self.m, self.maxima, "block"), "largest")

    @cached_property
    def largest(self) -> Real:
        return self.real(self._largest, "block")

    @cached_property
    def range(self) -> Range:
        fmt = self.quantizer.format
        assert isinstance(fmt, BlockFormat)
        return block_range(self.m, self.lanes, self.source, fmt)

    @property
    def bad(self) -> Value:
        """Whether a number is NaN or Inf."""
        if self.quantizer.rule == "minmax":
            return self.range.special
        return self.largest.inf | self.largest.nan

    @cached_property
    def first(self) -> Value:
        """The place of the first number of the largest magnitude."""
        place: Value = C(0, (len(self.lanes) - 1).bit_length())
        for k in reversed(range(len(self.lanes))):
            place = Mux(self.lanes[k][:-1] == self._largest, k, place)
        return named(self.m, place, "first")

    @property
    def first_sign(self) -> Value:
        return Cat(x[-1] for x in self.lanes).bit_select(self.first, 1)
