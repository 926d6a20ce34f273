"""Accumulating: normalising a sum and rounding it to a float format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from amaranth.hdl import C, Cat, Module, Mux, Signal, Value, signed

from lowprec.exact.values import units
from lowprec.rtl.part import Part, Ports
from lowprec.spec.format import FloatFormat


def leading_zeros(m: Module, value: Value) -> Value:
    """How many zeros stand before the highest one of a width that is a power of two."""
    counts = [~bit for bit in value]
    while len(counts) > 1:
        pairs = zip(counts[::2], counts[1::2], strict=True)
        counts = [_joined(m, low, high) for low, high in pairs]
    return counts[0]


def _joined(m: Module, low: Value, high: Value) -> Signal:
    """The count of two halves: where the upper one is empty, both, else the upper one's."""
    zeros = Signal(len(low) + 1, name=f"zeros{1 << len(low)}")
    empty, both = high[-1], high[-1] & low[-1]
    below = Mux(empty, low[:-1], high[:-1]) if len(low) > 1 else C(0, 0)
    m.d.comb += zeros.eq(Cat(below, empty & ~both, both))
    return zeros


@dataclass(frozen=True)
class Normalise(Part):
    """A sum to a significand of `precision` bits, a guard and a sticky bit.

    width: of the sum, two's complement if `signed_sum`, else a magnitude with its sign. top: the
    exponent of the magnitude's highest place above the format's emin, where e = 0.
    """

    width: int
    signed_sum: bool
    e_bits: int
    top: int
    precision: int

    @property
    def name(self) -> str:
        return f"accumulate_normalise_{self.width}_to_{self.precision}" + (
            "" if self.signed_sum else "_magnitude"
        )

    @property
    def about(self) -> str:
        return (
            f"A sum of {self.width} bits, normalised to {self.precision} bits, guard and sticky; "
            f"no exponent is below emin.\nIts highest place stands for 2^(emin + e {self.top:+d})."
        )

    def inputs(self) -> Ports:
        if self.signed_sum:
            return {"total": signed(self.width), "e": self.e_bits}
        return {"total_sign": 1, "total": self.width, "e": self.e_bits}

    def outputs(self) -> Ports:
        return {
            "sign": 1,
            "kept": self.precision,
            "guard": 1,
            "sticky": 1,
            "field": self.field_bits,
            "zero": 1,
        }

    @property
    def _front(self) -> int:
        """Zeros in front for what is normalised less far; with more, all is sticky."""
        return min(max(-self.top, 0), self.precision + 1)

    @property
    def field_bits(self) -> int:
        return max(1, (max(0, self.top + self._front) + (1 << self.e_bits)).bit_length())

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        sign = i.total[-1] if self.signed_sum else i.total_sign
        size = Signal(self.width, name="size")
        m.d.comb += size.eq(Mux(sign, -i.total, i.total) if self.signed_sum else i.total)
        used = self._front + self.width
        behind = max(0, self.precision + 2 - used)
        wide = Signal(used + behind, name="wide")
        m.d.comb += wide.eq(Cat(C(0, behind), size))
        zeros, limit = self._zeros(m, wide), Signal(signed(self.field_bits + 1), name="limit")
        m.d.comb += limit.eq(i.e + self.top + self._front)
        below = limit < 0
        shift = Signal(len(zeros), name="shift")
        # Never so far that the exponent falls below emin.
        room = Mux(below, 0, limit[:-1])
        m.d.comb += shift.eq(Mux(zeros < room, zeros, room))
        normal = Signal(len(wide), name="normal")
        m.d.comb += normal.eq(wide << shift)
        rest = normal[: -self.precision]
        return {
            "sign": sign,
            "kept": Mux(below, 0, normal[-self.precision :]),
            "guard": ~below & rest[-1],
            "sticky": self.sticky(Mux(below, size.any(), rest[:-1].any())),
            "field": Mux(normal[-1], room - shift, 0),
            "zero": ~size.any(),
        }

    def sticky(self, lost: Value) -> Value:
        """Whether anything behind the guard bit is not zero."""
        return lost

    def _zeros(self, m: Module, wide: Value) -> Value:
        width = 1 << (len(wide) - 1).bit_length()
        zeros = Signal(width.bit_length(), name="zeros")
        m.d.comb += zeros.eq(leading_zeros(m, Cat(C(1, 1).replicate(width - len(wide)), wide)))
        return zeros


@dataclass(frozen=True)
class Round(Part):
    """A normalised sum to a code point of `format`; beyond its largest finite value Inf.

    signed_zero: what is rounded to zero keeps its sign.
    """

    format: FloatFormat
    rounding: str
    field_bits: int
    signed_zero: bool

    @property
    def name(self) -> str:
        short = self.rounding.replace("-", "_")
        zero = "" if self.signed_zero else "_plus_zero"
        name = self.format.name.replace(".", "_").replace("-", "_")
        return f"accumulate_round_{name}_{short}_{self.field_bits}{zero}"

    @property
    def about(self) -> str:
        f = self.format
        return (
            f"Rounding {self.rounding} to {f.name}: sign 1, exponent {f.exponent_bits} "
            f"(bias {f.bias}), trailing significand {f.precision - 1} bits.\n"
            "field: the exponent above emin. Overflow gives Inf, or what stands for it without one."
        )

    def inputs(self) -> Ports:
        flags = ("sign", "guard", "sticky", "zero", "zero_sign", "nan", "inf", "inf_sign")
        return {**dict.fromkeys(flags, 1), "kept": self.format.precision, "field": self.field_bits}

    def outputs(self) -> Ports:
        return {"code": self.format.bits}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        f = self.format
        width = max(self.field_bits + f.precision, f.bits) + 1
        down = Signal(width, name="down")
        # With a field of 0 for subnormals the implicit bit itself makes it 1.
        hidden = 0 if f.subnormals else 1 << (f.precision - 1)
        m.d.comb += down.eq(Cat(C(0, f.precision - 1), i.field) + i.kept - hidden)
        rounded = Signal(width, name="rounded")
        stepped = down + self.away(i.sign, i.guard, i.sticky, down[0])
        if f.subnormals:
            m.d.comb += rounded.eq(stepped)
        else:
            gap, up = self._gap(i)
            m.d.comb += rounded.eq(Mux(gap, up, stepped))
        infinite = self.infinite(i, rounded)
        # Without Inf, NaN stands for it, and without that the largest finite value for both.
        nan = i.nan | infinite if f.has_nan and not f.infinity else i.nan
        last = f.infinity_code if f.infinity_code is not None else f.max_code
        magnitude = Mux(infinite, C(last, f.bits - 1), rounded[: f.bits - 1])
        zero_sign = i.sign if self.signed_zero and f.has_negative_zero else C(0, 1)
        exact_zero = i.zero_sign if f.has_negative_zero else C(0, 1)
        zero = Mux(i.zero, exact_zero, zero_sign)
        sign = Mux(i.inf, i.inf_sign, Mux(rounded == 0, zero, i.sign))
        return {"code": Mux(nan, C(f.nan_code or f.max_code, f.bits), Cat(magnitude, sign))}

    def infinite(self, i: SimpleNamespace, rounded: Value) -> Value:
        return i.inf | (rounded > self.format.max_code)

    def away(self, sign: Value, guard: Value, sticky: Value, odd: Value) -> Value:
        """Whether the magnitude is rounded up."""
        inexact = guard | sticky
        match self.rounding:
            case "nearest-even":
                return guard & (sticky | odd)
            case "nearest-away":
                return guard
            case "up":
                return inexact & ~sign
            case "down":
                return inexact & sign
            case "to-odd":
                return inexact & ~odd
        return C(0, 1)

    def _gap(self, i: SimpleNamespace) -> tuple[Value, Value]:
        """Whether the sum lies between 0 and the smallest value of a format without subnormals,
        and whether it is rounded to that one."""
        least = units(1, self.format)
        quarters = Cat(i.sticky, i.guard, i.kept)
        gap = (i.field == 0) & (i.kept < least)
        half = 2 * least
        match self.rounding:
            case "nearest-even":
                return gap, quarters > half
            case "nearest-away":
                return gap, quarters >= half
        # Of the neighbours only the upper one is odd.
        return gap, self.away(i.sign, i.guard, i.sticky | i.kept.any(), C(0, 1))


@dataclass(frozen=True)
class AccumulateFloor(Part):
    """A sum cut down (toward -Inf) to `keep` bits behind its highest one, but not below emin's."""

    width: int
    e_bits: int
    top: int
    keep: int

    @property
    def name(self) -> str:
        return f"accumulate_floor_{self.width}_keep_{self.keep}"

    @property
    def about(self) -> str:
        return (
            f"Of a sum's magnitude of exponent x, at least emin, keeps {self.keep} bits behind "
            "2^x; rounded down (toward -Inf)."
        )

    def inputs(self) -> Ports:
        return {"total": signed(self.width), "e": self.e_bits}

    def outputs(self) -> Ports:
        return {"cut": signed(self.width)}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        width = 1 << (self.width - 1).bit_length()
        size = Signal(width, name="size")
        m.d.comb += size.eq(Mux(i.total < 0, -i.total, i.total))
        zeros = Signal(width.bit_length(), name="zeros")
        m.d.comb += zeros.eq(leading_zeros(m, size))
        # The place of the exponent: of the highest bit, or of emin if that is further up.
        lowest = Signal(signed(self.e_bits + self.width.bit_length() + 2), name="lowest")
        m.d.comb += lowest.eq(self.width - 1 - self.top - i.e)
        highest = Signal(signed(len(lowest)), name="highest")
        m.d.comb += highest.eq(width - 1 - zeros)
        place = Mux((lowest >= 0) & (lowest > highest), lowest[:-1], highest)
        lost = Signal(len(lowest), name="lost")
        m.d.comb += lost.eq(Mux(place > self.keep, place - self.keep, 0))
        mask = Cat(k >= lost for k in range(self.width))
        return {"cut": (i.total & mask).as_signed()}


@dataclass(frozen=True)
class AccumulateInteger(Part):
    """A sum and an integer accumulator, which saturates or wraps. more: zeros behind the sum."""

    width: int
    more: int
    bits: int
    is_signed: bool
    saturates: bool
    lowest: int
    highest: int

    @property
    def name(self) -> str:
        return f"accumulate_integer_{self.bits}_{'saturate' if self.saturates else 'wrap'}"

    @property
    def about(self) -> str:
        does = "saturates" if self.saturates else "wraps"
        return f"Adds a sum to an integer accumulator of {self.bits} bits, which {does}."

    def inputs(self) -> Ports:
        return {"total": signed(self.width), "c": self.bits}

    def outputs(self) -> Ports:
        return {"d": self.bits}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        wide = Signal(signed(max(self.width + self.more, self.bits + 1) + 1), name="wide")
        c = i.c.as_signed() if self.is_signed else i.c
        m.d.comb += wide.eq((i.total << self.more) + c)
        if not self.saturates:
            return {"d": wide[: self.bits]}
        low, high = wide < self.lowest, wide > self.highest
        return {"d": Mux(low, C(self.lowest, signed(self.bits + 1)), Mux(high, self.highest, wide))}
