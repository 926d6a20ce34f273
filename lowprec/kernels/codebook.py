"""Projection onto codebooks: a search among the thresholds at which the answer changes.

Every deterministic rounding is a step function of x. Its thresholds are computed in exact
arithmetic and rounded up to the dtype, which no x of that dtype can tell from the exact ones.
Stochastic rounding finds the gap that x lies in and compares in exact sums of float64 terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels.grid import Ends, ends_of
from lowprec.kernels.word import Word
from lowprec.spec.format import CodebookFormat, floor_log2, pow2
from lowprec.spec.projection import Projection

# The width of a gap, in float64 terms of so few bits that 32 random bits times one are exact.
GAP_TERMS, GAP_BITS = 4, 21
# Of a value, an x or a width: float64 terms whose sum it is.
Terms = tuple[float, ...]


@dataclass(frozen=True)
class Steps:
    """The answer for a finite x is ``answers[number of thresholds at or below key_of(x)]``.

    Thresholds are ascending keys, answers bits of the dtype, sign included. zero_is_special: x = 0
    has the answer in `ends`; where 0 lies between two values without being one, it is like other x.
    For stochastic rounding the thresholds are the values themselves, and gap i lies between
    answers i and i + 1.
    """

    word: Word
    thresholds: tuple[int, ...]
    answers: tuple[int, ...]
    zero_is_special: bool
    ends: Ends
    gaps: tuple[Gap, ...] = ()
    random_bits: int | None = None


class Point(NamedTuple):
    """A value that rounding may give; `odd`: the parity of its rank; `answer`: bits."""

    value: Fraction
    odd: bool
    answer: int


class Gap(NamedTuple):
    """The two sides of a gap and 2^-random_bits times its width."""

    low: Terms
    high: Terms
    width: Terms


@lru_cache(maxsize=256)
def steps_of(fmt: CodebookFormat, projection: Projection, word: Word) -> Steps:
    """The step function of a codebook whose values `word` holds."""
    ends = ends_of(fmt, projection, word)
    finite = sorted({Fraction(v) for v in fmt.values if abs(v) < float("inf")})
    zero_is_special = finite[0] >= 0 or 0 in finite
    points = _points(finite, ends, word)
    answers = tuple(point.answer for point in points)
    if projection.bits is not None:
        thresholds = tuple(_key(point.value, False, word) for point in points[1:])
        gaps = tuple(_gap(low, high, projection.bits, fmt) for low, high in pairwise(points))
        return Steps(word, thresholds, answers, zero_is_special, ends, gaps, projection.bits)
    thresholds = tuple(
        _key(*_threshold(low, high, projection.rounding), word) for low, high in pairwise(points)
    )
    return Steps(word, thresholds, answers, zero_is_special, ends)


def _points(finite: list[Fraction], ends: Ends, word: Word) -> list[Point]:
    """All that rounding may give, ascending: the values, and at each end the last gap once more.

    A format without negative values has the mirror image of its smallest one below zero, which
    overflows; without zero as well, its smallest value is the lowest point.
    """
    gaps = [high - low for low, high in pairwise(finite)] or finite
    values = [*finite, finite[-1] + gaps[-1]]
    answers = [*map(word.bits, finite), ends.overflow[0]]
    if finite[0] <= 0:
        below = finite[0] - gaps[0] if finite[0] < 0 else -next(v for v in finite if v > 0)
        values, answers = [below, *values], [ends.overflow[1], *answers]
    ranks = {v: rank for rank, v in enumerate((v for v in values if v > 0), 1)}
    ranks |= {v: rank for rank, v in enumerate((v for v in reversed(values) if v < 0), 1)}
    return [
        Point(v, ranks.get(v, 0) % 2 == 1, bits) for v, bits in zip(values, answers, strict=True)
    ]


def _threshold(low: Point, high: Point, rounding: str) -> tuple[Fraction, bool]:
    """(at, beyond): the upper of two neighbours is the answer from `at` on, or beyond it."""
    middle = (low.value + high.value) / 2
    match rounding:
        case "nearest-even":
            return middle, high.odd and not low.odd
        case "nearest-away":
            return middle, middle < 0
        case "toward-zero":
            up = abs(high.value) <= abs(low.value)
        case "to-odd":
            up = high.odd or not low.odd
        case _:
            up = rounding == "up"
    return (low.value, True) if up else (high.value, False)


def _key(at: Fraction, beyond: bool, word: Word) -> int:
    """Key of the smallest number of the dtype that is at least `at`, or greater than it."""
    pattern, exact = word.floor(abs(at))
    floor = pattern if at >= 0 else -pattern - (not exact)
    return floor + (beyond or not exact)


def _gap(low: Point, high: Point, random_bits: int, fmt: CodebookFormat) -> Gap:
    width = (high.value - low.value) * pow2(-random_bits)
    split = [_terms(low.value, 2, 53), _terms(high.value, 2, 53)]
    split.append(_terms(width, GAP_TERMS, GAP_BITS))
    if None in split:
        raise LowprecError(
            f"{fmt.name}: stochastic rounding needs gaps of at most {GAP_TERMS * GAP_BITS} bits; "
            f"the one from {float(low.value)} to {float(high.value)} has more"
        )
    return Gap(*split)


def _terms(x: Fraction, count: int, bits: int) -> Terms | None:
    """`count` float64 numbers of `bits` bits whose sum is `x`, or None."""
    terms = []
    for _ in range(count):
        ulp = pow2(floor_log2(abs(x)) - bits + 1) if x else Fraction(1)
        term = x // ulp * ulp
        terms.append(float(term))
        x -= term
    return None if x else tuple(terms)


def key_of(x: Tensor, word: Word) -> Tensor:
    """Integers that order as the numbers do; of both zeros 0."""
    bits = x.view(word.int_dtype)
    pattern = bits & word.magnitude
    return torch.where(bits < 0, -pattern, pattern)


def project_steps(x: Tensor, steps: Steps, random: Tensor | None = None) -> Tensor:
    """As `round.project`, onto a codebook."""
    word, ends = steps.word, steps.ends

    def table(entries: tuple[int, ...] | Tensor) -> Tensor:
        if isinstance(entries, Tensor):
            return entries
        return torch.tensor(entries, dtype=word.int_dtype, device=x.device)

    key = key_of(x, word)
    # A strided tensor would be copied with a warning.
    index = torch.searchsorted(table(steps.thresholds), key.contiguous(), right=True)
    if steps.random_bits is not None:
        assert random is not None
        index = _stochastic(x, index.clamp(max=len(steps.gaps) - 1), key < 0, steps, random)
    answer = table(steps.answers)[index]

    pattern, minus = key.abs(), x.view(word.int_dtype) < 0

    def end(pair: tuple[int, int]) -> Tensor:
        return torch.where(minus, pair[1], pair[0]).to(word.int_dtype)

    zero = (answer & word.magnitude) == 0
    if steps.zero_is_special:
        zero |= pattern == 0
    result = torch.where(minus & (ends.bound[1] == 0), ends.overflow[1], answer)
    result = torch.where(zero, end(ends.zero), result.to(word.int_dtype))
    result = torch.where(pattern == word.infinity, end(ends.infinity), result)
    return torch.where(pattern > word.infinity, word.nan, result).view(word.dtype)


def _stochastic(x: Tensor, gap: Tensor, minus: Tensor, steps: Steps, random: Tensor) -> Tensor:
    """Index of the answer: away from zero if x is at most random * width / 2^n from that side."""
    table = torch.tensor(
        [[*gap.low, *gap.high, *gap.width] for gap in steps.gaps],
        dtype=torch.float64,
        device=x.device,
    )
    low1, low2, high1, high2, *width = table[gap].unbind(-1)
    x, random = x.double(), random.double()
    to_high = [high1, high2, -x]
    to_low = [-low1, -low2, x]
    away = [torch.where(minus, a, b) for a, b in zip(to_low, to_high, strict=True)]
    near = _sign_of_sum([*away, *(-random * term for term in width)]) <= 0
    return gap + (near ^ minus)


def _sign_of_sum(terms: list[Tensor]) -> Tensor:
    """A number of the sign of the exact sum of float64 terms.

    J. Shewchuk, Adaptive Precision Floating-Point Arithmetic (1997): each term is added to a
    nonoverlapping expansion, whose largest nonzero component then has the sign of the whole.
    """
    expansion: list[Tensor] = []
    for term in terms:
        errors = []
        for component in expansion:
            total = term + component
            part = total - term
            errors.append((term - (total - part)) + (component - part))
            term = total
        expansion = [*errors, term]
    sign = expansion[0]
    for component in expansion[1:]:
        sign = torch.where(component == 0, sign, component)
    return sign
