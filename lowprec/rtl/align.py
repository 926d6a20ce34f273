"""Aligning: the largest exponent, and significands shifted to a common unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from amaranth.hdl import C, Cat, Module, Mux, Shape, Signal, Value, signed

from lowprec.rtl.numbers import Fields
from lowprec.rtl.part import Part, Ports


def parts_of(packed: Value, n: int) -> list[Value]:
    """The n equal parts of a bus, lowest bits first."""
    width = len(packed) // n
    return [packed[k * width : (k + 1) * width] for k in range(n)]


def larger(values: list[Value]) -> Value:
    """The largest of them, by a tree of comparators."""
    while len(values) > 1:
        pairs = [values[k : k + 2] for k in range(0, len(values), 2)]
        values = [Mux(p[0] > p[1], p[0], p[1]) if len(p) == 2 else p[0] for p in pairs]
    return values[0]


@dataclass(frozen=True)
class AlignMax(Part):
    """The largest exponent of the terms that count, 0 where none does."""

    n: int
    bits: int

    @property
    def name(self) -> str:
        return f"align_max_{self.n}x{self.bits}"

    @property
    def about(self) -> str:
        return f"Largest of {self.n} exponents of {self.bits} bits; terms that are zero have none."

    def inputs(self) -> Ports:
        return {"e": self.n * self.bits, "counts": self.n}

    def outputs(self) -> Ports:
        return {"largest": self.bits, "any": 1}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        pairs = zip(parts_of(i.e, self.n), i.counts, strict=True)
        masked = [Mux(counts, e, 0) for e, counts in pairs]
        return {"largest": larger(masked), "any": i.counts.any()}


@dataclass(frozen=True)
class AlignLargest(Part):
    """E, the larger one of the terms' exponent and the accumulator's, in steps above `base`.

    x, y: bits, and the exponents that e = 0 stands for. Neither counts as less than `base`.
    """

    x: int
    x_low: int
    y: int
    y_low: int
    base: int
    bits: int

    @property
    def name(self) -> str:
        return f"align_largest_{self.bits}"

    @property
    def about(self) -> str:
        return (
            f"E, the largest exponent of the terms (x, above {self.x_low}) and of the accumulator "
            f"(y, above {self.y_low}),\nat least {self.base}, in steps above that."
        )

    def inputs(self) -> Ports:
        return {"x": self.x, "x_counts": 1, "y": self.y, "y_counts": 1}

    def outputs(self) -> Ports:
        return {"largest": self.bits}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        x, y = i.x + (self.x_low - self.base), i.y + (self.y_low - self.base)
        x = Mux(i.x_counts & (x >= 0), x, 0)
        y = Mux(i.y_counts & (y >= 0), y, 0)
        return {"largest": larger([x, y])}


@dataclass(frozen=True)
class Align(Part):
    """A term as a two's complement multiple of 2^(E - fraction_bits).

    fields: of the term. base: the exponent that largest = 0 stands for; its `bits`. within: a
    term further below E than this counts as zero.
    """

    fields: Fields
    fraction_bits: int
    rounding: str
    base: int
    bits: int
    within: int | None = None

    @property
    def name(self) -> str:
        f = self.fields
        sign = "m" if f.low < 0 else ""
        term = f"{f.bits}_{f.fraction}_{sign}{abs(f.low)}".replace("-", "m")
        short = self.rounding.replace("-", "_")
        return f"align_{short}_{term}_to_{self.fraction_bits}"

    @property
    def about(self) -> str:
        f = self.fields
        return (
            f"(-1)^sign * t * 2^(e {f.unit:+d}) as a multiple of 2^(E - {self.fraction_bits}), "
            f"rounded {self.rounding};\nE = largest {self.base:+d}, two's complement."
        )

    def inputs(self) -> Ports:
        return {"sign": 1, "t": self.fields.bits, "e": self.fields.e_bits, "largest": self.bits}

    def outputs(self) -> Ports:
        return {"value": self.shape}

    @property
    def shape(self) -> Shape:
        # One bit for the sign, one for a carry of the rounding.
        return signed(max(1, self.fields.bits + self._up - self._down) + 2)

    @property
    def _up(self) -> int:
        return max(self.fraction_bits - self.fields.fraction, 0)

    @property
    def _down(self) -> int:
        return max(self.fields.fraction - self.fraction_bits, 0)

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        furthest = (1 << self.bits) - 1 + self.base - self.fields.low
        distance = Signal(furthest.bit_length(), name="distance")
        m.d.comb += distance.eq(self.distance(i.largest, i.e))
        # One place more than the term has, for the guard bit.
        wide = Signal(self.fields.bits + self._up + 1, name="wide")
        m.d.comb += wide.eq(i.t << (self._up + 1))
        shifted = Signal(max(len(wide), self._down + 2) + 1, name="shifted")
        m.d.comb += shifted.eq(wide >> distance)
        kept, guard = shifted[self._down + 1 :], shifted[self._down]
        if self.rounding == "toward-zero":
            size = kept
        else:
            n = len(wide)
            below = Signal(2 * n, name="below")
            m.d.comb += below.eq(Cat(C(0, n), wide) >> distance)
            lost = Mux(distance >= n, wide.any(), below[:n].any())
            sticky = self.sticky(lost, shifted[: self._down])
            size = kept + self.away(i.sign, guard, sticky, kept)
        if self.within is not None:
            size = Mux(distance > self.within, 0, size)
        return {"value": Mux(i.sign, -size, size)}

    def distance(self, largest: Value, e: Value) -> Value:
        return largest + (self.base - self.fields.low) - e

    def sticky(self, lost: Value, below: Value) -> Value:
        """Whether anything behind the guard bit is not zero."""
        return lost | below.any() if len(below) else lost

    def away(self, sign: Value, guard: Value, sticky: Value, kept: Value) -> Value:
        """Whether the magnitude is rounded up."""
        if self.rounding == "down":
            return sign & (guard | sticky)
        return guard & (sticky | kept[0])


@dataclass(frozen=True)
class AlignFixed(Part):
    """A number in fixed point: two's complement in units of its `Fields.unit`."""

    fields: Fields

    @property
    def name(self) -> str:
        return f"align_fixed_{self.fields.bits}_by_{self.fields.span}"

    @property
    def about(self) -> str:
        return f"(-1)^sign * t * 2^e in fixed point, e up to {self.fields.span}: nothing is lost."

    def inputs(self) -> Ports:
        return {"sign": 1, "t": self.fields.bits, "e": self.fields.e_bits}

    def outputs(self) -> Ports:
        return {"value": signed(self.fields.bits + self.fields.span + 1)}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        size = Signal(self.fields.bits + self.fields.span, name="size")
        m.d.comb += size.eq(i.t << i.e)
        return {"value": Mux(i.sign, -size, size)}


@dataclass(frozen=True)
class AlignDown(Part):
    """A two's complement number cut down (toward -Inf) by a distance, with `more` zeros first."""

    width: int
    more: int
    bits: int
    offset: int
    e_bits: int

    @property
    def name(self) -> str:
        return f"align_down_{self.width}_{self.more}_{self.e_bits}_{self.bits}"

    @property
    def about(self) -> str:
        return (
            f"value * 2^{self.more} shifted right by largest - e {self.offset:+d}, "
            "rounded down (toward -Inf)."
        )

    def inputs(self) -> Ports:
        return {"value": signed(self.width), "e": self.e_bits, "largest": self.bits}

    def outputs(self) -> Ports:
        return {"cut": signed(self.width + self.more)}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        furthest = (1 << self.bits) - 1 + self.offset
        distance = Signal(furthest.bit_length(), name="distance")
        m.d.comb += distance.eq(i.largest - i.e + self.offset)
        wide = Signal(signed(self.width + self.more), name="wide")
        m.d.comb += wide.eq(Cat(C(0, self.more), i.value))
        return {"cut": wide >> distance}
