"""Which differences are real: many at once, and answers of tasks item by item."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowprec.errors import LowprecError

Z = 1.959963984540054  # two-sided 95 % of the normal distribution


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p-values of Holm (Scandinavian Journal of Statistics 6, 1979).

    Calling those below a significant keeps the chance of one wrong call among all of them below
    a, whatever their dependence: recipes on the same tokens are dependent.
    """
    values = np.asarray(p, np.float64)
    order = np.argsort(values, kind="stable")
    steps = (len(values) - np.arange(len(values))) * values[order]
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return [float(v) for v in adjusted]


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Adjusted p-values of Benjamini and Hochberg (Journal of the Royal Statistical Society B 57,
    1995), by scipy: of the calls made below a, a share below a is wrong in expectation, where the
    tests are independent or positively dependent."""
    from scipy.stats import false_discovery_control

    return [float(v) for v in false_discovery_control(p)] if len(p) else []


@dataclass(frozen=True)
class Paired:
    """Right answers of two runs to the same items. lost: right in the first only; gained: right in
    the second only; difference: change of the accuracy, with its standard error; p: McNemar's."""

    items: int
    lost: int
    gained: int
    difference: float
    se: float
    p: float


def mcnemar(before: Sequence[float], after: Sequence[float]) -> Paired:
    """McNemar's exact test (Psychometrika 12, 1947): of the items that changed, were as many lost
    as gained? The p-value is the two-sided binomial one, so it holds for few changes too.

    before, after: 0 or 1 per item, in the same order. LowprecError for other values or lengths.
    """
    from scipy.stats import binomtest

    a, b = (np.asarray(v, np.float64) for v in (before, after))
    if a.shape != b.shape or not np.isin(np.concatenate([a, b]), (0.0, 1.0)).all() or not a.size:
        raise LowprecError(
            f"McNemar's test: expected 0 or 1 for each of the same items, got {a.size} and {b.size}"
        )
    lost, gained = int((a > b).sum()), int((b > a).sum())
    n, d = a.size, b - a
    p = float(binomtest(lost, lost + gained).pvalue) if lost + gained else 1.0
    se = float(d.std(ddof=1)) / n**0.5 if n > 1 else 0.0
    return Paired(n, lost, gained, float(d.mean()), se, p)


def interval_of_share(right: int, items: int) -> tuple[float, float]:
    """95 % interval of a share of right answers: Wilson's (JASA 22, 1927), which has a width at 0
    and at 1 too."""
    from scipy.stats import binomtest

    found = binomtest(right, items).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def interval_of_change(lost: int, gained: int, items: int) -> tuple[float, float]:
    """95 % interval of the change of that share, paired item by item: Agresti and Min's (Statistics
    in Medicine 24, 2005), Wald's with half an item more in each cell of the two by two table. Where
    nothing changed it still has a width, as it should: the next item may change."""
    n, change = items + 2, gained - lost
    half = Z * math.sqrt(lost + gained + 1 - change**2 / n) / n
    return max(change / n - half, -1.0), min(change / n + half, 1.0)
