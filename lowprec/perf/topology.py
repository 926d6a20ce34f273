"""Levels of a network, and what a group of ranks gets out of one."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from lowprec.perf.quantity import Positive, Quantity
from lowprec.spec import Spec


class Level(Spec):
    """One level of a system's network: units of the level below (chips, at the innermost) joined.

    size: how many units; None: as many as asked for. topology: "switch"; "mesh" (every pair has a
    link of its own), "torus" of `dimensions`, or "fat_tree" of switches, tapered `taper` to 1 at
    its thinnest. bandwidth: bytes/s of one chip in one direction over all its links of this
    level. latency: seconds of one message, if known. pair: bytes/s between two chips at most.
    reduces: whether the switches add up what they forward.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$", max_length=40)]
    topology: Literal["switch", "mesh", "torus", "fat_tree"]
    size: Annotated[int, Field(ge=2)] | None = None
    dimensions: tuple[Annotated[int, Field(ge=1)], ...] = ()
    bandwidth: Quantity
    latency: Quantity | None = None
    pair: Quantity | None = None
    taper: Annotated[Positive, Field(ge=1)] = 1.0
    reduces: bool = False
    note: str | None = None

    @model_validator(mode="after")
    def _shape(self) -> Level:
        if (self.topology == "torus") != bool(self.dimensions):
            raise ValueError("dimensions: expected for a torus, and for nothing else")
        if self.dimensions and math.prod(self.dimensions) != self.size:
            raise ValueError(f"dimensions: {self.dimensions} do not multiply to size {self.size}")
        return self

    @property
    def direct(self) -> bool:
        """Whether chips are wired to each other, without switches."""
        return self.topology in ("mesh", "torus")

    def usable(self, group: int) -> float:
        """Bytes/s in one direction that one of `group` ranks gets for a ring or for an exchange
        with all others: of a mesh the links to the others, of a torus the axes that the group
        spans."""
        full = self.bandwidth.value
        match self.topology:
            case "switch":
                return full
            case "fat_tree":
                return full / self.taper
            case "mesh":
                others = (self.size or group) - 1
                return min(full, (group - 1) * (self.pair.value if self.pair else full / others))
            case "torus":
                return full * sum(self._axes(group)) / len(self.dimensions)

    def hops(self, group: int) -> int:
        """Messages, one after another, until every rank has heard of every other by a ring; on a
        mesh one, on a torus half of the longest way round each axis, both ways at once."""
        if self.topology == "mesh":
            return 1
        if self.topology == "torus":
            return sum(n // 2 if wraps else n - 1 for n, wraps in self._spans(group) if n > 1)
        return group - 1

    def exchange(self, group: int) -> float:
        """Bytes/s of one rank when all ranks send to all others: on a torus each byte passes
        several links of an axis, and the busiest axis decides."""
        if self.topology != "torus":
            return self.usable(group)
        axis = self.bandwidth.value / len(self.dimensions)
        # The cut through the middle of a ring of n has two links, that of a line one.
        loads = [n / (4 if wraps else 2) for n, wraps in self._spans(group) if n > 1]
        return min(self.usable(group), axis / max(loads)) if loads else axis

    def _spans(self, group: int) -> list[tuple[int, bool]]:
        """Ranks along each axis, filled one axis after another, and whether they close a ring."""
        spans = []
        left = group
        for n in self.dimensions:
            here = min(n, left)
            spans.append((here, here == n and n > 2))
            left = -(-left // here)
        return spans

    def _axes(self, group: int) -> list[float]:
        """The share of each axis' links that the group can use: a line lacks the way back."""
        return [(1.0 if wraps else 0.5) if n > 1 else 0.0 for n, wraps in self._spans(group)]
