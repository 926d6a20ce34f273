"""Projections against worked answers: each rounding, each saturation, each end of each kind."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from lowprec.errors import LowprecError
from lowprec.exact import encode, identical, project, value
from lowprec.exact.values import negative, to_float
from lowprec.spec import CodebookFormat, FloatFormat, Format, IntFormat, Projection, load_format
from lowprec.spec.format import pow2

INF, NAN = math.inf, math.nan
ROUNDINGS = ("nearest-even", "nearest-away", "toward-zero", "up", "down", "to-odd")
SATURATIONS = ("SatFinite", "SatPropagate", "OvfInf")


def scalar(name: str) -> Format:
    fmt = load_format(name)
    assert isinstance(fmt, Format)
    return fmt


def mode(rounding: str = "nearest-even", saturation: str = "SatFinite") -> Projection:
    return Projection.model_validate({"rounding": rounding, "saturation": saturation})


def answers(fmt: Format | str, inputs: str, projection: Projection) -> str:
    fmt = scalar(fmt) if isinstance(fmt, str) else fmt
    return " ".join(show(project(number(x), fmt, projection)) for x in inputs.split())


def number(text: str) -> Fraction | float:
    """``448``, ``-0``, ``Inf``, ``NaN``, ``3*2^-10``."""
    if "^" in text:
        factor, _, exponent = text.rpartition("2^")
        return Fraction({"": "1", "-": "-1"}.get(factor, factor.rstrip("*"))) * pow2(int(exponent))
    return float(text) if text.lstrip("-") in ("0", "Inf", "NaN") else Fraction(text)


def show(x: Fraction | float) -> str:
    if x != x:
        return "NaN"
    sign = "-" if negative(x) else ""
    return f"{sign}Inf" if math.isinf(x) else f"{sign}{abs(float(x)):g}"


# E4M3 of OCP has no Inf: its overflow without saturation is NaN, from above 464, the tie.
E4M3 = "1000 448 464 464.1 480 -1000 Inf -Inf NaN -0"


@pytest.mark.parametrize(
    ("saturation", "expected"),
    [
        ("SatFinite", "448 448 448 448 448 -448 448 -448 NaN -0"),
        ("SatPropagate", "448 448 448 448 448 -448 448 -448 NaN -0"),
        ("OvfInf", "NaN 448 448 NaN NaN NaN NaN NaN NaN -0"),
    ],
)
def test_e4m3_overflow(saturation: str, expected: str) -> None:
    assert answers("float8_e4m3fn", E4M3, mode(saturation=saturation)) == expected


@pytest.mark.parametrize(
    ("fmt", "rounding", "inputs", "expected"),
    [
        (
            "float8_e4m3fn",
            "nearest-even",
            "4.25 1.0625 1.1875 2^-10 3*2^-10 1.5*2^-10 5*2^-10",
            "4 1 1.25 0 0.00390625 0.00195312 0.00390625",
        ),
        (
            "float8_e4m3fn",
            "nearest-away",
            "4.25 1.0625 1.1875 2^-10 3*2^-10 1.5*2^-10 5*2^-10",
            "4.5 1.125 1.25 0.00195312 0.00390625 0.00195312 0.00585938",
        ),
        ("float4_e2m1fn", "nearest-even", "0.25 0.75 1.25 1.75 2.5 3.5 5 7", "0 1 1 2 2 4 4 6"),
        (
            "float4_e2m1fn",
            "nearest-away",
            "0.25 0.75 1.25 1.75 2.5 3.5 5 7",
            "0.5 1 1.5 2 3 4 6 6",
        ),
        ("float4_e2m1fn", "toward-zero", "0.4 -0.4 1.9 -1.9 5.9 -9", "0 -0 1.5 -1.5 4 -6"),
        ("float4_e2m1fn", "up", "0.1 -0.4 1.6 -1.6 4.1 -9", "0.5 -0 2 -1.5 6 -6"),
        ("float4_e2m1fn", "down", "0.4 -0.1 1.9 -1.6 5.9 -9", "0 -0.5 1.5 -2 4 -6"),
        # Codes: 0 0.5 1 1.5 2 3 4 6, the odd ones being 0.5, 1.5, 3 and 6.
        (
            "float4_e2m1fn",
            "to-odd",
            "0.1 0.9 1.1 1.9 2 2.1 3.9 4.1 -0.1",
            "0.5 0.5 1.5 1.5 2 3 3 6 -0.5",
        ),
        ("int8", "nearest-even", "0.5 1.5 2.5 -0.5 -1.5 127.5 -128.5 -0", "0 2 2 0 -2 127 -128 0"),
        ("int8", "nearest-away", "0.5 1.5 2.5 -0.5 -1.5", "1 2 3 -1 -2"),
        ("int8", "to-odd", "0.5 1.5 -0.5 -1.5 2 -2", "1 1 -1 -1 2 -2"),
        ("int8", "up", "0.1 -0.1 -1.9", "1 0 -1"),
        ("int8", "down", "0.9 -0.1 -1.1", "0 -1 -2"),
    ],
)
def test_ties_and_subnormals(fmt: str, rounding: str, inputs: str, expected: str) -> None:
    assert answers(fmt, inputs, mode(rounding)) == expected


@pytest.mark.parametrize(
    ("fmt", "saturation", "inputs", "expected"),
    [
        # 61440 is half way to the 65536 that would come next, and 57344 has an odd code.
        (
            "float8_e5m2",
            "OvfInf",
            "57344 58000 61440 61439 65536 -Inf",
            "57344 57344 Inf 57344 Inf -Inf",
        ),
        (
            "float8_e5m2",
            "SatFinite",
            "57344 58000 61440 61439 65536 -Inf",
            "57344 57344 57344 57344 57344 -57344",
        ),
        ("float8_e5m2", "SatPropagate", "61440 65536 Inf -Inf", "57344 57344 Inf -Inf"),
        ("float8_e4m3fnuz", "OvfInf", "240 247.9 248 256 -0", "240 240 NaN NaN 0"),
        ("float8_e4m3fnuz", "SatFinite", "240 247.9 248 256 -2^-20", "240 240 240 240 0"),
        # Neither Inf nor NaN: what overflow asks for is the nearest finite value.
        ("float4_e2m1fn", "OvfInf", "5 5.1 7 100 -Inf NaN", "4 6 6 6 -6 NaN"),
        ("int4", "OvfInf", "7.6 100 -9 Inf -Inf NaN", "7 7 -8 7 -8 NaN"),
        # Unsigned.
        ("ufloat8_e4m3", "SatFinite", "-1 -0 -2^-30 -Inf 500", "0 0 0 0 448"),
        ("ufloat8_e4m3", "SatPropagate", "-1 -0 -2^-30 -Inf Inf", "0 0 0 0 448"),
        ("ufloat8_e4m3", "OvfInf", "-1 -0 -2^-30 -Inf Inf", "NaN 0 0 NaN NaN"),
        ("binary8p4ue", "OvfInf", "-1 -0 -Inf Inf", "NaN 0 NaN Inf"),
        ("binary8p4ue", "SatPropagate", "-1 -0 -Inf Inf", "0 0 0 Inf"),
        ("uint8", "OvfInf", "-0.4 -0.6 -3 -Inf 256", "0 0 0 0 255"),
    ],
)
def test_saturation(fmt: str, saturation: str, inputs: str, expected: str) -> None:
    assert answers(fmt, inputs, mode(saturation=saturation)) == expected


@pytest.mark.parametrize(
    ("fmt", "rounding", "expected"),
    [
        # float8_e5m2: the code of 57344, 0x7b, is odd. float8_e5m2fnuz: none, no Inf.
        ("float8_e5m2", "toward-zero", "57344 57344 -57344"),
        ("float8_e5m2", "up", "Inf Inf -57344"),
        ("float8_e5m2", "down", "57344 57344 -Inf"),
        ("float8_e5m2", "to-odd", "57344 57344 -57344"),
        ("float8_e5m2", "nearest-away", "57344 Inf -Inf"),
        # float8_e4m3fn: the code of 448, 0x7e, is even, so that to-odd goes beyond it.
        ("float8_e4m3fn", "to-odd", "NaN NaN NaN"),
        ("float8_e4m3fn", "toward-zero", "448 448 -448"),
        ("float8_e4m3fn", "up", "NaN NaN -448"),
    ],
)
def test_overflow_of_the_directed_roundings(fmt: str, rounding: str, expected: str) -> None:
    beyond = scalar(fmt).max_exact * Fraction(129, 128)
    found = [project(x, scalar(fmt), mode(rounding, "OvfInf")) for x in (beyond, 1e9, -1e9)]
    assert " ".join(map(show, found)) == expected


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        # Ties go to the even code: 3 is half way from code 128 to 129.
        ("nearest-even", "127 127 127 127 128 128 128 128 129 130"),
        ("nearest-away", "127 127 127 127 128 128 128 129 129 130"),
        ("up", "127 128 128 128 128 128 129 129 130 130"),
        ("down", "127 127 127 127 127 127 128 128 129 129"),
    ],
)
def test_e8m0_codes(rounding: str, expected: str) -> None:
    inputs = (1, 1.125, 1.25, 1.4999, 1.5, 1.75, 2.5, 3, 5, 6)
    codes = [encode(x, scalar("float8_e8m0fnu"), mode(rounding)) for x in inputs]
    assert " ".join(map(str, codes)) == expected


def test_e8m0_has_neither_zero_nor_sign() -> None:
    e8m0 = scalar("float8_e8m0fnu")
    inputs = (0.0, -0.0, -1.0, pow2(-200), -pow2(-200), -INF, INF, NAN)
    for rounding in ROUNDINGS:
        assert [encode(x, e8m0, mode(rounding)) for x in inputs] == [0, 0, 0, 0, 0, 0, 254, 255]
        free = [encode(x, e8m0, mode(rounding, "OvfInf")) for x in inputs]
        assert free == [255, 255, 255, 0, 255, 255, 255, 255]


def test_one_rounding_where_two_go_wrong() -> None:
    """Through float32 or float16 this is a tie, and 1.0."""
    x = 1 + Fraction(1, 1 << 4) + Fraction(1, 1 << 40)
    assert project(x, scalar("float8_e4m3fn")) == Fraction(9, 8)


def test_signed_float_without_zero() -> None:
    """No zero: the magnitude becomes the smallest one, with its sign."""
    fmt = FloatFormat(
        name="nozero", kind="float", bits=4, precision=2, bias=1, subnormals=False, zero=False
    )
    assert answers(fmt, "0 -0 0.1 -0.1 0.6 -0.6", mode()) == "0.5 -0.5 0.5 -0.5 0.5 -0.5"
    assert answers(fmt, "0 -0", mode(saturation="OvfInf")) == "0.5 -0.5"
    assert encode(-0.0, fmt) == 0b1000


def test_float_without_subnormals_has_neighbours_zero_and_the_smallest() -> None:
    dlfloat = scalar("dlfloat16")
    assert isinstance(dlfloat, FloatFormat)
    smallest = dlfloat.min_positive_exact
    assert project(smallest / 2, dlfloat) == 0
    assert project(smallest * Fraction(51, 100), dlfloat) == smallest
    assert project(smallest / 100, dlfloat, mode("up")) == smallest
    assert identical(project(-smallest / 100, dlfloat), project(-0.0, dlfloat))


def codebook(*values: float) -> CodebookFormat:
    bits = max(1, (len(values) - 1).bit_length())
    return CodebookFormat(name="book", kind="codebook", bits=bits, values=values)


@pytest.mark.parametrize(
    ("values", "rounding", "inputs", "expected"),
    [
        # Ranks outward from zero: 0 is 0, then 1, 2, 3 on either side, in whatever code order.
        ((8, 0, 1, 3, -2, -6), "nearest-even", "0.5 2 5.5 -1 -4", "0 3 3 0 -6"),
        ((8, 0, 1, 3, -2, -6), "nearest-away", "0.5 2 5.5 -1 -4", "1 3 8 -2 -6"),
        ((8, 0, 1, 3, -2, -6), "to-odd", "0.1 1.1 7.9 -0.1 -5.9", "1 1 8 -2 -2"),
        # No zero: 0 is rank 0 all the same, and lies between two values of rank 1.
        ((-3, 1, 5), "nearest-even", "0 -1 -1.1 0.5", "1 1 -3 1"),
        ((-3, 1, 5), "nearest-away", "-1 3", "-3 5"),
        ((-3, 1, 5), "to-odd", "-2 2 4", "1 1 1"),
        ((-3, 1, 5), "down", "0 0.9", "-3 -3"),
        # All positive: as an unsigned float without zero.
        ((1, 2, 4), "nearest-even", "0.1 0 -3 1.5 3", "1 1 1 2 2"),
        ((1, 2, 4), "down", "0.1 0 -3", "1 1 1"),
    ],
)
def test_codebooks(values: tuple[float, ...], rounding: str, inputs: str, expected: str) -> None:
    fmt = codebook(*map(float, values))
    assert answers(fmt, inputs, mode(rounding)) == expected


def test_codebook_overflows_where_one_more_gap_would_round() -> None:
    fmt = codebook(0.0, -0.0, 1.0, 2.0, 4.0, -1.0, INF, NAN)
    assert (
        answers(fmt, "4.9 5.1 -1.4 -1.6 -Inf -0", mode(saturation="OvfInf"))
        == "4 Inf -1 NaN NaN -0"
    )
    assert answers(fmt, "4.9 5.1 -1.6 Inf -Inf", mode(saturation="SatPropagate")) == "4 4 -1 Inf -1"
    assert encode(-0.0, fmt) == 1
    assert encode(NAN, fmt) == 7


@pytest.mark.parametrize("bits", [1, 3, 8, 32])
@pytest.mark.parametrize("x", [Fraction(5, 4), Fraction(1, 3), Fraction(-41, 10), Fraction(13, 10)])
def test_stochastic_carries_at_the_floor_of_the_fraction(bits: int, x: Fraction) -> None:
    fmt = scalar("float4_e2m1fn")
    below, above = (
        ((Fraction(1), Fraction(3, 2)) if x > 1 else (Fraction(0), Fraction(1, 2)))
        if x > 0
        else (Fraction(-4), Fraction(-6))
    )
    fraction = (x - below) / (above - below)
    threshold = (1 << bits) - math.floor(fraction * (1 << bits))
    projection = Projection(rounding="stochastic", bits=bits)
    for r in {0, threshold - 1, min(threshold, (1 << bits) - 1), (1 << bits) - 1}:
        assert project(x, fmt, projection, r) == (above if r >= threshold else below)


def test_stochastic_overflow() -> None:
    fmt = scalar("float8_e5m2")
    projection = Projection(rounding="stochastic", bits=2, saturation="OvfInf")
    quarter = 57344 + (65536 - 57344) // 4
    assert [project(quarter, fmt, projection, r) for r in range(4)] == [57344, 57344, 57344, INF]
    assert project(1e9, fmt, projection, 0) == INF


def test_random_bits_are_asked_for_and_checked() -> None:
    fmt, stochastic = scalar("int8"), Projection(rounding="stochastic", bits=4)
    for projection, random in ((stochastic, None), (stochastic, 16), (stochastic, -1), (mode(), 0)):
        with pytest.raises(LowprecError, match="random"):
            project(0.5, fmt, projection, random)


def test_nan_has_no_code_where_the_format_has_none() -> None:
    for name in ("float4_e2m1fn", "int8", "nf4"):
        assert project(NAN, scalar(name)) != project(NAN, scalar(name))
        with pytest.raises(LowprecError, match=f"{name}: NaN"):
            encode(NAN, scalar(name))


def test_symmetric_integers_leave_out_the_most_negative() -> None:
    fmt = IntFormat(name="s4", kind="int", bits=4, symmetric=True)
    assert project(-8, fmt) == -7
    assert encode(-8, fmt) == 0b1001
    assert value(0b1000, fmt) == -8


def test_projection_beyond_float64() -> None:
    """The widest exponents there are: nothing depends on what float64 holds."""
    fmt = FloatFormat(name="wide", kind="float", bits=20, precision=4, bias=32767)
    assert project(3 * pow2(-32770), fmt) - pow2(-32768) == 0  # 1.5 units: a tie, to 2
    assert project(pow2(40000), fmt) - fmt.max_exact == 0
    with pytest.raises(LowprecError, match=r"no float64: 15 \* 2\^32765"):
        to_float(fmt.max_exact)
