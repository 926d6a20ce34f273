"""Number formats: which values exist. Scalar formats (float, int, codebook) and block formats.

A scalar format maps code points to values; everything else is derived from its parameters, so
that a new format is a file and no code. Terms follow IEEE 754 and P3109: *precision* counts the
implicit bit, *bias* is the exponent bias, a *code point* is the unsigned integer of `bits` bits.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from lowprec.spec.base import Spec

MAX_BITS = 64
MAX_BIAS = 1 << 16


class Format(Spec):
    """What every scalar format has. Construct `FloatFormat`, `IntFormat` or `CodebookFormat`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80)]
    bits: Annotated[int, Field(ge=1, le=MAX_BITS)]

    @property
    def max_exact(self) -> Fraction:
        """Largest finite value."""
        raise NotImplementedError

    @property
    def min_exact(self) -> Fraction:
        """Most negative finite value; the smallest value of a format that has no negative ones."""
        raise NotImplementedError

    @property
    def max(self) -> float | Fraction:
        """Largest finite value: a float, or a Fraction where float64 cannot hold it."""
        return _number(self.max_exact)

    @property
    def min(self) -> float | Fraction:
        """Most negative finite value, typed as `max`."""
        return _number(self.min_exact)

    @property
    def min_positive_exact(self) -> Fraction:
        """Smallest positive value: subnormal where the format has those."""
        raise NotImplementedError

    @property
    def emax(self) -> int:
        """floor(log2(max)): the exponent that the OCP scale rules subtract."""
        return floor_log2(self.max_exact)

    @property
    def code_points(self) -> int:
        """How many code points there are, from 0."""
        return 1 << self.bits

    @property
    def has_infinity(self) -> bool:
        return False

    @property
    def has_nan(self) -> bool:
        return False

    @property
    def has_negative_zero(self) -> bool:
        return False

    @property
    def storage_bits(self) -> int:
        """Bits of one stored element (the same word as a block format's for whole tensors)."""
        return self.bits


class FloatFormat(Format):
    """A binary float: sign bit (if signed), exponent field, trailing significand, highest first.

    Special values take the topmost code points of each sign, in this order: first `nan`, then,
    if `infinity`, one infinity below it. The finite values are the rest, so that the magnitude
    code ``max_code`` is the largest finite one.

    nan: "none"; "ieee" (exponent all ones, trailing significand not zero); "all-ones" (the one
    magnitude code of all ones); "negative-zero" (the code of -0, which then does not exist).
    subnormals=False: exponent field 0 is one more normal binade, and code 0 is +0 only if `zero`
    (DLFloat16: true; E8M0: false, its code 0 is 2^-bias).
    """

    kind: Literal["float"]
    precision: Annotated[int, Field(ge=1, le=53)]
    bias: Annotated[int, Field(ge=-MAX_BIAS, le=MAX_BIAS)]
    signed: bool = True
    subnormals: bool = True
    zero: bool = True
    infinity: bool = False
    nan: Literal["none", "ieee", "all-ones", "negative-zero"] = "none"

    @model_validator(mode="after")
    def _possible(self) -> FloatFormat:
        if not 1 <= self.exponent_bits <= 16:
            raise ValueError(
                f"bits {self.bits}, precision {self.precision} and signed={self.signed} leave "
                f"{self.exponent_bits} exponent bits; expected 1 to 16"
            )
        if self.subnormals and not self.zero:
            raise ValueError("subnormals=true needs zero=true: code 0 is then zero")
        if self.nan == "ieee" and not (self.infinity and self.precision >= 2):
            raise ValueError("nan='ieee' needs infinity=true and precision of 2 or more")
        if self.nan == "negative-zero" and not (self.signed and self.zero):
            raise ValueError("nan='negative-zero' needs signed=true and zero=true")
        if self.max_code < (1 if self.zero else 0):
            raise ValueError("the special values leave no finite value but zero")
        return self

    @property
    def exponent_bits(self) -> int:
        return self.bits - self.precision + (0 if self.signed else 1)

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal binade."""
        return (1 if self.subnormals else 0) - self.bias

    @property
    def max_code(self) -> int:
        """Magnitude code (sign bit clear) of the largest finite value."""
        nans = {"none": 0, "negative-zero": 0, "all-ones": 1}.get(
            self.nan, (1 << (self.precision - 1)) - 1
        )
        return (1 << (self.bits - self.signed)) - 1 - nans - self.infinity

    @property
    def infinity_code(self) -> int | None:
        """Code point of +Inf, or None."""
        return self.max_code + 1 if self.infinity else None

    @property
    def nan_code(self) -> int | None:
        """Code point of the NaN that a projection gives: the quiet one under "ieee", or None.

        Other NaN code points ("ieee": any trailing significand; the sign-bit twins) decode to
        NaN too but are never produced.
        """
        if self.nan == "ieee":
            return self.max_code + 1 + (1 << (self.precision - 2))
        if self.nan == "all-ones":
            return self.max_code + 1 + self.infinity
        return 1 << (self.bits - 1) if self.nan == "negative-zero" else None

    @property
    def max_exact(self) -> Fraction:
        field, trailing = divmod(self.max_code, 1 << (self.precision - 1))
        if field == 0 and self.subnormals:
            return trailing * self.min_positive_exact
        significand = (1 << (self.precision - 1)) + trailing
        return significand * pow2(field - self.bias - (self.precision - 1))

    @property
    def min_exact(self) -> Fraction:
        if self.signed:
            return -self.max_exact
        return Fraction(0) if self.zero else self.min_positive_exact

    @property
    def min_normal_exact(self) -> Fraction:
        """Smallest positive normal value."""
        if not self.subnormals and self.zero:
            return self.min_positive_exact
        return pow2(self.emin)

    @property
    def min_positive_exact(self) -> Fraction:
        step = pow2(self.emin - (self.precision - 1))
        if self.subnormals:
            return step
        if not self.zero:
            return pow2(self.emin)
        # Code 0 is zero, so code 1 is the smallest; with no trailing bits it is the next binade.
        return pow2(self.emin) + step if self.precision > 1 else pow2(self.emin + 1)

    @property
    def has_infinity(self) -> bool:
        return self.infinity

    @property
    def has_nan(self) -> bool:
        return self.nan != "none"

    @property
    def has_negative_zero(self) -> bool:
        return self.signed and self.zero and self.nan != "negative-zero"


class IntFormat(Format):
    """Integers k, two's complement if signed, standing for the fixed-point values k * 2^exponent.

    symmetric=True leaves out the most negative code: a projection never gives it.
    """

    kind: Literal["int"]
    signed: bool = True
    exponent: Annotated[int, Field(ge=-1074, le=1023)] = 0
    symmetric: bool = False

    @model_validator(mode="after")
    def _possible(self) -> IntFormat:
        if self.symmetric and not self.signed:
            raise ValueError("symmetric=true needs signed=true")
        if self.signed and self.bits < 2:
            raise ValueError("a signed integer needs 2 bits or more")
        return self

    @property
    def max_integer(self) -> int:
        return (1 << (self.bits - self.signed)) - 1

    @property
    def min_integer(self) -> int:
        if not self.signed:
            return 0
        return -self.max_integer if self.symmetric else -self.max_integer - 1

    @property
    def min_positive_exact(self) -> Fraction:
        return pow2(self.exponent)

    @property
    def max_exact(self) -> Fraction:
        return self.max_integer * pow2(self.exponent)

    @property
    def min_exact(self) -> Fraction:
        return self.min_integer * pow2(self.exponent)


class CodebookFormat(Format):
    """Explicit values: code point i stands for ``values[i]`` (a float64; at most one NaN).

    Holds anything without a formula: NF4, tapered formats, what a search invents. Two code
    points may not share a value, +0 and -0 being different ones.
    """

    kind: Literal["codebook"]
    values: Annotated[tuple[float, ...], Field(min_length=2, max_length=1 << 16)]

    @field_validator("values")
    @classmethod
    def _one_nan(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        # One NaN object: tuples compare it by identity, and equal formats must be equal.
        return tuple(math.nan if v != v else v for v in values)

    @model_validator(mode="after")
    def _possible(self) -> CodebookFormat:
        if self.bits > 16 or len(self.values) > 1 << self.bits:
            raise ValueError(f"{len(self.values)} values do not fit {self.bits} bits (at most 16)")
        keys = {(math.copysign(1, v), v) if v == v else "nan" for v in self.values}
        if len(keys) != len(self.values):
            raise ValueError("two code points have the same value")
        if not any(math.isfinite(v) and v > 0 for v in self.values):
            raise ValueError("expected at least one finite positive value")
        if (-1, 0) in keys and (1, 0) not in keys:
            raise ValueError("-0.0 needs 0.0 beside it")
        return self

    @property
    def code_points(self) -> int:
        return len(self.values)

    def __hash__(self) -> int:
        # Formats are keys of caches; 65,536 values would be hashed at every look-up.
        return hash((self.name, self.bits, len(self.values)))

    @property
    def min_positive_exact(self) -> Fraction:
        return Fraction(min(v for v in self.values if 0 < v < math.inf))

    @property
    def max_exact(self) -> Fraction:
        return Fraction(max(v for v in self.values if math.isfinite(v)))

    @property
    def min_exact(self) -> Fraction:
        return Fraction(min(v for v in self.values if math.isfinite(v)))

    @property
    def has_infinity(self) -> bool:
        return math.inf in self.values

    @property
    def has_nan(self) -> bool:
        return any(v != v for v in self.values)

    @property
    def has_negative_zero(self) -> bool:
        return any(v == 0 and math.copysign(1, v) < 0 for v in self.values)


AnyFormat = Annotated[FloatFormat | IntFormat | CodebookFormat, Field(discriminator="kind")]


def pow2(exponent: int) -> Fraction:
    """2**exponent, exact."""
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def floor_log2(x: Fraction) -> int:
    """floor(log2(x)) of a positive Fraction, by comparing integers."""
    guess = x.numerator.bit_length() - x.denominator.bit_length()
    return guess if x >= pow2(guess) else guess - 1


def _number(x: Fraction) -> float | Fraction:
    try:
        number = float(x)
    except OverflowError:
        return x
    return number if Fraction(number) == x else x
