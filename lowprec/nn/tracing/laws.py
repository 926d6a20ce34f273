"""From passes at several sizes to laws: polynomials that give every size of every operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import prod

from lowprec.spec.law import Factor, Law, Monomial, Sizes, evaluate, spell
from lowprec.spec.schedule import TEXTS, AnyOp, Pass, Template

Record = Callable[[Sizes], tuple[AnyOp, ...]]
BATCH, TOKENS, CONTEXT, LOGITS = (Factor(i) for i in range(4))


class UnlawfulError(Exception):
    """Sizes that follow no law."""


class UnlikeError(UnlawfulError):
    """Layers that look alike differ in their operations."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: layers that look alike differ in their operations")


def laws(record: Record, kind: Pass, windows: Iterable[int]) -> list[Template]:
    """The operations of every pass of `kind`, all their fields, with laws for sizes.

    `record` is asked at as many points as the polynomial has coefficients, which are solved for
    exactly, and at further ones, where the laws have to hold. UnlawfulError: they don't.
    """
    caps = sorted({window - 1 for window in windows})
    terms, points = _design(kind, tuple(caps))
    seen = [[dict(iter(op)) for op in record(point)] for point in points]
    if len({len(each) for each in seen}) > 1:
        raise UnlawfulError("the number of operations depends on the sizes")
    found = [_law(list(column), terms, points) for column in zip(*seen, strict=True)]
    for point in checkpoints(kind, caps):
        if not holds(found, record(point), point):
            raise UnlawfulError(f"a law fails at batch {point.batch}, tokens {point.tokens}, "
                           f"context {point.context}")  # fmt: skip
    return found


def holds(found: Sequence[Template], ops: Sequence[AnyOp], point: Sizes) -> bool:
    """Whether the laws `found` give just `ops` at `point`."""
    return [_at(each, point) for each in found] == [dict(iter(op)) for op in ops]


def checkpoints(kind: Pass, caps: Sequence[int]) -> tuple[Sizes, ...]:
    """Sizes away from those that the laws were made from: batch 1, and beyond every window."""
    far = 2 * max(caps, default=0) + 40
    match kind:
        case "start":
            return Sizes(1, 1, 0, 1), Sizes(5, 1, 0, 1)
        case "prefill":
            return Sizes(1, 6, 0, 1), Sizes(5, far, 0, far)
        case "decode":
            return Sizes(1, 1, 13, 1), Sizes(5, 1, far, 1)
        case "extend":
            return Sizes(1, 4, 13, 1), Sizes(5, 7, far, 7)


def _at(each: Template, point: Sizes) -> Template:
    return {
        name: evaluate(value, point) if isinstance(value, str) and name not in TEXTS else value
        for name, value in each.items()
    }


def _law(
    column: list[Template], terms: tuple[Monomial, ...], points: tuple[Sizes, ...]
) -> Template:
    """One operation of all passes as one with laws."""
    found: Template = {}
    for name in column[0]:
        values = [each.get(name) for each in column]
        if len(set(values)) == 1:
            found[name] = values[0]
        elif all(type(value) is int for value in values):
            found[name] = _solve(terms, points, tuple(values))  # type: ignore[arg-type]
        else:
            raise UnlawfulError(f"{column[0]['path']}: {name} is {values[0]!r} or {values[-1]!r}")
    return found


@lru_cache(maxsize=1 << 12)
def _solve(terms: tuple[Monomial, ...], points: tuple[Sizes, ...], values: tuple[int, ...]) -> Law:
    """The law with integer coefficients of `terms` that has `values` at `points`."""
    inverse = _inverse(terms, points)
    found = []
    for row, factors in zip(inverse, terms, strict=True):
        count = sum((a * value for a, value in zip(row, values, strict=True)), Fraction(0))
        if count.denominator != 1:
            raise UnlawfulError(f"sizes such as {values[0]} and {values[-1]} are no polynomial")
        found.append((int(count), factors))
    return spell(found)


@lru_cache(maxsize=64)
def _design(kind: Pass, caps: tuple[int, ...]) -> tuple[tuple[Monomial, ...], tuple[Sizes, ...]]:
    """Terms of the polynomial of a pass of `kind`, and as many sizes that tell them apart."""
    windowed = [Factor(CONTEXT.size, cap) for cap in caps]
    per_sequence: dict[Pass, list[Monomial]] = {
        "start": [()],
        "prefill": [(), (TOKENS,), (TOKENS, TOKENS)],
        "decode": [(), (CONTEXT,), *((w,) for w in windowed)],
        "extend": [
            *((), (TOKENS,), (TOKENS, TOKENS), (CONTEXT,), (TOKENS, CONTEXT)),
            *((w,) for w in windowed),
            *((TOKENS, w) for w in windowed),
        ],
    }
    terms = [(*batch, *rest) for batch in ((), (BATCH,)) for rest in per_sequence[kind]]
    several = kind in ("prefill", "extend")
    if several:
        terms += [(LOGITS,), (BATCH, LOGITS)]
    contexts = [1, 6, 11, *(c for cap in caps for c in (cap + 3, 2 * cap + 7, 3 * cap + 1))]
    candidates = product(
        (2, 3),
        (2, 5, 9) if several else (1,),
        contexts if kind in ("decode", "extend") else (0,),
        (1, 2) if several else (1,),
    )
    points: list[Sizes] = []
    echelon: list[list[Fraction]] = []
    for point in (Sizes(*c) for c in candidates):
        row = _reduced(_row(tuple(terms), point), echelon)
        if any(row):
            points.append(point)
            echelon.append(row)
    assert len(points) == len(terms), "the sizes do not tell the terms apart"
    return tuple(terms), tuple(points)


def _row(terms: tuple[Monomial, ...], point: Sizes) -> list[Fraction]:
    return [Fraction(prod(factor.at(point) for factor in term)) for term in terms]


def _reduced(row: list[Fraction], echelon: list[list[Fraction]]) -> list[Fraction]:
    for known in echelon:
        lead = next(i for i, value in enumerate(known) if value)
        if row[lead]:
            factor = row[lead] / known[lead]
            row = [a - factor * b for a, b in zip(row, known, strict=True)]
    return row


@lru_cache(maxsize=64)
def _inverse(terms: tuple[Monomial, ...], points: tuple[Sizes, ...]) -> list[list[Fraction]]:
    """Inverse of the matrix of `terms` at `points`, by Gauss and Jordan."""
    n = len(terms)
    rows = [_row(terms, p) + [Fraction(i == j) for j in range(n)] for i, p in enumerate(points)]
    for i in range(n):
        pivot = next(j for j in range(i, n) if rows[j][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for j in range(n):
            if j != i and rows[j][i]:
                rows[j] = [a - rows[j][i] * b for a, b in zip(rows[j], rows[i], strict=True)]
    return [row[n:] for row in rows]
