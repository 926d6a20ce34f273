"""Projection of exact numbers onto a format, by bisection over its sorted values."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from lowprec.errors import LowprecError
from lowprec.exact.values import Value, code_of, exact, finite, negative, quantum, units
from lowprec.spec.format import CodebookFormat, FloatFormat, Format, IntFormat, pow2
from lowprec.spec.projection import Projection

NEAREST = Projection()


class Point(NamedTuple):
    """A value that rounding may give, in units of the grid, and whether its code is odd (of a
    codebook: its rank)."""

    units: int
    odd: bool


@dataclass(frozen=True)
class Grid:
    """What a projection asks of a format. All values are integer multiples of `unit`; the range
    from `lowest` to `largest` is in those, too."""

    unit: Fraction
    lowest: int
    largest: int
    zero: bool
    negative_zero: bool
    infinity: bool
    negative_infinity: bool
    nan: bool


@lru_cache(maxsize=256)
def _grid(fmt: Format) -> Grid:
    zero = True
    negative_infinity = False
    match fmt:
        case FloatFormat():
            unit = quantum(fmt)
            zero = fmt.zero
            negative_infinity = fmt.infinity and fmt.signed
        case IntFormat():
            unit = pow2(fmt.exponent)
        case CodebookFormat():
            values = [Fraction(v) for v in fmt.values if math.isfinite(v)]
            unit = Fraction(1, math.lcm(*(v.denominator for v in values)))
            zero = 0 in fmt.values
            negative_infinity = -math.inf in fmt.values
        case _:
            raise TypeError(f"no scalar format: {fmt!r}")
    return Grid(
        unit,
        int(fmt.min_exact / unit),
        int(fmt.max_exact / unit),
        zero,
        fmt.has_negative_zero,
        fmt.has_infinity,
        negative_infinity,
        fmt.has_nan,
    )


def project(
    x: Fraction | float,
    fmt: Format,
    projection: Projection = NEAREST,
    random: int | None = None,
) -> Value:
    """The value of `fmt` that `projection` gives for `x`, exactly as its docstring says.

    random: for stochastic rounding, an integer of `projection.bits` bits. NaN gives NaN, also in
    a format without one.

    A codebook does not say how it goes on: beyond its largest and its smallest value the last gap
    is repeated once, so that OvfInf overflows where rounding gives that next value. With values
    of both signs but no zero, 0 is a number like others between its two neighbours, and
    toward-zero takes the smaller magnitude of these, of equal ones the positive value.
    """
    _check_random(projection, random)
    x = exact(x)
    if x != x:
        return math.nan
    minus = negative(x)
    grid = _grid(fmt)
    if not finite(x):
        return _infinity(minus, grid, projection)
    x = Fraction(0) if isinstance(x, float) else x
    if x == 0 and (grid.zero or isinstance(fmt, FloatFormat) or grid.lowest > 0):
        return _zero(minus, fmt, projection)
    # x is n / d units, so that all that follows is between integers.
    n, d = x.numerator * grid.unit.denominator, x.denominator * grid.unit.numerator
    rounded = _choose(n, d, _neighbours(n, d, fmt), projection, random)
    if not grid.lowest <= rounded.units <= grid.largest:
        return _overflow(minus, fmt, projection)
    return rounded.units * grid.unit if rounded.units else _zero(minus, fmt, projection)


def encode(
    x: Fraction | float,
    fmt: Format,
    projection: Projection = NEAREST,
    random: int | None = None,
) -> int:
    """The code point of `project(...)`; LowprecError for NaN in a format without NaN."""
    y = project(x, fmt, projection, random)
    if y != y and not _grid(fmt).nan:
        raise LowprecError(f"{fmt.name}: NaN has no code point")
    return code_of(y, fmt)


def _check_random(projection: Projection, random: int | None) -> None:
    if (projection.bits is None) != (random is None):
        raise LowprecError("random bits belong to stochastic rounding, and it needs them")
    if projection.bits is not None and random is not None and random >> projection.bits != 0:
        raise LowprecError(f"random {random}: expected {projection.bits} bits")


# Neighbours: the values at or below and at or above n / d units, with the exponent unbounded.


def _neighbours(n: int, d: int, fmt: Format) -> tuple[Point, Point]:
    match fmt:
        case IntFormat():
            low, high = n // d, -(-n // d)
            return Point(low, low % 2 == 1), Point(high, high % 2 == 1)
        case CodebookFormat():
            points = _codebook_points(fmt)
            if points[0].units < 0:
                return _around(n, d, points)
            low_point, high_point = _around(abs(n), d, points)
        case FloatFormat():
            low_point, high_point = _float_neighbours(abs(n), d, fmt)
        case _:
            raise TypeError(f"no scalar format: {fmt!r}")
    return (low_point, high_point) if n >= 0 else (_minus(high_point), _minus(low_point))


def _minus(point: Point) -> Point:
    return Point(-point.units, point.odd)


def _float_neighbours(n: int, d: int, fmt: FloatFormat) -> tuple[Point, Point]:
    """Of a magnitude. The last code is one past the largest finite one: what lies beyond it
    overflows however it is rounded."""
    last = fmt.max_code + 1
    code = bisect_right(range(last + 1), n // d, key=lambda c: units(c, fmt)) - 1
    low = Point(units(max(code, 0), fmt), code > 0 and code % 2 == 1)
    if code < 0 or code == last or low.units * d == n:
        return low, low
    return low, Point(units(code + 1, fmt), not low.odd)


@lru_cache(maxsize=256)
def _codebook_points(fmt: CodebookFormat) -> tuple[Point, ...]:
    """The finite values in rising order, with the repeated gaps at the ends where x can go."""
    unit = _grid(fmt).unit
    values = sorted({int(Fraction(v) / unit) for v in fmt.values if math.isfinite(v)})
    gaps = [high - low for low, high in pairwise(values)] or values
    ends = [values[0] - gaps[0]] if values[0] < 0 else []
    values = [*ends, *values, values[-1] + gaps[-1]]
    positive = [v for v in values if v > 0]
    below = [v for v in reversed(values) if v < 0]
    ranks = {v: rank for side in (positive, below) for rank, v in enumerate(side, 1)}
    return tuple(Point(v, ranks.get(v, 0) % 2 == 1) for v in values)


def _around(n: int, d: int, points: tuple[Point, ...]) -> tuple[Point, Point]:
    at = bisect_right(points, n // d, key=lambda point: point.units) - 1
    if at < 0 or at == len(points) - 1 or points[at].units * d == n:
        return (points[max(at, 0)],) * 2
    return points[at], points[at + 1]


def _choose(
    n: int, d: int, neighbours: tuple[Point, Point], projection: Projection, random: int | None
) -> Point:
    low, high = neighbours
    if low.units == high.units:
        return low
    toward_zero, away = (low, high) if n >= 0 else (high, low)
    match projection.rounding:
        case "toward-zero":
            return min(high, low, key=lambda point: abs(point.units))
        case "up":
            return high
        case "down":
            return low
        case "to-odd":
            return low if low.odd and not high.odd else high
        case "stochastic" if projection.bits is not None and random is not None:
            discarded = abs(n - toward_zero.units * d) << projection.bits
            fraction = discarded // ((high.units - low.units) * d)
            return away if fraction + random >> projection.bits else toward_zero
    side = 2 * n - (low.units + high.units) * d
    if side:
        return high if side > 0 else low
    if projection.rounding == "nearest-away":
        return away
    return low if high.odd and not low.odd else high


# Ends: what becomes of zero, Inf and values beyond the range.


def _zero(minus: bool, fmt: Format, projection: Projection) -> Value:
    grid = _grid(fmt)
    if grid.zero:
        return -0.0 if minus and grid.negative_zero else Fraction(0)
    if projection.saturation == "OvfInf" and grid.nan:
        return math.nan
    if not isinstance(fmt, FloatFormat):
        return grid.lowest * grid.unit
    return -fmt.min_positive_exact if minus and fmt.signed else fmt.min_positive_exact


def _infinity(minus: bool, grid: Grid, projection: Projection) -> Value:
    exists = grid.negative_infinity if minus else grid.infinity
    if projection.saturation == "OvfInf" or (projection.saturation == "SatPropagate" and exists):
        return _infinite(minus, grid)
    return _limit(minus, grid)


def _overflow(minus: bool, fmt: Format, projection: Projection) -> Value:
    """For a finite value that rounds beyond the range; negative ones of unsigned formats too."""
    grid = _grid(fmt)
    if projection.saturation != "OvfInf":
        return _limit(minus, grid)
    wrong_sign = minus and grid.lowest >= 0
    last = _neighbours(grid.lowest if minus else grid.largest, 1, fmt)[0]
    stays = (
        projection.rounding == "toward-zero"
        or projection.rounding == ("up" if minus else "down")
        or (projection.rounding == "to-odd" and last.odd)
    )
    return _limit(minus, grid) if stays and not wrong_sign else _infinite(minus, grid)


def _infinite(minus: bool, grid: Grid) -> Value:
    """Inf where the format has it, else NaN, else the nearest finite value."""
    if grid.negative_infinity if minus else grid.infinity:
        return -math.inf if minus else math.inf
    return math.nan if grid.nan else _limit(minus, grid)


def _limit(minus: bool, grid: Grid) -> Fraction:
    return (grid.lowest if minus else grid.largest) * grid.unit
