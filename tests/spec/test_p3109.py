"""IEEE P3109 formats against the value tables that the working group publishes.

The tables (Binary{K}p{P}{s|u}{e|f}.csv: codepoint, value, subnormal) are read from the folder
that LOWPREC_P3109_TABLES names; those of K = 3 stand here and are always compared.
"""

from __future__ import annotations

import csv
import math
import os
from fractions import Fraction
from pathlib import Path

import pytest

from lowprec.exact import identical, value_table
from lowprec.spec import FloatFormat, load_format
from lowprec.spec.format import pow2

DEFAULT = Path(__file__).parents[2].parent / "shared" / "reference" / "formats" / "p3109"
TABLES = Path(os.environ.get("LOWPREC_P3109_TABLES") or DEFAULT)

# Published tables, value column, in the order of the code points.
K3 = {
    "binary3p1se": "0x0p+0 0x1p-1 0x1p+0 Inf NaN -0x1p-1 -0x1p+0 -Inf",
    "binary3p1sf": "0x0p+0 0x1p-1 0x1p+0 0x1p+1 NaN -0x1p-1 -0x1p+0 -0x1p+1",
    "binary3p1ue": "0x0p+0 0x1p-3 0x1p-2 0x1p-1 0x1p+0 0x1p+1 Inf NaN",
    "binary3p1uf": "0x0p+0 0x1p-3 0x1p-2 0x1p-1 0x1p+0 0x1p+1 0x1p+2 NaN",
    "binary3p2se": "0x0p+0 0x0.8p+0 0x1p+0 Inf NaN -0x0.8p+0 -0x1p+0 -Inf",
    "binary3p2sf": "0x0p+0 0x0.8p+0 0x1p+0 0x1.8p+0 NaN -0x0.8p+0 -0x1p+0 -0x1.8p+0",
    "binary3p2ue": "0x0p+0 0x0.4p+0 0x1p-1 0x1.8p-1 0x1p+0 0x1.8p+0 Inf NaN",
    "binary3p2uf": "0x0p+0 0x0.4p+0 0x1p-1 0x1.8p-1 0x1p+0 0x1.8p+0 0x1p+1 NaN",
}


def number(text: str) -> Fraction | float:
    """A value of a table: hexadecimal of any range, exact; Inf, -Inf or NaN."""
    sign = -1 if text.startswith("-") else 1
    text = text.removeprefix("-")
    if text in ("Inf", "NaN"):
        return sign * math.inf if text == "Inf" else math.nan
    digits, _, exponent = text.removeprefix("0x").partition("p")
    whole, _, fraction = digits.partition(".")
    return sign * int(whole + fraction, 16) * pow2(int(exponent) - 4 * len(fraction))


def p3109(name: str) -> FloatFormat:
    fmt = load_format(name)
    assert isinstance(fmt, FloatFormat)
    return fmt


@pytest.mark.parametrize("name", K3)
def test_tables_of_three_bits(name: str) -> None:
    expected = [number(text) for text in K3[name].split()]
    ours = value_table(p3109(name))
    assert [identical(a, b) for a, b in zip(ours, expected, strict=True)] == [True] * 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0x0p+0", Fraction(0)),
        ("0x0.8p+0", Fraction(1, 2)),
        ("-0x1.8p-3", Fraction(-3, 16)),
        ("0x1.cp+8191", 7 * pow2(8189)),
        ("-Inf", -math.inf),
    ],
)
def test_table_numbers(text: str, expected: Fraction | float) -> None:
    assert number(text) == expected


def test_published_tables() -> None:
    files = sorted(TABLES.glob("Binary*.csv"))
    if not files:
        pytest.skip("no value tables: set LOWPREC_P3109_TABLES to the folder that holds them")
    for path in files:
        fmt = p3109(path.stem.replace("Binary", "binary"))
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [int(row["codepoint"], 16) for row in rows] == list(range(1 << fmt.bits)), path.name
        for row, ours in zip(rows, value_table(fmt), strict=True):
            assert identical(ours, number(row["value"])), (path.name, row)
            subnormal = 0 < abs(ours) < fmt.min_normal_exact
            assert subnormal == (row["subnormal"].strip() == "*"), (path.name, row)
