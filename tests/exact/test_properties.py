"""Laws of projections, over formats that nobody has written down: any width, bias and ends."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from lowprec.exact import (
    code_of,
    conformance,
    encode,
    exact,
    identical,
    project,
    value,
    value_table,
)
from lowprec.spec import CodebookFormat, FloatFormat, Format, IntFormat, Projection
from lowprec.spec.format import pow2

DETERMINISTIC = ("nearest-even", "nearest-away", "toward-zero", "up", "down", "to-odd")


@st.composite
def floats(draw: st.DrawFn) -> FloatFormat:
    """Every parameter at will; what cannot be is drawn anew."""
    signed, zero = draw(st.booleans()), draw(st.sampled_from([True, True, False]))
    exponent_bits = draw(st.integers(1, 5))
    precision = draw(st.integers(1, 10 - exponent_bits - signed + 1))
    try:
        return FloatFormat(
            name="drawn",
            kind="float",
            bits=exponent_bits + precision - 1 + signed,
            precision=precision,
            bias=draw(st.integers(-20, 40)),
            signed=signed,
            zero=zero,
            subnormals=zero and draw(st.booleans()),
            infinity=draw(st.booleans()),
            nan=draw(st.sampled_from(["none", "ieee", "all-ones", "negative-zero"])),
        )
    except ValidationError:
        assume(False)
        raise


@st.composite
def integers(draw: st.DrawFn) -> IntFormat:
    signed = draw(st.booleans())
    return IntFormat(
        name="drawn",
        kind="int",
        bits=draw(st.integers(1 + signed, 8)),
        signed=signed,
        exponent=draw(st.integers(-10, 5)),
        symmetric=signed and draw(st.booleans()),
    )


@st.composite
def codebooks(draw: st.DrawFn) -> CodebookFormat:
    number = st.integers(-60, 60).map(lambda n: n / 4) | st.sampled_from([math.inf, -math.inf])
    values = draw(st.lists(number, min_size=1, max_size=15, unique=True))
    assume(any(0 < v < math.inf for v in values))
    extra = [math.nan] if draw(st.booleans()) or len(values) == 1 else []
    negative_zero = [-0.0] if 0.0 in values and draw(st.booleans()) else []
    return CodebookFormat(
        name="drawn", kind="codebook", bits=5, values=(*values, *extra, *negative_zero)
    )


FORMATS = floats() | integers() | codebooks()


@st.composite
def cases(draw: st.DrawFn, formats: st.SearchStrategy[Format] = FORMATS) -> tuple[Format, Fraction]:
    """A format and a number near its values: on them, between them, off by little, or far out."""
    fmt = draw(formats)
    values = sorted({Fraction(v) for v in value_table(fmt) if math.isfinite(v)})
    i = draw(st.integers(0, len(values) - 1))
    low, high = values[i], values[min(i + 1, len(values) - 1)]
    x = low + (high - low) * Fraction(draw(st.integers(0, 16)), 16)
    nudge = draw(st.sampled_from([0, 0, 1, -1])) * pow2(draw(st.integers(-80, 10)))
    return fmt, x * draw(st.sampled_from([1, 1, 1, -1, 3])) + nudge


def mode(rounding: str, saturation: str = "SatFinite") -> Projection:
    return Projection.model_validate({"rounding": rounding, "saturation": saturation})


def reachable(fmt: Format) -> list[Fraction]:
    """The finite values that projections can give, in order."""
    values = {Fraction(v) for v in value_table(fmt) if math.isfinite(v)}
    return sorted(v for v in values if v >= fmt.min_exact)


def crosses_no_zero(fmt: Format, x: Fraction) -> bool:
    """Whether x lies where a float without zero keeps signs apart instead of rounding."""
    return isinstance(fmt, FloatFormat) and not fmt.zero and abs(x) < fmt.min_positive_exact


@given(FORMATS)
@settings(max_examples=40)
def test_formats_conform(fmt: Format) -> None:
    assert conformance(fmt) == []


@given(cases())
@settings(max_examples=250)
def test_nearest_is_the_nearest_of_all_values(case: tuple[Format, Fraction]) -> None:
    fmt, x = case
    assume(not crosses_no_zero(fmt, x))
    closest = min(abs(v - x) for v in reachable(fmt))
    for rounding in ("nearest-even", "nearest-away"):
        assert abs(Fraction(project(x, fmt, mode(rounding))) - x) == closest


@given(cases())
@settings(max_examples=250)
def test_directed_roundings_are_the_extremes_of_all_values(case: tuple[Format, Fraction]) -> None:
    fmt, x = case
    assume(not crosses_no_zero(fmt, x))
    values = reachable(fmt)
    below = max((v for v in values if v <= x), default=values[0])
    above = min((v for v in values if v >= x), default=values[-1])
    assert project(x, fmt, mode("down")) == below
    assert project(x, fmt, mode("up")) == above
    assert project(x, fmt, mode("toward-zero")) == min(above, below, key=abs)
    assert project(x, fmt, mode("to-odd")) in (below, above)


@given(cases())
@settings(max_examples=150)
def test_to_odd_is_odd_unless_exact_or_at_the_end(case: tuple[Format, Fraction]) -> None:
    fmt, x = case
    assume(not isinstance(fmt, CodebookFormat))
    found = project(x, fmt, mode("to-odd"))
    if found != x and fmt.min_exact < x < fmt.max_exact and not crosses_no_zero(fmt, x):
        assert code_of(found, fmt) % 2 == 1


@given(FORMATS, st.sampled_from(DETERMINISTIC), st.lists(st.integers(-99, 1099), min_size=2))
@settings(max_examples=150)
def test_projection_is_monotone(fmt: Format, rounding: str, places: list[int]) -> None:
    width = fmt.max_exact - fmt.min_exact or Fraction(1)
    numbers = [fmt.min_exact + width * Fraction(place, 1000) for place in sorted(places)]
    found = [Fraction(project(x, fmt, mode(rounding))) for x in numbers]
    assert found == sorted(found)


@given(cases(), st.sampled_from(DETERMINISTIC))
@settings(max_examples=150)
def test_projection_is_idempotent_and_encodes(case: tuple[Format, Fraction], rounding: str) -> None:
    fmt, x = case
    for saturation in ("SatFinite", "SatPropagate", "OvfInf"):
        once = project(x, fmt, mode(rounding, saturation))
        if once == once:
            assert identical(project(once, fmt, mode(rounding, saturation)), once)
            assert identical(value(encode(x, fmt, mode(rounding, saturation)), fmt), once)


@given(cases(floats().filter(lambda fmt: fmt.signed)), st.sampled_from(DETERMINISTIC))
@settings(max_examples=150)
def test_signed_floats_are_symmetric(case: tuple[Format, Fraction], rounding: str) -> None:
    fmt, x = case
    assume(x != 0)
    mirrored = {"up": "down", "down": "up"}.get(rounding, rounding)
    for saturation in ("SatFinite", "OvfInf"):
        plus = project(x, fmt, mode(rounding, saturation))
        minus = project(-x, fmt, mode(mirrored, saturation))
        assert identical(plus, exact(-minus)) or plus == minus == 0


@given(cases())
@settings(max_examples=150)
def test_overflow_leaves_the_format_only_beyond_its_range(case: tuple[Format, Fraction]) -> None:
    fmt, x = case
    for rounding in DETERMINISTIC:
        found = project(x, fmt, mode(rounding, "OvfInf"))
        if fmt.min_exact <= x <= fmt.max_exact and not crosses_no_zero(fmt, x):
            assert found == project(x, fmt, mode(rounding))
        assert found != found or found in value_table(fmt)
        assert found == found or fmt.has_nan


@given(cases(), st.integers(1, 6))
@settings(max_examples=150)
@example((IntFormat(name="i", kind="int", bits=4), Fraction(-5, 3)), 5)
def test_stochastic_counts_the_fraction_exactly(case: tuple[Format, Fraction], bits: int) -> None:
    """Of all 2^n random numbers, floor(fraction * 2^n) go away from zero."""
    fmt, x = case
    low, high = (Fraction(project(x, fmt, mode(r))) for r in ("down", "up"))
    assume(low < high)
    toward, away = (low, high) if x >= 0 else (high, low)
    projection = Projection(rounding="stochastic", bits=bits)
    found = [project(x, fmt, projection, r) for r in range(1 << bits)]
    fraction = (x - toward) / (away - toward)
    assert found.count(away) == math.floor(fraction * (1 << bits))
    assert found.count(toward) == len(found) - found.count(away)
