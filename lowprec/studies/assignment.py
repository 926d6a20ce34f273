"""Which layer gets which formats: the least predicted loss within a budget, by integer
programming."""

from __future__ import annotations

import random as randomness
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowprec.errors import LowprecError


@dataclass(frozen=True)
class Problem:
    """Each site takes one of `losses.shape[1]` combinations. losses: [sites, combinations], what
    is minimised in sum. uses: for each resource [sites, combinations], of which the sum may be at
    most the resource's limit."""

    losses: np.ndarray
    uses: tuple[np.ndarray, ...]

    def loss(self, chosen: Sequence[int]) -> float:
        return float(sum(self.losses[site, c] for site, c in enumerate(chosen)))

    def fits(self, chosen: Sequence[int], limits: Sequence[float]) -> bool:
        return all(
            sum(use[site, c] for site, c in enumerate(chosen)) <= limit * (1 + 1e-12)
            for use, limit in zip(self.uses, limits, strict=True)
        )

    def best(self, limits: Sequence[float], seconds: float = 60.0) -> list[int]:
        """A combination per site, optimal to a relative gap of 0.1 % or what is best after
        `seconds`. LowprecError where not even the smallest combinations fit."""
        from scipy.optimize import LinearConstraint, milp  # type: ignore[import-untyped]
        from scipy.sparse import csr_matrix, eye, kron  # type: ignore[import-untyped]

        sites, count = self.losses.shape
        one_each = kron(eye(sites), np.ones((1, count)))
        scaled = [use / limit for use, limit in zip(self.uses, limits, strict=True)]
        within = csr_matrix(np.stack([use.reshape(-1) for use in scaled]))
        found = milp(
            # The solver's tolerances are absolute, so losses are given in parts of the largest.
            self.losses.reshape(-1) / self.losses.max(),
            integrality=np.ones(sites * count),
            bounds=(0, 1),
            constraints=[LinearConstraint(one_each, 1, 1), LinearConstraint(within, -np.inf, 1)],
            options={"time_limit": seconds, "mip_rel_gap": 1e-3},
        )
        if found.x is None:
            least = [f"{use.min(axis=1).sum():.6g}" for use in self.uses]
            raise LowprecError(
                f"no assignment uses as little as {', '.join(f'{limit:.6g}' for limit in limits)}; "
                f"the least is {', '.join(least)}"
            )
        chosen = found.x.reshape(sites, count).argmax(axis=1)
        return [int(c) for c in chosen]

    def random(self, limits: Sequence[float], seed: int) -> list[int]:
        """An assignment drawn step by step: from the least of everything, a site at random takes
        a combination at random with less loss, until none that is drawn fits any more."""
        draw = randomness.Random(seed)
        sites, count = self.losses.shape
        least = sum(use / limit for use, limit in zip(self.uses, limits, strict=True))
        chosen = [int(c) for c in np.asarray(least).argmin(axis=1)]
        used = [float(sum(use[s, c] for s, c in enumerate(chosen))) for use in self.uses]
        for _ in range(20 * sites):
            site, new = draw.randrange(sites), draw.randrange(count)
            after = [u + use[site, new] - use[site, chosen[site]]
                     for u, use in zip(used, self.uses, strict=True)]  # fmt: skip
            if self.losses[site, new] < self.losses[site, chosen[site]] and all(
                a <= limit for a, limit in zip(after, limits, strict=True)
            ):
                chosen[site], used = new, after
        return chosen
