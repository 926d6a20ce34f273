"""One comparison with a peer: its answers, ours, and why they differ where they do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

Where = Callable[["Case"], Tensor]


@dataclass(frozen=True)
class Reason:
    """Why answers differ, and where they may: a mask over the inputs."""

    why: str
    where: Where


@dataclass(frozen=True)
class Case:
    """x: inputs. ours, theirs: an answer each. NaN equals NaN, and zeros have signs."""

    peer: str
    what: str
    rule: str
    x: Tensor
    ours: Tensor
    theirs: Tensor
    reasons: tuple[Reason, ...] = ()

    @cached_property
    def differ(self) -> Tensor:
        a, b = self.ours.double(), self.theirs.double()
        same = (a == b) & (a.signbit() == b.signbit()) | (a.isnan() & b.isnan())
        return ~same

    @cached_property
    def explained(self) -> list[tuple[Reason, int, str]]:
        """Every reason with the number of inputs that it explains and no reason before it, and one
        of these."""
        left, found = self.differ, []
        for reason in self.reasons:
            here = left & reason.where(self)
            left = left & ~here
            found.append((reason, int(here.sum()), self.example(here) if here.any() else ""))
        return found

    def unexplained(self) -> str:
        """A reason without a difference, or the first difference without a reason, or nothing."""
        for reason, count, _ in self.explained:
            if not count:
                return f"no input differs because it {reason.why!r}"
        if int(self.differ.sum()) == sum(count for _, count, _ in self.explained):
            return ""
        left = self.differ
        for reason in self.reasons:
            left = left & ~reason.where(self)
        return f"{int(left.sum())} unexplained: {self.example(left)}"

    def example(self, here: Tensor) -> str:
        """The simplest input of a mask, with both answers."""
        at = min(here.nonzero().flatten().tolist(), key=lambda i: _length(self.x[i].item()))
        x, ours, theirs = (show(t[at].item()) for t in (self.x, self.ours, self.theirs))
        return f"{x} gives {theirs}, here {ours}"


def _length(x: float) -> tuple[int, bool, float]:
    """Short numbers first: few significant bits, then positive, then near 1."""
    if not math.isfinite(x) or x == 0:
        return 0, x < 0, 0.0
    n = x.as_integer_ratio()[0]
    return len(f"{abs(n):b}".strip("0")), x < 0, abs(math.log2(abs(x)))


def show(x: float) -> str:
    """A number that reads back as itself: decimal where that is short, else with a power of two."""
    if math.isfinite(x) and x == int(x) != 0 and abs(x) < 1e8:
        return str(int(x))
    if not math.isfinite(x) or (len(text := f"{x:g}") < 9 and float(text) == x):
        return {"inf": "Inf", "-inf": "-Inf", "nan": "NaN"}.get(f"{x}", f"{x:g}")
    mantissa, exponent = math.frexp(x)
    odd = int(mantissa * 2**53)
    while odd % 2 == 0:
        odd, exponent = odd // 2, exponent + 1
    power = exponent - 53
    return f"{'-' if odd == -1 else ''}2^{power}" if abs(odd) == 1 else f"{odd} * 2^{power}"


def nan_input(case: Case) -> Tensor:
    return case.x.isnan()
