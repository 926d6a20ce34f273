"""The checks find what is wrong, and nothing in what is shipped."""

from __future__ import annotations

import math

import pytest

from lowprec.exact import check, check_facts, conformance
from lowprec.exact.check import LISTED
from lowprec.spec import (
    BlockFormat,
    Facts,
    FloatFormat,
    Format,
    list_formats,
    load_facts,
    load_format,
)


@pytest.mark.parametrize("name", list_formats())
def test_facts_of_every_file(name: str) -> None:
    assert check_facts(load_format(name), load_facts(name)) == []


def scalars(name: str) -> set[Format]:
    fmt = load_format(name)
    return set(fmt.parts.values()) if isinstance(fmt, BlockFormat) else {fmt}


# Of a block format its parts conform or not, so each scalar is gone through once.
SCALARS = sorted(set().union(*map(scalars, list_formats())), key=lambda fmt: (fmt.name, fmt.digest))
SMALL = [fmt for fmt in SCALARS if fmt.bits <= 8]
MIDDLE = [fmt for fmt in SCALARS if 8 < fmt.bits <= 16]


@pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)
def test_small_formats_conform(fmt: Format) -> None:
    assert conformance(fmt) == []


@pytest.mark.parametrize("name", ["float32", "float64", "tfloat32"])
def test_large_formats_conform(name: str) -> None:
    assert conformance(load_format(name)) == []


@pytest.mark.slow
@pytest.mark.parametrize("fmt", MIDDLE, ids=lambda fmt: fmt.name)
def test_sixteen_bits_conform(fmt: Format) -> None:
    assert conformance(fmt) == []


@pytest.mark.parametrize("part", ["element", "inner"])
def test_a_block_format_conforms_as_its_parts_do(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hif4 = load_format("hif4")
    broken = hif4.element if part == "element" else hif4.inner[0].scale
    monkeypatch.setattr(check, "CHECKS", (lambda fmt: ["broken"] * (fmt == broken),))
    assert conformance(hif4) == [f"{broken.name}: broken"]


def facts(**values: object) -> Facts:
    return Facts.model_validate({"source": "a test of the checks", **values})


def test_each_fact_is_compared() -> None:
    wrong = facts(
        max=480.0,
        min=0.0,
        min_normal=1.0,
        min_positive=1.0,
        emax=9,
        bits_per_element=8.5,
        elements_per_scale=16,
        codes={"0x7E": 449.0, "0x80": 0.0, "0x7F": math.inf, "0x100": 1.0, "0x00": 0.0},
    )
    found = check_facts(load_format("float8_e4m3fn"), wrong)
    assert found == [
        "float8_e4m3fn: max: stated 480.0, derived 448.0",
        "float8_e4m3fn: min: stated 0.0, derived -448.0",
        "float8_e4m3fn: min_normal: stated 1.0, derived 0.015625",
        "float8_e4m3fn: min_positive: stated 1.0, derived 0.001953125",
        "float8_e4m3fn: emax: stated 9, derived 8.0",
        "float8_e4m3fn: bits_per_element: stated 8.5, derived 8.0",
        "float8_e4m3fn: elements_per_scale: stated 16, but it has none",
        "float8_e4m3fn: codes.0x7E: stated 449.0, derived 448.0",
        "float8_e4m3fn: codes.0x80: stated 0.0, derived -0.0",
        "float8_e4m3fn: codes.0x7F: stated inf, derived nan",
        found[-1],
    ]
    assert "codes.0x100: stated 1.0, but float8_e4m3fn: no code point 0x100" in found[-1]


def test_facts_of_a_block_format_are_its_elements() -> None:
    assert check_facts(load_format("mxfp4"), facts(max=6.0, emax=2, codes={"0x7": 6.0})) == []
    assert check_facts(load_format("mxfp4"), facts(bits_per_element=4.5, min_normal=1.0)) == [
        "mxfp4: min_normal: stated 1.0, but it has none",
        "mxfp4: bits_per_element: stated 4.5, derived 4.25",
    ]


def test_facts_of_the_other_parts_of_a_block_format() -> None:
    right = {"max": 7.5, "min": -7.5, "min_positive": 4.0, "codes": {"0x0": 4.0, "0xF": -7.5}}
    mxfp4_plus = load_format("mxfp4_plus")
    assert check_facts(mxfp4_plus, facts(parts={"outlier.element": right})) == []
    wrong = {
        "outlier.element": {"max": 6.0, "min_normal": 4.0, "codes": {"0x1": 4.25}},
        "scale": {"emax": 126},
        "outlier": {"max": 7.5},
    }
    parts = ("element", "scale", "outlier.element")
    assert check_facts(mxfp4_plus, facts(parts=wrong)) == [
        "mxfp4_plus: parts.outlier.element: max: stated 6.0, derived 7.5",
        "mxfp4_plus: parts.outlier.element: min_normal: stated 4.0, but it has none",
        "mxfp4_plus: parts.outlier.element: codes.0x1: stated 4.25, derived 4.5",
        "mxfp4_plus: parts.scale: emax: stated 126, derived 127.0",
        f"mxfp4_plus: parts.outlier: it has no such part; expected one of {', '.join(parts)}",
    ]
    assert check_facts(load_format("int4"), facts(parts={"scale": {}})) == [
        "int4: parts.scale: it has no such part; expected none"
    ]


def test_facts_beyond_float64_and_not_finite() -> None:
    wide = FloatFormat(name="wide", kind="float", bits=20, precision=4, bias=32767)
    found = check_facts(wide, facts(max=1.0, min_positive=math.inf))
    assert found == [
        "wide: max: stated 1.0, derived 15 * 2^32765",
        "wide: min_positive: stated inf, derived 1 * 2^-32769",
    ]


class Broken(FloatFormat):
    """One magnitude code too many, as a wrong derivation would have it."""

    @property
    def max_code(self) -> int:
        return super().max_code + 1


def test_conformance_finds_a_wrong_derivation() -> None:
    fmt = Broken(name="broken", kind="float", bits=6, precision=3, bias=3, nan="all-ones")
    found = conformance(fmt)
    assert any("max is 28.0, but of the values it is 24.0" in line for line in found)
    assert all(line.startswith("broken: ") for line in found)
    assert len(found) <= LISTED + 1
