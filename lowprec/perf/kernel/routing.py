"""Which experts get how many rows: evenly, or under a power law."""

from __future__ import annotations

import math
from functools import lru_cache

Rows = tuple[tuple[float, float], ...]


@lru_cache(maxsize=4096)
def spread(total: float, tokens: float, local: int, groups: int, skew: float) -> Rows:
    """How many of `local` experts get how many of `total` rows, those that get any.

    skew: exponent of the power law p(x) ~ x^-skew between one row and 0.8 of the `tokens`, which
    the experts' shares are drawn from; 0: an even spread. These are the experts of the busiest of
    `groups` devices (ai-dynamo/aiconfigurator@095f58a's benchmark of experts has both so).
    """
    if skew <= 0 or tokens < 2:
        busy = min(float(local), max(total, 1.0))
        return ((max(total, 1.0) / busy, busy),)
    top, power = 0.8 * tokens, 1 - skew
    places = [(i + 0.5) / local for i in range(local)]
    if abs(power) < 1e-6:
        shares = [top**u for u in places]
    else:
        shares = [((top**power - 1) * u + 1) ** (1 / power) for u in places]
    mean = sum(shares) / local
    deviation = math.sqrt(sum((s - mean) ** 2 for s in shares) / local) / mean
    # The busiest of `groups` random parts of the experts, as of normal deviates.
    busiest = 1 + deviation * math.sqrt(2 * math.log(groups) / local)
    scale = total * busiest / sum(shares)
    counts: dict[float, float] = {}
    for share in shares:
        expected = min(share * scale, float(tokens))
        rows = float(round(expected)) if expected >= 1 else 1.0
        counts[rows] = counts.get(rows, 0.0) + min(expected, 1.0)
    return tuple(sorted(counts.items()))
