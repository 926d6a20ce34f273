"""Checks of a format: against what its source says of it, and against itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from lowprec.errors import LowprecError
from lowprec.exact.round import project
from lowprec.exact.values import (
    TABLE_BITS,
    Value,
    code_of,
    exact,
    finite,
    identical,
    show,
    value,
    value_table,
)
from lowprec.spec.block import BlockFormat
from lowprec.spec.facts import Facts, ScalarFacts
from lowprec.spec.format import CodebookFormat, FloatFormat, Format, IntFormat
from lowprec.spec.projection import ROUNDINGS, Projection

# Problems of one format that are listed before the rest is only counted.
LISTED = 20
# Of a format too large to go through: binades looked at, at each end of each sign.
SAMPLED = 64
NEAR = range(-3, 3)
# Formats of more bits: about as many values are encoded and projected, in equal steps.
WHOLE_BITS, ENCODED, PROJECTED = 12, 1 << 12, 1 << 10
MODES: dict[str, Projection] = {
    name: Projection.model_validate({"rounding": name})
    for name in ROUNDINGS
    if name != "stochastic"
}


def check_facts(fmt: Format | BlockFormat, facts: Facts) -> list[str]:
    """One line for each fact that differs from what the parameters give; none if all agree.

    Of a block format, `max`, `min`, `emax` and `codes` are the element's. Figures are compared
    exactly: a fact is the float64 nearest to the derived value.
    """
    element = fmt.element if isinstance(fmt, BlockFormat) else fmt
    problems = _scalar_facts(element, facts, _derived(fmt), fmt.name)
    parts = fmt.parts if isinstance(fmt, BlockFormat) else {}
    for key, stated in facts.parts.items():
        where = f"{fmt.name}: parts.{key}"
        if key in parts:
            problems += _scalar_facts(parts[key], stated, _derived(parts[key]), where)
        else:
            known = f"one of {', '.join(parts)}" if parts else "none"
            problems.append(f"{where}: it has no such part; expected {known}")
    return problems


def _scalar_facts(
    fmt: Format, facts: ScalarFacts, derived: dict[str, Fraction], where: str
) -> list[str]:
    problems = []
    for fact, stated in facts.model_dump(exclude={"source", "note", "codes", "parts"}).items():
        if stated is None:
            continue
        if fact not in derived:
            problems.append(f"{where}: {fact}: stated {stated}, but it has none")
        elif not identical(exact(stated), _nearest_float(derived[fact])):
            problems.append(f"{where}: {fact}: stated {stated}, derived {show(derived[fact])}")
    for code, stated in facts.codes.items():
        try:
            found = value(int(code, 16), fmt)
        except LowprecError as error:
            problems.append(f"{where}: codes.{code}: stated {stated}, but {error}")
            continue
        if not identical(found, exact(stated)):
            problems.append(f"{where}: codes.{code}: stated {stated}, derived {show(found)}")
    return problems


def _derived(fmt: Format | BlockFormat) -> dict[str, Fraction]:
    element = fmt.element if isinstance(fmt, BlockFormat) else fmt
    derived = {"max": element.max_exact, "min": element.min_exact, "emax": Fraction(element.emax)}
    if isinstance(fmt, BlockFormat):
        derived["bits_per_element"] = Fraction(fmt.bits_per_element)
        if not isinstance(fmt.block, str):
            derived["elements_per_scale"] = Fraction(math.prod(fmt.block))
        return derived
    derived["bits_per_element"] = Fraction(fmt.bits)
    derived["min_positive"] = fmt.min_positive_exact
    if isinstance(fmt, FloatFormat):
        derived["min_normal"] = fmt.min_normal_exact
    return derived


def _nearest_float(x: Fraction) -> Fraction:
    try:
        return Fraction(float(x))
    except OverflowError:
        return x


def conformance(fmt: Format | BlockFormat) -> list[str]:
    """What contradicts itself in a format, one line each; nothing if it conforms.

    Encoding what decodes gives the code back, values rise with the code, the derived limits are
    the limits of the values, every rounding leaves a value alone and, between two neighbours,
    goes where it should. A format of at most 12 bits is gone through whole. Up to 16 bits all codes
    are decoded, some 4,000 encoded and 1,000 values projected; of a larger format there are the
    codes at changes of binade, without the neighbours. Of a block format, all its parts.
    """
    if isinstance(fmt, BlockFormat):
        return [line for part in dict.fromkeys(fmt.parts.values()) for line in conformance(part)]
    problems = [f"{fmt.name}: {line}" for check in CHECKS for line in check(fmt)]
    hidden = len(problems) - LISTED
    return problems if hidden <= 0 else [*problems[:LISTED], f"{fmt.name}: {hidden} more"]


def _codes(fmt: Format) -> list[int]:
    """Code points in rising order: all, or of a large format those around changes of binade."""
    if fmt.bits <= TABLE_BITS:
        return list(range(len(value_table(fmt))))
    size = 1 << fmt.bits
    binade = fmt.precision - 1 if isinstance(fmt, FloatFormat) else fmt.bits - 1
    borders = range(0, size, 1 << binade)
    middle = len(borders) // 2
    if middle > 2 * SAMPLED:
        ends = (borders[:SAMPLED], borders[-SAMPLED:])
        around = borders[middle - SAMPLED : middle + SAMPLED]
        return sorted({(b + k) % size for part in (*ends, around) for b in part for k in NEAR})
    return sorted({(b + k) % size for b in borders for k in NEAR})


@lru_cache(maxsize=16)
def _points(fmt: Format) -> dict[int, Value]:
    """The values of `_codes`."""
    return {code: value(code, fmt) for code in _codes(fmt)}


def _stride(count: int, most: int, fmt: Format) -> int:
    """Steps for about `most` of `count`. Odd, so that even and odd codes alternate."""
    return 1 if fmt.bits <= WHOLE_BITS else count // most | 1


def _round_trip(fmt: Format) -> Iterator[str]:
    points = list(_points(fmt).items())
    for code, x in points[:: _stride(len(points), ENCODED, fmt)]:
        if isinstance(fmt, IntFormat) and x < fmt.min_exact:
            continue  # the code that symmetric=true leaves out
        back = code_of(x, fmt)
        if (x == x and back != code) or (x != x and not identical(value(back, fmt), x)):
            yield f"{code:#x} decodes to {show(x)}, which encodes to {back:#x}"


def _limits(fmt: Format) -> Iterator[str]:
    values = [x for x in _points(fmt).values() if finite(x)]
    expected = {"max": fmt.max_exact, "min_positive": fmt.min_positive_exact}
    found = {"max": max(values), "min_positive": min(x for x in values if x > 0)}
    if not (isinstance(fmt, IntFormat) and fmt.symmetric):
        expected["min"], found["min"] = fmt.min_exact, min(values)
    for name, limit in expected.items():
        if found[name] != limit:
            yield f"{name} is {show(limit)}, but of the values it is {show(found[name])}"
    specials = {math.inf: fmt.has_infinity, math.nan: fmt.has_nan, -0.0: fmt.has_negative_zero}
    for special, has in specials.items():
        if has != any(identical(x, special) for x in _points(fmt).values() if isinstance(x, float)):
            yield f"{special}: has it {has}, but by the code points {not has}"


def _order(fmt: Format) -> Iterator[str]:
    """Values rise with the code, from the first of each sign; negative floats mirror that."""
    if not isinstance(fmt, FloatFormat | IntFormat):
        return
    points = _points(fmt)
    sign = 1 << (fmt.bits - 1) if fmt.signed else 1 << fmt.bits
    positive = [c for c in points if c < sign]
    rising = [c for c in points if c >= sign] if isinstance(fmt, IntFormat) else []
    for codes in (positive, rising):
        for low, high in pairwise(c for c in codes if points[c] == points[c]):
            if not points[low] < points[high]:
                yield f"{low:#x} and {high:#x} do not rise"
    if isinstance(fmt, FloatFormat) and fmt.signed:
        for code in positive:
            x, mirrored = points[code], value(sign | code, fmt)
            if x != 0 and not identical(mirrored, -x):
                yield f"{sign | code:#x} is {show(mirrored)}, no mirror of {show(x)}"


def _projections(fmt: Format) -> Iterator[str]:
    lowest, points = fmt.min_exact, _points(fmt).values()
    numbers = sorted({Fraction(x) for x in points if finite(x) and x >= lowest})
    stride = _stride(len(numbers), PROJECTED, fmt)
    for x in numbers[::stride]:
        moved = [mode.rounding for mode in MODES.values() if project(x, fmt, mode) != x]
        if moved:
            yield f"{show(x)} does not stay itself under {', '.join(moved)}"
    if fmt.bits > TABLE_BITS:
        return  # the sample's neighbours are no neighbours
    for low, high in list(pairwise(numbers))[::stride]:
        if not low < 0 < high:
            yield from _between(low, high, fmt)


def _between(low: Fraction, high: Fraction, fmt: Format) -> Iterator[str]:
    """A quarter, a half and three quarters of the way between neighbours of one sign."""
    inner, outer = (low, high) if low >= 0 else (high, low)
    # Of two codes in a row one is even; a codebook's say nothing of its ranks.
    evens, odds = {low, high}, {low, high}
    if not isinstance(fmt, CodebookFormat):
        even_below = code_of(low, fmt) % 2 == 0
        evens, odds = ({low}, {high}) if even_below else ({high}, {low})
    half = (low + high) / 2
    expected = [
        ((low + half) / 2, "nearest-even", {low}),
        ((half + high) / 2, "nearest-even", {high}),
        (half, "nearest-even", evens),
        (half, "to-odd", odds),
        (half, "nearest-away", {outer}),
        (half, "toward-zero", {inner}),
        (half, "up", {high}),
        (half, "down", {low}),
    ]
    for x, rounding, answers in expected:
        found = project(x, fmt, MODES[rounding])
        if found not in answers:
            names = " or ".join(map(show, sorted(answers)))
            yield f"{show(x)} gives {show(found)} under {rounding}, expected {names}"


CHECKS: tuple[Callable[[Format], Iterator[str]], ...] = (_round_trip, _limits, _order, _projections)
