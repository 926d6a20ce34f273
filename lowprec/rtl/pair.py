"""Parts for the sum of two numbers that is rounded once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from amaranth.hdl import C, Cat, Module, Mux, Signal, Value, signed

from lowprec.rtl.accumulate import leading_zeros
from lowprec.rtl.numbers import Fields
from lowprec.rtl.part import Part, Ports


@dataclass(frozen=True)
class AddPair(Part):
    """x + y over the exponent of the larger one; what falls off the end leaves a sticky bit.

    At most one of the two, x, may be not normalised, and it only at the lowest exponent of the
    format that the sum is rounded to: then no cancellation reaches the sticky bit. precision: of
    that format.
    """

    x: Fields
    y: Fields
    precision: int

    @property
    def name(self) -> str:
        return f"add_pair_{self.x.bits}_{self.y.bits}_to_{self.precision}"

    @property
    def about(self) -> str:
        return (
            f"Sum of two numbers, of {self.x.bits} bits (e = 0 is 2^{self.x.low}) and of "
            f"{self.y.bits} bits (2^{self.y.low}),\naligned to the larger one; the last of "
            f"{self.window} bits is sticky. e is above 2^{self.low}."
        )

    def inputs(self) -> Ports:
        return {
            f"{side}_{what}": width
            for side, f in (("x", self.x), ("y", self.y))
            for what, width in (("sign", 1), ("t", f.bits), ("e", f.e_bits))
        }

    def outputs(self) -> Ports:
        return {"total": signed(self.window + 2), "e": self.e_bits}

    @property
    def low(self) -> int:
        return min(self._top(self.x), self._top(self.y))

    def _top(self, f: Fields) -> int:
        """The exponent of the highest place of t where e = 0."""
        return f.unit + f.bits - 1

    @property
    def window(self) -> int:
        return max(self.x.bits, self.y.bits, self.precision) + 3

    @property
    def e_bits(self) -> int:
        highest = max(self._top(f) + f.span for f in (self.x, self.y))
        return (highest - self.low).bit_length()

    @property
    def top(self) -> int:
        """The exponent of the highest place of the total where e = 0."""
        return self.low + 2

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        ex, tx = self._placed(m, i.x_e, i.x_t, self.x, "x")
        ey, ty = self._placed(m, i.y_e, i.y_t, self.y, "y")
        swap = ey > ex
        distance = Signal(self.e_bits, name="distance")
        m.d.comb += distance.eq(Mux(swap, ey - ex, ex - ey))
        large, small = Mux(swap, ty, tx), Mux(swap, tx, ty)
        large_sign, small_sign = (
            Mux(swap, i.y_sign, i.x_sign),
            Mux(swap, i.x_sign, i.y_sign),
        )
        n = self.window
        shifted = Signal(2 * n, name="shifted")
        m.d.comb += shifted.eq(Cat(C(0, n), small) >> distance)
        lost = Mux(distance >= n, small.any(), shifted[:n].any())
        kept = Cat(shifted[n] | self.sticky(lost), shifted[n + 1 :])
        total = Mux(large_sign, -large, large) + Mux(small_sign, -kept, kept)
        return {"total": total, "e": Mux(swap, ey, ex)}

    def sticky(self, lost: Value) -> Value:
        """Whether anything fell off the end."""
        return lost

    def _placed(self, m: Module, e: Value, t: Value, f: Fields, side: str) -> tuple[Signal, Signal]:
        """The exponent above `low`, the lowest one of zero, and t at the window's upper end."""
        exponent = Signal(self.e_bits, name=f"exponent_{side}")
        m.d.comb += exponent.eq(Mux(t.any(), e + (self._top(f) - self.low), 0))
        placed = Signal(self.window, name=f"placed_{side}")
        m.d.comb += placed.eq(Cat(C(0, self.window - f.bits), t))
        return exponent, placed


@dataclass(frozen=True)
class AddNormal(Part):
    """A number whose highest bit is 1, unless it is zero."""

    fields: Fields

    @property
    def name(self) -> str:
        return f"add_normal_{self.fields.bits}_{self.fields.e_bits}"

    @property
    def about(self) -> str:
        return f"Shifts {self.fields.bits} bits left until the highest is 1."

    def inputs(self) -> Ports:
        return {"t": self.fields.bits, "e": self.fields.e_bits}

    def outputs(self) -> Ports:
        return {"normal_t": self.fields.bits, "normal_e": self.normal.e_bits}

    @property
    def normal(self) -> Fields:
        f, more = self.fields, self.fields.bits - 1
        return Fields(f.bits, f.fraction, f.low - more, f.span + more, f.signed, f.nan, f.infinity)

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        bits = self.fields.bits
        width = 1 << (bits - 1).bit_length()
        zeros = Signal(width.bit_length(), name="zeros")
        ones = C(1, 1).replicate(width - bits)
        m.d.comb += zeros.eq(leading_zeros(m, Cat(ones, i.t)))
        return {"normal_t": (i.t << zeros)[:bits], "normal_e": i.e + (bits - 1) - zeros}
