"""Numbers inside a unit: sign, significand, exponent and flags, with their widths."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Value


@dataclass(frozen=True)
class Fields:
    """What the fields of a number hold: (-1)^sign * t * 2^(e + low - fraction).

    bits: of t. low: the exponent that e = 0 stands for, by which the number is aligned. fraction:
    bits of t behind the point. span: the largest e of a finite number.
    """

    bits: int
    fraction: int
    low: int
    span: int
    signed: bool = True
    nan: bool = False
    infinity: bool = False

    @property
    def e_bits(self) -> int:
        return max(1, self.span.bit_length())

    @property
    def unit(self) -> int:
        """The exponent of the last bit of t where e = 0."""
        return self.low - self.fraction

    @property
    def special(self) -> bool:
        return self.nan or self.infinity

    def __mul__(self, other: Fields) -> Fields:
        """Of an exact product; its exponent is the sum of the exponents, its t in [0, 4)."""
        return Fields(
            bits=self.bits + other.bits if min(self.bits, other.bits) > 1 else self._one(other),
            fraction=self.fraction + other.fraction,
            low=self.low + other.low,
            span=self.span + other.span,
            signed=self.signed or other.signed,
            nan=self.special or other.special,
            infinity=self.infinity or other.infinity,
        )

    def _one(self, other: Fields) -> int:
        """Bits of a product with a significand of one bit: no multiplier at all."""
        return max(self.bits, other.bits)


@dataclass(frozen=True)
class Number:
    """Signals of a number. Its t is 0 if and only if it is zero; with nan or inf set, t and e are
    anything."""

    fields: Fields
    sign: Value
    t: Value
    e: Value
    nan: Value
    inf: Value

    @property
    def nonzero(self) -> Value:
        return self.t.any()
