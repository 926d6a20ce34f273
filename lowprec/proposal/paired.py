"""Differences between two recipes on the same tokens, from their records alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lowprec.spec import Record


@dataclass(frozen=True)
class Difference:
    """Of the second to the first, per token, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


def difference(first: Record, second: Record, metric: str = "kl") -> Difference | None:
    """The paired difference of kl or dnll, clustered by document as the records' own errors are
    (the estimator of `lowprec.eval.power.compare_records`); None where a record lacks the sums of
    its documents, or they are of other tokens."""
    from scipy.stats import t  # type: ignore[import-untyped]

    a, b = (record.details.get("by_cluster", {}) for record in (first, second))
    same = all(first.subject[key] == second.subject[key] for key in ("model", "windows"))
    if not same or metric not in a or metric not in b or len(a["tokens"]) < 3:
        return None
    sizes, total = a["tokens"], sum(a["tokens"])
    sums = [y - x for x, y in zip(a[metric], b[metric], strict=True)]
    value = math.fsum(sums) / total
    residuals = math.fsum((s - value * n) ** 2 for s, n in zip(sums, sizes, strict=True))
    se = math.sqrt(len(sizes) / (len(sizes) - 1) * residuals) / total
    dof = total**2 / sum(n * n for n in sizes) - 1
    half = float(t.ppf(0.975, dof)) * se
    return Difference(value, value - half, value + half)
