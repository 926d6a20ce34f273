"""The oracle of datapaths: real tensor cores, published models of others, and laws."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowprec.errors import LowprecError
from lowprec.exact import dot, identical
from lowprec.exact.values import Value, exact
from lowprec.spec import Datapath, list_datapaths, load_datapath, load_format
from lowprec.spec.format import FloatFormat
from tests.exact.recordings import RECORDED, Recording, excerpt, whole

FLOAT32 = load_format("float32")
IDS = [recording for recording, _ in RECORDED]


def bits(x: Value) -> int:
    """The float32 bits of a value that float32 holds."""
    (word,) = struct.unpack("<I", struct.pack("<f", float(x)))
    return int(word)


def wrong(recording: Recording, path: Datapath, step: int = 1) -> int:
    pair = (recording.format, recording.format)
    return sum(bits(dot(a, b, c, path, pair)) != d for a, b, c, d in recording.lines(step))


def changed(name: str, **parts: Any) -> Datapath:
    """A datapath with other parameters; those of its addition in a dict of that name."""
    path = load_datapath(name)
    if "addition" in parts:
        parts["addition"] = path.addition.model_copy(update=parts["addition"])
    return Datapath.model_validate(dict(path) | parts)


# ---- recordings ----


@pytest.mark.parametrize(("recording", "name"), RECORDED, ids=IDS)
def test_lines_of_every_recorded_unit(recording: str, name: str) -> None:
    lines = excerpt(recording)
    assert len(lines.d) == 24
    assert wrong(lines, load_datapath(name), step=2) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("recording", "name"), RECORDED, ids=IDS)
def test_every_line_of_every_recording(recording: str, name: str) -> None:
    lines = whole(recording)
    assert len(lines.d) == 2500
    assert wrong(lines, load_datapath(name)) == 0


@pytest.mark.parametrize(
    ("recording", "name", "parts"),
    [
        ("H100_E4M3_fp16", "hopper_fp8_fp16", {"order": ()}),
        ("H100_E4M3_fp16", "hopper_fp8_fp16", {"promotion": None}),
        ("B200_E5M2_fp16", "blackwell_fp8_fp16", {"order": (), "step": 32}),
        ("B200_E4M3_fp32", "blackwell_fp8", {"promotion": None}),
        ("V100_fp16_fp32", "volta_fp16", {"addition": {"fraction_bits": 24}}),
        ("A100_tf32_fp32", "ampere_tf32", {"step": 2}),
        ("H100_E4M3_fp32", "hopper_fp8", {"result": None}),
        ("Ada_E4M3_fp32", "ada_fp8", {"rounding": "nearest-even"}),
        ("H100_bf16_fp32", "hopper_bf16", {"addition": {"rounding": "nearest-even"}}),
    ],
)
def test_other_parameters_do_not_reproduce_it(
    recording: str, name: str, parts: dict[str, Any]
) -> None:
    assert wrong(excerpt(recording), changed(name, **parts), step=2) > 0


# ---- what the contract says, by hand ----


def test_terms_are_aligned_to_the_largest_exponent_and_cut() -> None:
    # F = 13: units of 2^-13 beside a product of exponent 0; 7/8 * 2^-13 is cut each time.
    a, b = [1.0, *[2.0**-7] * 15], [1.0, *[0.875 * 2.0**-6] * 15]
    assert dot(a, b, 0.0, load_datapath("hopper_fp8")) == 1
    assert dot(a, b, 0.0, load_datapath("exact")) == 1 + 15 * Fraction(7, 8) / (1 << 13)
    # Beside 2^-1 the unit is half as large, and one unit of each stays.
    a[0] = 0.5
    assert dot(a, b, 0.0, load_datapath("hopper_fp8")) == Fraction(1, 2) + Fraction(15, 1 << 14)


def test_the_exponent_of_a_product_is_not_that_of_its_value() -> None:
    # 1.75 * 1.75 = 3.06 has the exponent 0, so that one unit of 2^-13 survives beside it.
    a, b = [1.75, 2.0**-6], [1.75, 2.0**-7]
    path = changed("hopper_fp8", result=None)
    assert dot(a, b, 0.0, path) == Fraction(49, 16) + Fraction(1, 1 << 13)


def test_subnormals_are_not_normalised() -> None:
    # 2^-9 as E4M3 has the exponent -6, as E5M2 -9: the unit is 2^(-6-6-13), or 2^(-18-13).
    e4m3, e5m2 = load_format("float8_e4m3fn"), load_format("float8_e5m2")
    path = load_datapath("hopper_fp8")
    c = 2.0**-26
    assert dot([2.0**-9], [2.0**-9], c, path, (e4m3, e4m3)) == Fraction(1, 1 << 18)
    both = Fraction(1, 1 << 18) + Fraction(1, 1 << 26)
    assert dot([2.0**-9], [2.0**-9], c, path, (e5m2, e5m2)) == both


def test_interleaved_order() -> None:
    path = load_datapath("hopper_fp8_fp16")
    a, b = [0.0] * 32, [0.0] * 32
    a[0], b[0] = 256.0, 8.0
    a[1], b[1] = 1.0, 1.0
    a[2], b[2] = 1.0, 1.0
    assert dot(a, b, 0.0, path) == 2048  # 2048 + 1 to even, then + 1 to even again
    a[2], a[4], b[4] = 0.0, 1.0, 1.0
    assert dot(a, b, 0.0, path) == 2050  # k = 0, 1 and 4 are one step


def test_deepseek_promotes_every_128_with_scales() -> None:
    path = load_datapath("hopper_fp8_deepseek")
    a = [1.0] * 256
    scales = ([0.5, 2.0**-20], [2.0, 1.0])
    assert dot(a, a, 1.0, path, None, scales) == 129 + Fraction(128, 1 << 20)
    with pytest.raises(LowprecError, match="needs scales"):
        dot(a, a, 1.0, path)
    with pytest.raises(LowprecError, match="a scale per 128 of 256"):
        dot(a, a, 1.0, path, None, ([1.0], [1.0]))


def test_group_of_nvfp4_is_aligned_by_its_scales_alone() -> None:
    path = load_datapath("blackwell_nvf4")
    a, scales = [6.0] * 64, ([448.0, 1.0, 1.0, 1.0], [448.0, 1.0, 1.0, 2.0**-9])
    total = 16 * 36 * (448 * 448 + 2) + Fraction(16 * 36, 512)
    cut = 1 << (math.frexp(float(total))[1] - 24)
    assert dot(a, a, 0.0, path, None, scales) == total // cut * cut


def p2(*exponents: int) -> list[float]:
    return [2.0**e for e in exponents]


# One unit, a, b, c and d each: what only a last bit shows.
CORNERS = [
    # The products' sum keeps 32 bits below c: 1 - 2^-24 - 2^-25 + 2^-32 is just above a tie.
    ("cdna3_fp16", [-(2.0**-12), -(2.0**-12), 2.0**-16], p2(-12, -13, -16), 1.0, 1 - 2.0**-24),
    ("cdna3_fp8", [-(2.0**-6), -(2.0**-6), 2.0**-10], p2(-6, -7, -10), 4096.0, 4096 - 2.0**-12),
    # The result keeps 31 bits before it is rounded: 2^-32 is gone and leaves the tie, 2^-31 is not.
    ("cdna3_fp16", p2(-12, -16), p2(-12, -16), 1.0, 1.0),
    ("cdna3_fp16", p2(-12, -15), p2(-12, -16), 1.0, 1 + 2.0**-23),
    # c is cut down to 2^-24 beside 1, so that any negative c takes that away,
    ("cdna3_fp16", [1.0], [1.0], -(2.0**-60), 1 - 2.0**-24),
    # unless, of FP8, it lies more than 25 binades below.
    ("cdna3_fp8", [1.0], [1.0], -(2.0**-25), 1 - 2.0**-24),
    ("cdna3_fp8", [1.0], [1.0], -(2.0**-26), 1.0),
    # Within a group products are cut toward zero, the groups' sums down.
    ("cdna3_fp8", [64.0, -(2.0**-10), -64.0], [64.0, 2.0**-10, 64.0], 0.0, -(2.0**-12)),
    ("cdna3_fp8", [64.0, 0.0, -64.0, 0.0, -(2.0**-10)], [64.0, 0, 64.0, 0, 2.0**-10], 0.0, 0.0),
    ("cdna3_bf16", [1.0, -(2.0**-20), -1.0], [1.0, 2.0**-5, 1.0], 0.0, 0.0),
    # A product beyond float32 is Inf there, and nowhere else.
    ("cdna3_bf16", [2.0**64, 2.0**64], [2.0**64, -(2.0**64)], 0.0, math.nan),
    ("hopper_bf16", [2.0**64, 2.0**64], [2.0**64, -(2.0**64)], 0.0, 0.0),
    # Underflow keeps its sign at AMD, not at NVIDIA.
    ("cdna1_bf16", [-(2.0**-80)], p2(-80), 0.0, -0.0),
    ("hopper_bf16", [-(2.0**-80)], p2(-80), 0.0, 0.0),
    # No exponent counts as less than -133: units of 2^-158.
    ("hopper_bf16", [*p2(-79), *[-(2.0**-80)] * 2], p2(-70, -79, -79), 0.0, 2.0**-149),
    ("hopper_bf16", [*p2(-79), *[-(2.0**-79)] * 2], p2(-70, -79, -79), 0.0, 0.0),
]


@pytest.mark.parametrize(("name", "a", "b", "c", "d"), CORNERS)
def test_corners(name: str, a: list[float], b: list[float], c: float, d: float) -> None:
    assert identical(dot(a, b, c, load_datapath(name)), exact(d))


def test_nvfp4_keeps_35_bits() -> None:
    a, b = [0.0] * 64, [1.0] * 64
    scales = ([256.0, 256.0, 2.0**-9, 1.0],) * 2
    a[0], a[16] = 1.0, -1.0
    for last, d in [(0.5, 2.0**-19), (-0.5, -(2.0**-19))]:
        a[32] = last
        assert dot(a, b, 0.0, load_datapath("blackwell_nvf4"), None, scales) == d
    b[32] = 0.5
    assert dot(a, b, 0.0, load_datapath("blackwell_nvf4"), None, scales) == 0


def test_integers_wrap_or_saturate() -> None:
    a, c = [127.0] * 32, 2.0**31 - 1
    assert dot(a, a, c, load_datapath("ampere_int8_satfinite")) == 2**31 - 1
    assert dot(a, a, c, load_datapath("ampere_int8")) == -(2**31) - 1 + 32 * 127 * 127
    assert dot([-128.0] * 2, [255.0] * 2, 0.0, load_datapath("ampere_int8")) == -2 * 128 * 255


def test_overflow_is_infinite_even_when_rounding_toward_zero() -> None:
    big = 2.0**127
    assert dot([big], [1.0], big, load_datapath("hopper_bf16")) == math.inf
    assert dot([-big], [1.0], -big, load_datapath("cdna3_bf16")) == -math.inf
    assert dot([256.0], [255.0], 239.0, load_datapath("hopper_fp16_fp16")) == 65504
    assert dot([256.0], [255.0], 240.0, load_datapath("hopper_fp16_fp16")) == math.inf


@pytest.mark.parametrize("name", [n for n in list_datapaths() if "int8" not in n])
def test_special_values(name: str) -> None:
    path = load_datapath(name)
    fmt = path.inputs[0]
    scales = ([1.0], [1.0]) if path.scaling else None

    def d(a: list[float], b: list[float], c: float = 0.0) -> Value:
        return dot(a, b, c, path, None, scales)

    assert d([1.0, 1.0], [1.0, 1.0], math.inf) == math.inf
    assert identical(d([1.0], [-1.0], math.nan), math.nan)
    assert identical(d([1.0, 1.0], [1.0, -1.0]), Fraction(0))
    assert d([], [], 1.5) == 1.5 if path.scaling is None else True
    if fmt.has_nan:
        assert identical(d([math.nan, 1.0], [0.0, 1.0]), math.nan)
    if fmt.has_infinity:
        assert d([-math.inf, 1.0], [1.0, 1.0]) == -math.inf
        assert identical(d([math.inf, 1.0], [0.0, 1.0]), math.nan)
        assert identical(d([math.inf, math.inf], [1.0, -1.0]), math.nan)
        assert identical(d([math.inf], [1.0], -math.inf), math.nan)


def test_tree_flushes_what_the_contract_says() -> None:
    path, kept = load_datapath("cdna2_bf16"), load_datapath("tpu_bf16")
    tiny = 2.0**-130
    assert dot([tiny], [1.0], 0.0, path) == 0
    assert dot([tiny], [1.0], 0.0, kept) == Fraction(tiny)
    assert identical(dot([-(2.0**-100)], [2.0**-30], -0.0, path), Fraction(0))
    assert dot([0.0], [1.0], tiny, path) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [1.0, 2.0], 0.0, "hopper_fp8"), "1 and 2 elements"),
        (([1.03], [1.0], 0.0, "hopper_fp8"), "a: not all its values are of float8_e4m3fn or"),
        (([1.0], [500.0], 0.0, "hopper_fp8"), "b: not all its values"),
    ],
)
def test_bad_operands(arguments: tuple[Any, ...], message: str) -> None:
    a, b, c, name = arguments
    with pytest.raises(LowprecError, match=message):
        dot(a, b, c, load_datapath(name))


def test_a_format_that_is_no_input_is_refused() -> None:
    with pytest.raises(LowprecError, match="'hopper_fp8' takes float8_e4m3fn, float8_e5m2"):
        dot([1.0], [1.0], 0.0, load_datapath("hopper_fp8"), (FLOAT32, FLOAT32))  # type: ignore[arg-type]


# ---- laws ----

small = st.integers(-256, 256).map(lambda k: k / 8)
rows = st.lists(st.tuples(small, small), min_size=1, max_size=40)


@given(rows, small, st.randoms(use_true_random=False))
def test_within_a_step_the_order_does_not_matter(
    row: list[tuple[float, float]], c: float, random: Any
) -> None:
    shuffled = random.sample(row, len(row))
    for name in ("hopper_fp8_fp16", "hopper_fp16"):
        path = changed(name, step=64, order=(), promotion=None, addition={"fraction_bits": 5})
        half = path.model_copy(update={"inputs": (load_format("float16"),)})
        first, second = (dot(*zip(*r, strict=True), c, half) for r in (row, shuffled))
        assert identical(first, second)


@given(rows, small)
def test_with_wide_alignment_every_addition_is_exact(
    row: list[tuple[float, float]], c: float
) -> None:
    a, b = zip(*row, strict=True)
    total = Fraction(c) + sum(Fraction(x) * Fraction(y) for x, y in row)
    for name in ("ampere_fp16", "hopper_fp16", "cdna3_fp16", "cdna1_fp16", "tpu_bf16", "exact"):
        path = load_datapath(name).model_copy(update={"inputs": (load_format("float16"),)})
        if isinstance(path.accumulator, FloatFormat):
            assert dot(a, b, c, path) == total


@given(rows, small)
def test_the_sign_of_everything_flips_the_result(row: list[tuple[float, float]], c: float) -> None:
    a, b = zip(*row, strict=True)
    path = changed("hopper_fp16", addition={"fraction_bits": 6})
    minus = dot([-x for x in a], b, -c, path)
    assert dot(a, b, c, path) == -minus
