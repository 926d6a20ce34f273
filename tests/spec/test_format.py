"""Derived properties of scalar and block formats, and what cannot be a format."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lowprec.errors import LowprecError
from lowprec.exact import value, value_table
from lowprec.spec import BlockFormat, CodebookFormat, FloatFormat, Format, IntFormat, load_format
from lowprec.spec.format import floor_log2, pow2


def scalar(name: str) -> Format:
    fmt = load_format(name)
    assert isinstance(fmt, Format)
    return fmt


def block(name: str) -> BlockFormat:
    fmt = load_format(name)
    assert isinstance(fmt, BlockFormat)
    return fmt


def make(**parameters: object) -> FloatFormat:
    base = {"name": "f", "kind": "float", "bits": 8, "precision": 4, "bias": 7}
    return FloatFormat.model_validate({**base, **parameters})


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"bits": 99}, "less than or equal to 64"),
        ({"bits": 0}, "greater than or equal to 1"),
        ({"bits": 8.0}, "valid integer"),
        ({"bits": "8"}, "valid integer"),
        ({"precision": 8}, "leave 0 exponent bits"),
        ({"bits": 32, "precision": 4}, "leave 28 exponent bits"),
        ({"zero": False}, "subnormals=true needs zero=true"),
        ({"nan": "ieee"}, "needs infinity=true"),
        ({"nan": "ieee", "infinity": True, "precision": 1}, "precision of 2 or more"),
        ({"nan": "negative-zero", "signed": False}, "needs signed=true and zero=true"),
        (
            {"bits": 2, "precision": 1, "infinity": True, "nan": "all-ones"},
            "leave no finite value",
        ),
        ({"nan": "somewhere"}, "'all-ones'"),
        ({"name": "a/b"}, "pattern"),
        ({"colour": 1}, "Extra inputs"),
    ],
)
def test_impossible_floats_do_not_construct(parameters: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        make(**parameters)


@pytest.mark.parametrize(
    ("cls", "parameters", "complaint"),
    [
        (IntFormat, {"kind": "int", "bits": 1}, "2 bits or more"),
        (IntFormat, {"kind": "int", "bits": 8, "signed": False, "symmetric": True}, "signed=true"),
        (CodebookFormat, {"kind": "codebook", "bits": 1, "values": (1.0, 2.0, 3.0)}, "do not fit"),
        (CodebookFormat, {"kind": "codebook", "bits": 17, "values": (1.0, 2.0)}, "do not fit"),
        (CodebookFormat, {"kind": "codebook", "bits": 2, "values": (1.0, 1.0)}, "same value"),
        (CodebookFormat, {"kind": "codebook", "bits": 2, "values": (math.nan,) * 2}, "same value"),
        (CodebookFormat, {"kind": "codebook", "bits": 1, "values": (-1.0, 0.0)}, "positive value"),
        (CodebookFormat, {"kind": "codebook", "bits": 1, "values": (1.0, -0.0)}, "needs 0.0"),
    ],
)
def test_impossible_others_do_not_construct(
    cls: type[Format], parameters: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ValidationError, match=complaint):
        cls.model_validate({"name": "x", **parameters})


def test_formats_are_frozen_and_equal_by_value() -> None:
    fmt = make()
    with pytest.raises(ValidationError, match="frozen"):
        fmt.bias = 8  # type: ignore[misc]
    assert fmt == make()
    assert hash(fmt) == hash(make())
    assert FloatFormat.model_validate_json(fmt.model_dump_json()) == fmt
    assert fmt.digest == make().digest != make(bias=8).digest


def test_codebooks_of_one_name_are_told_apart() -> None:
    one, two = (
        CodebookFormat(name="x", kind="codebook", bits=1, values=v)
        for v in ((1.0, 2.0), (1.0, 3.0))
    )
    assert len({one, two}) == 2
    assert one.digest != two.digest


def test_codebooks_with_nan_and_infinity_survive_json() -> None:
    values = (1.0, float("nan"), math.inf, -math.inf)
    book = CodebookFormat(name="x", kind="codebook", bits=2, values=values)
    again = CodebookFormat.model_validate_json(book.model_dump_json())
    assert again == book
    assert again.digest == book.digest
    assert hash(again) == hash(book)


@given(
    exponent_bits=st.integers(1, 5),
    precision=st.integers(1, 5),
    bias=st.integers(-30, 30),
    signed=st.booleans(),
    subnormals=st.booleans(),
    zero=st.booleans(),
    infinity=st.booleans(),
    nan=st.sampled_from(["none", "ieee", "all-ones", "negative-zero"]),
)
def test_derived_limits_are_those_of_the_values(
    exponent_bits: int, precision: int, signed: bool, **rest: object
) -> None:
    bits = exponent_bits + precision - 1 + signed
    try:
        fmt = make(bits=bits, precision=precision, signed=signed, **rest)
    except ValidationError:
        return
    table = value_table(fmt)
    finite = [Fraction(v) for v in table if math.isfinite(v)]
    positive = [v for v in finite if v > 0]
    assert fmt.exponent_bits == exponent_bits
    assert fmt.max_exact == max(finite) == Fraction(fmt.max) == value(fmt.max_code, fmt)
    assert fmt.min_exact == min(finite) == Fraction(fmt.min)
    assert fmt.min_positive_exact == min(positive)
    assert pow2(fmt.emax) <= fmt.max_exact < pow2(fmt.emax + 1)
    # The smallest value from which on every next one is at most 2^(1-precision) of it away.
    normal = fmt.min_normal_exact
    assert normal in positive or normal > fmt.max_exact
    infinities = 0 if not fmt.infinity else 2 if signed else 1
    assert [v for v in table if v == v and math.isinf(v)].count(math.inf) == fmt.infinity
    assert len([v for v in table if v == v]) == len(finite) + infinities
    if fmt.nan_code is not None:
        assert table[fmt.nan_code] != table[fmt.nan_code]
    assert fmt.has_nan == any(v != v for v in table)
    assert (0 in finite) == fmt.zero


def test_limits_beyond_float64_are_fractions() -> None:
    fmt = make(bits=20, bias=32767)
    assert isinstance(fmt.max, Fraction)
    assert fmt.max - 15 * pow2(32765) == 0
    assert scalar("float64").max == 1.7976931348623157e308


@given(st.fractions(min_value=Fraction(1, 10**6), max_value=10**6))
def test_floor_log2(x: Fraction) -> None:
    assert pow2(floor_log2(x)) <= x < pow2(floor_log2(x) + 1)


@pytest.mark.parametrize("k", [-1074, -127, -1, 0, 1, 127, 4000])
def test_floor_log2_beside_powers_of_two(k: int) -> None:
    step = pow2(k - 60)
    assert [floor_log2(pow2(k) + d * step) for d in (-1, 0, 1)] == [k - 1, k, k]


@pytest.mark.parametrize(
    ("name", "shape", "axis", "scales", "bits"),
    [
        ("mxfp4", (4, 64), -1, (4, 2), 4 * 64 * 4 + 8 * 8),
        ("mxfp4", (2, 24), -1, (2, 1), 2 * 24 * 4 + 2 * 8),
        ("mxfp4", (2, 33), -1, (2, 2), 2 * 33 * 4 + 4 * 8),
        ("mxfp4", (33, 2), 0, (2, 2), 2 * 33 * 4 + 4 * 8),
        ("nvfp4", (3, 17), -1, (3, 2), 3 * 17 * 4 + 6 * 8 + 32),
        ("float8_e4m3fn_channel", (5, 7), -1, (5, 1), 5 * 7 * 8 + 5 * 32),
        ("float8_e4m3fn_channel", (5, 7), 0, (1, 7), 5 * 7 * 8 + 7 * 32),
        ("float8_e4m3fn_tensor", (5, 7), -1, (1, 1), 5 * 7 * 8 + 32),
        ("mxfp4", (0, 64), -1, (0, 2), 0),
        ("mxfp4", (4, 0), -1, (4, 0), 0),
    ],
)
def test_storage(
    name: str, shape: tuple[int, ...], axis: int, scales: tuple[int, ...], bits: int
) -> None:
    assert block(name).scale_shape(shape, axis) == scales
    assert block(name).storage_bits_of(shape, axis) == bits


def tiles(rows: int, columns: int) -> BlockFormat:
    e4m3, float32 = scalar("float8_e4m3fn"), scalar("float32")
    return BlockFormat(name="t", element=e4m3, scale=float32, block=(rows, columns))


def test_tiles() -> None:
    assert tiles(128, 128).scale_shape((300, 257)) == (3, 3)
    assert tiles(2, 128).scale_shape((3, 300, 257)) == (3, 150, 3)
    assert tiles(2, 128).scale_shape((3, 300, 257), axis=1) == (3, 3, 129)
    assert tiles(2, 128).scale_shape((4, 300, 5), axis=0) == (1, 300, 3)
    assert tiles(128, 128).bits_per_element == 8 + 32 / 128**2
    with pytest.raises(LowprecError, match="rank 2"):
        tiles(128, 128).scale_shape((300,))


@pytest.mark.parametrize("size", [(0,), (), (1, 2, 3), (1 << 21,), "row", 32])
def test_impossible_blocks_do_not_construct(size: object) -> None:
    fmt = block("mxfp4")
    with pytest.raises(ValidationError):
        BlockFormat.model_validate({**fmt.model_dump(), "block": size})


def test_a_tensor_has_one_scale() -> None:
    fmt = block("nvfp4")
    with pytest.raises(
        ValidationError, match="block 'tensor' is not made of whole blocks 'tensor'"
    ):
        BlockFormat.model_validate({**fmt.model_dump(), "block": "tensor"})
