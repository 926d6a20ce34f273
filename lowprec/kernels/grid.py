"""What a projection onto a float or integer format is made of, as numbers.

Everything that formats, roundings and saturations differ in is here, computed once from the spec
in exact arithmetic; `project` in round.py has no branch per format.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from lowprec.errors import LowprecError
from lowprec.kernels.word import Word
from lowprec.spec.format import CodebookFormat, FloatFormat, Format, IntFormat, pow2
from lowprec.spec.projection import Projection

# Of an integer format: more than any dtype has, so that its quantum is the step everywhere.
UNBOUNDED = 1 << 20


@dataclass(frozen=True)
class Ends:
    """What becomes of the ends, as (positive, negative) bits of the dtype, sign included."""

    bound: tuple[int, int]  # patterns: a rounded magnitude above it overflows
    overflow: tuple[int, int]
    infinity: tuple[int, int]
    zero: tuple[int, int]
    clamps: bool  # both signs saturate at the same bound, Inf too, and zeros keep their sign


@dataclass(frozen=True)
class Nearest:
    """How nearest-even rounds without a look at what is discarded.

    Magnitudes with patterns below `fixed` are multiples of one quantum: adding and subtracting
    `magic`, whose unit in the last place that is, rounds them. The others drop `shift` bits, 0 or
    more: `half` and the lowest kept bit are added first, and the carry is the change of binade.
    """

    magic: float
    fixed: int
    shift: int
    half: int
    kept: int


@dataclass(frozen=True)
class Grid:
    """The values of a format in the bits of `word`, and a projection onto them.

    Around magnitude x the values are multiples of 2^max(floor(log2 x) - (precision - 1), quantum).
    Below `least`, the pattern of the smallest positive value, there is nothing but zero: there
    `half` is the largest pattern at or below half of it, and `half_is_tie` says that it is half.
    """

    word: Word
    precision: int
    quantum: int
    least: int
    half: int
    half_is_tie: bool
    # The smallest positive value is significand * 2^exponent.
    least_significand: int
    least_exponent: int
    has_zero: bool
    # With precision 1, the code of 2^e is e + code_bias; else the significand decides its parity.
    code_bias: int | None
    ends: Ends
    rounding: str
    random_bits: int | None
    # Of nearest-even, where the format has it so.
    nearest: Nearest | None


@lru_cache(maxsize=1024)
def grid_of(fmt: Format, projection: Projection, word: Word) -> Grid:
    """The grid of a float or integer format whose values `word` holds."""
    if isinstance(fmt, FloatFormat):
        precision, quantum = fmt.precision, fmt.emin - (fmt.precision - 1)
        least, has_zero = fmt.min_positive_exact, fmt.zero
        code_bias = fmt.bias if fmt.precision == 1 else None
    elif isinstance(fmt, IntFormat):
        precision, quantum, code_bias = UNBOUNDED, fmt.exponent, None
        least, has_zero = pow2(fmt.exponent), True
    else:
        raise TypeError(f"no grid: {fmt!r}")
    half, half_is_tie = word.floor(least / 2)
    significand, exponent = _odd_part(least)
    random_bits = projection.bits
    if random_bits is not None and significand.bit_length() + random_bits > 62:
        raise LowprecError(
            f"{fmt.name}: stochastic rounding below its smallest value takes at most "
            f"{62 - significand.bit_length()} random bits; got {random_bits}"
        )
    return Grid(
        word,
        precision,
        quantum,
        word.pattern(least),
        half,
        half_is_tie,
        significand,
        exponent,
        has_zero,
        code_bias,
        ends_of(fmt, projection, word),
        projection.rounding,
        random_bits,
        _nearest(fmt, projection, word) if (significand, exponent) == (1, quantum) else None,
    )


def _nearest(fmt: Format, projection: Projection, word: Word) -> Nearest | None:
    """None but for formats of precision 2 or more with a zero and subnormals, well in range."""
    if projection.rounding != "nearest-even" or isinstance(fmt, CodebookFormat):
        return None
    if isinstance(fmt, FloatFormat):
        precision, quantum = fmt.precision, fmt.emin - (fmt.precision - 1)
        shift = word.trailing + 1 - precision
    else:
        precision, quantum, shift = word.trailing + 1, fmt.exponent, 0  # type: ignore[attr-defined]
    fixed = quantum + precision - 1
    if not (shift < word.trailing and word.emin <= fixed <= word.bias):
        return None
    if not word.emin <= quantum + word.trailing <= word.bias:
        return None
    if shift == 0 and max(abs(fmt.max_exact), abs(fmt.min_exact)) >= pow2(fixed):
        return None
    half = (1 << shift >> 1) - 1 if shift else 0
    magic = float(pow2(quantum + word.trailing))
    return Nearest(magic, word.pattern(pow2(fixed)), shift, half, -(1 << shift))


def _odd_part(x: Fraction) -> tuple[int, int]:
    twos = (x.numerator & -x.numerator).bit_length() - x.denominator.bit_length()
    return int(x / pow2(twos)), twos


def ends_of(fmt: Format, projection: Projection, word: Word) -> Ends:
    """`Projection`'s docstring about zero, Inf and overflow, for both signs."""
    pairs = [_ends(fmt, projection, word, minus) for minus in (False, True)]
    bound, overflow, infinity, zero = zip(*pairs, strict=True)
    clamps = overflow == infinity == (bound[0], bound[0] | word.sign) and zero == (0, word.sign)
    return Ends(bound, overflow, infinity, zero, clamps and bound[0] == bound[1])


def _ends(fmt: Format, projection: Projection, word: Word, minus: bool) -> tuple[int, ...]:
    limit = fmt.min_exact if minus else fmt.max_exact
    # The limit of negative numbers is not negative: there are no negative values.
    wrong_sign = minus and limit >= 0
    infinite = _infinite(fmt, minus, limit)
    overflow = infinity = limit
    if projection.saturation == "OvfInf":
        infinity = infinite
        overflow = limit if _stays(fmt, projection, minus) and not wrong_sign else infinite
    elif projection.saturation == "SatPropagate" and abs(infinite) == float("inf"):
        infinity = infinite
    bound = 0 if wrong_sign else word.pattern(abs(limit))
    zero = _zero(fmt, projection, minus)
    return bound, *(word.bits(end) for end in (overflow, infinity, zero))


def _infinite(fmt: Format, minus: bool, limit: Fraction) -> Fraction | float:
    """Inf where the format has it, else NaN, else the limit."""
    infinity = float("-inf") if minus else float("inf")
    if isinstance(fmt, CodebookFormat):
        has = infinity in fmt.values
    else:
        has = fmt.has_infinity and not (minus and limit >= 0)
    if has:
        return infinity
    return float("nan") if fmt.has_nan else limit


def _stays(fmt: Format, projection: Projection, minus: bool) -> bool:
    """Whether rounding leaves what is beyond the limit at the limit rather than going on."""
    if projection.rounding == "to-odd":
        return _limit_is_odd(fmt, minus)
    return projection.rounding in ("toward-zero", "up" if minus else "down")


def _limit_is_odd(fmt: Format, minus: bool) -> bool:
    if isinstance(fmt, FloatFormat):
        return fmt.max_code % 2 == 1
    if isinstance(fmt, IntFormat):
        return (fmt.min_integer if minus else fmt.max_integer) % 2 == 1
    assert isinstance(fmt, CodebookFormat)
    finite = {abs(v) for v in fmt.values if v and abs(v) < float("inf") and (v < 0) == minus}
    return len(finite) % 2 == 1


def _zero(fmt: Format, projection: Projection, minus: bool) -> Fraction | float:
    """What 0 becomes, and a number that rounds to it."""
    if isinstance(fmt, FloatFormat):
        has_zero, smallest = fmt.zero, fmt.min_positive_exact
    else:
        has_zero, smallest = fmt.min_exact <= 0, fmt.min_exact
    if has_zero:
        return -0.0 if minus and fmt.has_negative_zero else Fraction(0)
    if projection.saturation == "OvfInf" and fmt.has_nan:
        return float("nan")
    signed = isinstance(fmt, FloatFormat) and fmt.signed
    return -smallest if minus and signed else smallest
