"""What a plan of a matmul goes by: a datapath and how large its operands and sums become."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lowprec.spec.datapath import Datapath
from lowprec.spec.format import FloatFormat


@dataclass(frozen=True)
class Extent:
    """Magnitudes of an operand that are not zero lie within [2^least, largest] and are multiples of
    2^quantum."""

    largest: float
    least: int
    quantum: int


def extent_of(fmt: FloatFormat) -> Extent:
    """That of all finite values of a format."""
    quantum = fmt.emin - fmt.precision + 1
    return Extent(float(fmt.max_exact), quantum, quantum)


@dataclass(frozen=True)
class Case:
    """A datapath on operands of K products, of these formats and extents."""

    path: Datapath
    formats: tuple[FloatFormat, FloatFormat]
    extents: tuple[Extent, Extent]
    k: int

    @property
    def step(self) -> int:
        return max(min(self.path.step or self.k, self.k), 1)

    @property
    def product(self) -> float:
        """No product is larger."""
        return self.extents[0].largest * self.extents[1].largest

    @property
    def quantum(self) -> int:
        """Products are multiples of 2^quantum."""
        return self.extents[0].quantum + self.extents[1].quantum

    @property
    def lowest(self) -> int:
        """The least exponent of a product."""
        return self.formats[0].emin + self.formats[1].emin

    @property
    def sum(self) -> float:
        """No accumulator, rounded at every step, and no sum of it and a step is larger."""
        fmt, output = self.result, self.path.output
        assert isinstance(output, FloatFormat)
        steps, precision = self.k // self.step + 2, min(fmt.precision, output.precision)
        growth = min(steps * math.log2(1 + 2.0 ** (1 - precision)), 900.0)
        finite = float(fmt.max_exact) + self.product * self.step
        return min(self.product * max(self.k, 1) * 2.0**growth, finite)

    @property
    def result(self) -> FloatFormat:
        fmt = self.path.result or self.path.accumulator
        assert isinstance(fmt, FloatFormat)
        return fmt
