"""Answers against the contract's, word by word; any NaN answers for NaN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowprec.exact import value
from lowprec.proposal.vectors import VectorSet
from lowprec.proposal.vectors.model import Words
from lowprec.proposal.verify.results import Results
from lowprec.spec import Format, load_format

Cells = Mapping[str, Words]


@dataclass(frozen=True)
class Mismatch:
    """A row whose answer differs: its number from 0, what was asked, wanted and given."""

    row: int
    why: str
    asked: Cells
    wanted: Cells
    given: Cells


def mismatches(asked: VectorSet, results: Results, formats: Mapping[str, Format]) -> list[Mismatch]:
    """Every row that differs in a column that was answered."""
    wrong = []
    for i in range(asked.rows):
        given = {name: words[i] for name, words in results.columns.items()}
        wanted = {name: asked.column(name).words[i] for name in given}
        if not equal(asked, wanted, given, formats):
            inputs = {c.name: c.words[i] for c in asked.columns if c.role == "in"}
            wrong.append(Mismatch(i, asked.why[i], inputs, wanted, given))
    return wrong


def equal(asked: VectorSet, a: Cells, b: Cells, formats: Mapping[str, Format]) -> bool:
    """Whether two answers are the same, in the columns that both have."""
    for name in a.keys() & b.keys():
        if a[name] == b[name]:
            continue
        fmt = formats.get(asked.column(name).format)
        if fmt is None or len(a[name]) != len(b[name]):
            return False
        if not all(x == y or _both_nan(x, y, fmt) for x, y in zip(a[name], b[name], strict=True)):
            return False
    return True


def _both_nan(x: int, y: int, fmt: Format) -> bool:
    a, b = (value(code, fmt) if code < fmt.code_points else 0 for code in (x, y))
    return a != a and b != b


def ieee_formats() -> dict[str, Format]:
    """The formats of inputs and values, which no spec of a set holds."""
    found = {name: load_format(name) for name in ("float32", "float64", "bfloat16")}
    return {name: fmt for name, fmt in found.items() if isinstance(fmt, Format)}
