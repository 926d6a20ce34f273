"""Code points to values and back, decoded from the fields.

A `Value` is a Fraction, or a float for the four things that a Fraction cannot hold: -0, Inf,
-Inf and NaN. So a Value that is a float is one of those, and +0 is ``Fraction(0)``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction
from functools import lru_cache

from lowprec.errors import LowprecError
from lowprec.spec.format import CodebookFormat, FloatFormat, Format, IntFormat, pow2

Value = Fraction | float

TABLE_BITS = 16


def exact(x: Fraction | float) -> Value:
    """`x`, an int, float or Fraction, as a Value."""
    if isinstance(x, Fraction):
        return x
    if isinstance(x, float) and (not math.isfinite(x) or (x == 0 and negative(x))):
        return x
    return Fraction(x)


def negative(x: Value) -> bool:
    """Whether the sign of `x` is minus, that of -0 included. NaN has no sign here."""
    return x < 0 or (isinstance(x, float) and x == 0 and math.copysign(1.0, x) < 0)


def finite(x: Value) -> bool:
    return isinstance(x, Fraction) or math.isfinite(x)


def identical(a: Value, b: Value) -> bool:
    """Equality that tells -0 from +0 and takes NaN for NaN."""
    if a != a or b != b:
        return a != a and b != b
    return a == b and negative(a) == negative(b)


def to_float(x: Value) -> float:
    """`x` as a Python float, exactly; LowprecError where float64 does not hold it."""
    number = _near(x)
    if not identical(exact(number), x):
        raise LowprecError(f"no float64: {show(x)}")
    return number


def show(x: Value) -> str:
    """A value for people: a float, or ``n * 2^e`` or a fraction where float64 does not hold it."""
    if identical(exact(_near(x)), x) or isinstance(x, float):
        return repr(float(x))
    n, d = x.numerator, x.denominator
    if d & (d - 1):
        return str(x)
    even = (n & -n).bit_length() - 1
    return f"{n >> even} * 2^{even - d.bit_length() + 1}"


def _near(x: Value) -> float:
    try:
        return float(x)
    except OverflowError:
        return math.inf


def value(code: int, fmt: Format) -> Value:
    """The value of code point `code`; NaN for each of the NaN codes.

    LowprecError where the format has no such code point. The most negative code of a symmetric
    integer format decodes, though no projection gives it.
    """
    size = fmt.code_points
    if not 0 <= code < size:
        raise LowprecError(f"{fmt.name}: no code point {code:#x}; expected 0 to {size - 1:#x}")
    match fmt:
        case FloatFormat():
            return _float_value(code, fmt)
        case IntFormat():
            wraps = fmt.signed and code >> (fmt.bits - 1)
            return (code - (1 << fmt.bits) if wraps else code) * pow2(fmt.exponent)
        case CodebookFormat():
            return exact(fmt.values[code])
    raise TypeError(f"no scalar format: {fmt!r}")


def _float_value(code: int, fmt: FloatFormat) -> Value:
    all_ones = (1 << (fmt.bits - fmt.signed)) - 1
    minus, magnitude_code = code > all_ones, code & all_ones
    if fmt.nan == "negative-zero" and minus and magnitude_code == 0:
        return math.nan
    # Special values stand at the top: count down from all ones.
    below_top = all_ones - magnitude_code
    if fmt.nan == "ieee":
        is_nan = below_top < (1 << (fmt.precision - 1)) - 1
        is_infinity = below_top == (1 << (fmt.precision - 1)) - 1
    else:
        is_nan = fmt.nan == "all-ones" and below_top == 0
        is_infinity = fmt.infinity and below_top == (1 if fmt.nan == "all-ones" else 0)
    if is_nan:
        return math.nan
    if is_infinity:
        return -math.inf if minus else math.inf
    magnitude = units(magnitude_code, fmt) * quantum(fmt)
    if minus:
        return -magnitude if magnitude else -0.0
    return magnitude


def quantum(fmt: FloatFormat) -> Fraction:
    """The unit in the last place of the lowest binade; every value is a multiple of it."""
    return pow2(fmt.emin - (fmt.precision - 1))


def units(magnitude_code: int, fmt: FloatFormat) -> int:
    """The magnitude of a code in units of `quantum`, rising with the code.

    Past the largest finite code it goes on as if the exponent field had no end and no code were
    special: that is the "unbounded exponent" of rounding.
    """
    field, trailing = divmod(magnitude_code, 1 << (fmt.precision - 1))
    significand = (1 << (fmt.precision - 1)) + trailing
    if fmt.subnormals:
        return significand << (field - 1) if field else trailing
    return 0 if fmt.zero and magnitude_code == 0 else significand << field


@lru_cache(maxsize=256)
def value_table(fmt: Format) -> tuple[Value, ...]:
    """All values by code point, of a format of at most 16 bits."""
    if fmt.bits > TABLE_BITS:
        raise LowprecError(f"{fmt.name}: {fmt.bits} bits; a table has at most {TABLE_BITS}")
    size = fmt.code_points
    return tuple(value(code, fmt) for code in range(size))


def code_of(x: Value, fmt: Format) -> int:
    """The code point of a value of the format; for NaN the one that projections give.

    LowprecError where `x` is not a value of the format.
    """
    code = None
    match fmt:
        case FloatFormat():
            code = _float_code(x, fmt)
        case IntFormat():
            code = _int_code(x, fmt)
        case CodebookFormat():
            code = _codebook_codes(fmt).get(_key(x))
    if code is None:
        raise LowprecError(f"{fmt.name}: {show(x)} is not among its values")
    return code


def _int_code(x: Value, fmt: IntFormat) -> int | None:
    k = None if isinstance(x, float) else x / pow2(fmt.exponent)
    if k is None or k.denominator != 1 or not fmt.min_integer <= k <= fmt.max_integer:
        return None
    return k.numerator & ((1 << fmt.bits) - 1)


@lru_cache(maxsize=256)
def _codebook_codes(fmt: CodebookFormat) -> dict[tuple[Value | None, bool], int]:
    return {_key(v): code for code, v in enumerate(value_table(fmt))}


def _key(x: Value) -> tuple[Value | None, bool]:
    return (x, negative(x)) if x == x else (None, False)


def _float_code(x: Value, fmt: FloatFormat) -> int | None:
    if x != x:
        return fmt.nan_code
    if negative(x) and not fmt.signed:
        return None
    sign = 1 << (fmt.bits - 1) if negative(x) else 0
    if not finite(x):
        return None if fmt.infinity_code is None else sign | fmt.infinity_code
    if x == 0 and sign and not fmt.has_negative_zero:
        return None
    steps = abs(Fraction(x)) / quantum(fmt)
    code = bisect_left(range(fmt.max_code + 1), int(steps), key=lambda c: units(c, fmt))
    return sign | code if code <= fmt.max_code and units(code, fmt) == steps else None
