"""What the unit's sums are off by, on the inner products of the vectors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from fractions import Fraction

from lowprec.exact import value
from lowprec.proposal.document import Paragraph
from lowprec.proposal.subject import Proposal
from lowprec.proposal.vectors import VectorSet
from lowprec.spec import Datapath, load_format
from lowprec.spec.format import Format

# What a row was made for: sums of random codes of every size, and sums that cancel.
ASKED = {"normal": "random codes", "cancels": "sums that cancel"}


def measured_error(p: Proposal, sets: Sequence[VectorSet]) -> list[Paragraph]:
    """Errors relative to the sum of magnitudes; nothing where there are no inner products."""
    unit = p.ours.unit
    dots = [found for found in sets if found.kind == "dot"]
    if unit is None or not dots:
        return []
    parts = []
    for why, what in ASKED.items():
        errors = [e for found in dots for e in _errors(unit, found, why)]
        if errors:
            median, worst = _power(statistics.median(errors)), _power(max(errors))
            parts.append(f"{what} ({len(errors)} inner products): median {median}, worst {worst}")
    text = (
        "**Measured** on the vectors of section 13, as the distance to the exact sum over the sum "
        f"of the terms' magnitudes: {'; '.join(parts)}."
    )
    return [Paragraph(text)] if parts else []


def _errors(unit: Datapath, found: VectorSet, why: str) -> list[float]:
    a, b, c, d = (found.column(name) for name in "abcd")
    fmt, out = _scalar(unit, a.format), load_format(d.format)
    assert isinstance(out, Format)
    scaled = unit.scaling is not None
    errors = []
    for i in range(found.rows):
        total = value(d.words[i][0], out)
        if found.why[i] != why or not math.isfinite(total):
            continue
        terms = [
            Fraction(value(x, fmt)) * Fraction(value(y, fmt))
            for x, y in zip(a.words[i], b.words[i], strict=True)
        ]
        if scaled and unit.scaling is not None:
            scale, size = unit.scaling.formats[0], unit.scaling.block
            scales = [
                [Fraction(value(s, scale)) for s in found.column(f"scale_{x}").words[i]]
                for x in "ab"
            ]
            terms = [t * scales[0][k // size] * scales[1][k // size] for k, t in enumerate(terms)]
        terms.append(Fraction(value(c.words[i][0], out)))
        size_of = sum(map(abs, terms))
        if size_of:
            errors.append(float(abs(Fraction(total) - sum(terms)) / size_of))
    return errors


def _scalar(unit: Datapath, name: str) -> Format:
    return next(fmt for fmt in unit.inputs if fmt.name == name)


def _power(x: float) -> str:
    """About 2^-24.3; zero where there is no error at all."""
    return f"2^−{-math.log2(x):.1f}" if x else "0"
