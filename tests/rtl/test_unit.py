"""Units against the kernels and the oracle: every built-in datapath, and units nobody has built."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lowprec.errors import LowprecError
from lowprec.rtl import Unit, dot_unit, simulate
from lowprec.rtl.simulate import compiled, run
from lowprec.spec import Datapath, list_datapaths, list_formats, load_datapath, load_format
from lowprec.spec.format import FloatFormat, Format, IntFormat
from tests.rtl.tools import needs_yosys
from tests.rtl.vectors import (
    Codes,
    check,
    edge_codes,
    kernel_answers,
    mismatches,
    oracle_mismatches,
    vectors,
)

pytestmark = needs_yosys

NAMES = list_datapaths()
# Of every kind of addition, scale and accumulator the smallest.
FEW = ["hopper_fp8", "cdna3_fp8", "tpu_bf16", "blackwell_nvf4", "ampere_int8_satfinite"]


def changed(name: str, **parts: Any) -> Datapath:
    path = load_datapath(name)
    if "addition" in parts:
        parts["addition"] = path.addition.model_copy(update=parts["addition"])
    return Datapath.model_validate(dict(path) | parts)


@pytest.mark.parametrize("name", FEW)
def test_two_lanes(name: str) -> None:
    check(dot_unit(name, lanes=min(2, load_datapath(name).step or 2)), 4000)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if len(load_datapath(n).inputs) > 1])
def test_every_pair_of_inputs(name: str) -> None:
    inputs = load_datapath(name).inputs
    for a in inputs:
        for b in inputs:
            check(dot_unit(name, a, b, lanes=2), 100_000, oracle=12)


# ---- all codes ----


def all_codes(unit: Unit) -> Iterator[dict[str, Codes]]:
    """Of two lanes of both operands, a million cases at once."""
    counts = (unit.a.code_points,) * 2 + (unit.b.code_points,) * 2
    total, size = math.prod(counts), 1 << 20
    for start in range(0, total, size):
        cases = np.arange(start, min(start + size, total))
        lanes = np.stack(np.unravel_index(cases, counts), 1).astype(np.uint64)
        yield {"a": lanes[:, :2], "b": lanes[:, 2:]}


def exhaustive(unit: Unit, codes_of_c: Codes) -> None:
    """All codes of two lanes of both operands, for each c."""
    gates = compiled(unit)
    for c in codes_of_c:
        for codes in all_codes(unit):
            given = codes | {"c": np.full(len(codes["a"]), c, np.uint64)}
            wanted = kernel_answers(unit, given)
            assert mismatches(unit, run(unit, gates, given)["d"], wanted).tolist() == []


SMALL = [
    *("float4_e2m1fn", "float4_e3m0", "float4_e1m2", "binary4p2se", "binary3p1sf", "binary3p2uf"),
    *("int4", "uint4", "int2", "ternary", "binary", "iq4_nl", "nf4"),
]
# Fewer sums are enough where there are a million or more pairs of pairs.
WIDER = [
    *("binary5p2se", "binary5p4sf", "uint5"),
    *("float6_e2m3fn", "float6_e3m2fn", "binary6p3se", "int6"),
]


def _windows(fmt: str) -> list[Datapath]:
    """With a narrow window, for formats that have exponents."""
    return [_windowed(fmt)] if isinstance(load_format(fmt), FloatFormat) else []


def _windowed(fmt: str, **addition: Any) -> Datapath:
    given = {"fraction_bits": 4, "min_exponent": -8} | addition
    return changed("hopper_fp8", inputs=(load_format(fmt),), addition=given)


@pytest.mark.parametrize("fmt", ["float4_e2m1fn", "binary4p2se"])
def test_all_codes_of_four_bits(fmt: str) -> None:
    path = _windowed(fmt)
    exhaustive(dot_unit(path, lanes=2), edge_codes(path.accumulator)[::5])


@pytest.mark.slow
@pytest.mark.parametrize("fmt", SMALL)
def test_all_codes_of_every_small_format(fmt: str) -> None:
    """Formats of up to 4 bits in the window and exact, for all edges of c."""
    inputs = (load_format("float32"),) if fmt == "nf4" else load_datapath("exact").inputs
    for path in [changed("exact", inputs=inputs), *_windows(fmt)]:
        exhaustive(dot_unit(path, fmt, fmt, lanes=2), edge_codes(path.accumulator))


@pytest.mark.slow
def test_all_codes_of_a_codebook_of_doubles() -> None:
    """Which only the oracle answers."""
    unit = dot_unit(changed("exact", inputs=(load_format("float64"),)), "af4", "af4", lanes=2)
    edges = edge_codes(unit.datapath.accumulator)
    for codes in all_codes(unit):
        given = codes | {"c": np.resize(edges, len(codes["a"]))}
        assert oracle_mismatches(unit, given, simulate(unit, given)["d"]) == []


@pytest.mark.slow
@pytest.mark.parametrize("fmt", WIDER)
def test_all_codes_of_five_and_six_bits(fmt: str) -> None:
    whole = isinstance(load_format(fmt), IntFormat)
    path = changed("exact", inputs=(load_format(fmt),)) if whole else _windowed(fmt)
    exhaustive(dot_unit(path, lanes=2), np.array([0, 0xBD000001], np.uint64))


# ---- formats ----


@pytest.mark.parametrize(
    ("name", "a", "b"),
    [
        ("hopper_bf16", "hifloat8", "nf4"),
        ("hopper_fp8", "int4", "float6_e3m2fn"),
        ("ampere_int8", "uint8", "int4"),
    ],
)
def test_formats_that_an_input_holds(name: str, a: str, b: str) -> None:
    if b == "nf4":
        with pytest.raises(LowprecError, match="b: nf4: not all its values are of bfloat16"):
            dot_unit(name, a, b)
        b = "iq4_nl"
    check(dot_unit(name, a, b, lanes=2), 4000)


BEYOND = ["nf4", "af4", "lns8", "posit8_2", "takum8"]
EIGHT = [
    name
    for name in list_formats()
    if isinstance(fmt := load_format(name), Format) and fmt.bits <= 8 and name not in BEYOND
]


@pytest.mark.slow
@pytest.mark.parametrize("fmt", BEYOND)
def test_codebooks_beyond_bfloat16(fmt: str) -> None:
    """Their values are float64's: an exact unit of such inputs, which only the oracle answers."""
    unit = dot_unit(changed("exact", inputs=(load_format("float64"),)), fmt, fmt, lanes=2)
    given = vectors(unit, 400, 8)
    assert oracle_mismatches(unit, given, simulate(unit, given)["d"]) == []


@pytest.mark.slow
@pytest.mark.parametrize("fmt", EIGHT)
def test_every_scalar_format_of_up_to_eight_bits(fmt: str) -> None:
    """As values of bfloat16, by a table, and of a unit that has it for its input, by its fields."""
    check(dot_unit("hopper_bf16", fmt, fmt, lanes=2), 2000, oracle=40)
    for path in _windows(fmt):
        check(dot_unit(path, lanes=2), 2000, oracle=40)


def test_the_verilog_names_formats_and_fields() -> None:
    text = dot_unit("blackwell_mxf8", "float8_e5m2", "float4_e2m1fn", lanes=2).verilog()
    assert "// a: 2 codes of float8_e5m2" in text
    assert "// float8_e5m2: sign 1, exponent 5 (bias 15), trailing significand 2 bits" in text
    assert "// a_scale: scales of a: 1 codes of float8_e8m0fnu, one per 32 lanes" in text
    assert "module multiply_3x2(" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"datapath": "hopper_fp9"}, "unknown datapath 'hopper_fp9'; did you mean 'hopper_fp8'"),
        ({"datapath": "hopper_fp8", "lanes": 64}, "lanes 64: expected 1 to 32"),
        ({"datapath": "hopper_fp8", "a": "mxfp4"}, "'mxfp4' is a block format"),
        ({"datapath": "hopper_fp8", "scale": "float8_e8m0fnu"}, "takes no scales"),
        ({"datapath": "blackwell_nvf4", "scale": "float8_e8m0fnu"}, "takes float8_e4m3fn"),
        ({"datapath": "hopper_fp8", "stages": -1}, "stages -1"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(LowprecError, match=message):
        dot_unit(**arguments)


def test_accumulators_must_hold_their_sums() -> None:
    unsigned = load_format("ufloat8_e5m3")
    with pytest.raises(LowprecError, match="accumulator 'ufloat8_e5m3': expected a sign"):
        dot_unit(changed("hopper_fp8", accumulator=unsigned, result=None))
    wide = load_format("float32")
    path = changed("hopper_fp8_fp16", promotion=None, result=wide)
    with pytest.raises(LowprecError, match="result 'float32': not all its values"):
        dot_unit(path)


# ---- pipelines and simulators ----


@pytest.mark.parametrize("stages", [1, 9])
def test_pipelines_give_the_same_later(stages: int) -> None:
    plain = dot_unit("cdna3_fp8", lanes=2)
    given = vectors(plain, 3000, 3)
    piped = dot_unit("cdna3_fp8", lanes=2, stages=stages)
    assert (simulate(piped, given)["d"] == simulate(plain, given)["d"]).all()


def test_both_simulators_agree() -> None:
    unit = dot_unit("hopper_fp8_fp16", lanes=2, stages=2)
    given = vectors(unit, 100, 4)
    first, second = simulate(unit, given), simulate(unit, given, engine="amaranth")
    for name, codes in first.items():
        assert (codes == second[name]).all()


# ---- units nobody has built ----

GRID = [
    ("nearest-even", "nearest-away", "fp24"),
    ("down", "up", "float16"),
    ("toward-zero", "to-odd", "dlfloat16"),
    ("nearest-even", "down", "bfloat16"),
    ("down", "nearest-even", "dlfloat16"),
]


@pytest.mark.parametrize(
    ("aligning", "rounding", "accumulator"),
    [*GRID[:3], *(pytest.param(*each, marks=pytest.mark.slow) for each in GRID[3:])],
)
def test_other_roundings(aligning: str, rounding: str, accumulator: str) -> None:
    path = changed(
        "hopper_fp8",
        addition={"rounding": aligning, "fraction_bits": 9, "min_exponent": None},
        accumulator=load_format(accumulator),
        result=None,
        rounding=rounding,
        signed_zero=True,
    )
    unit = dot_unit(path, lanes=2)
    given = vectors(unit, 600, 6)
    assert oracle_mismatches(unit, given, simulate(unit, given)["d"]) == []
