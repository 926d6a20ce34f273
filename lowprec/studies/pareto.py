"""The Pareto front: the choices that no other choice beats in both directions."""

from __future__ import annotations

import math
from collections.abc import Sequence


def pareto(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Which (loss, gain) points are on the front: small losses and large gains are better.

    A point is on it unless another is at least as good in both and better in one; equal points
    are on it together. A point with a NaN is never on it and beats nothing. O(n log n).
    """
    order = sorted(
        (i for i, point in enumerate(points) if not any(map(math.isnan, point))),
        key=lambda i: (-points[i][1], points[i][0]),
    )
    front = [False] * len(points)
    least = math.inf
    last: tuple[float, float] | None = None
    for i in order:
        # Every point before this one has at least its gain, so only the least loss matters.
        if last is None or points[i][0] < least or points[i] == last:
            front[i], least, last = True, points[i][0], points[i]
    return front
