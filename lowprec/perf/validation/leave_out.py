"""Errors on matmuls that the fit never saw: whole sites, paths and machines left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lowprec.perf.kernel.constants import Constants, combined, levels
from lowprec.perf.validation.fit import Sample, explain, fit_group, seconds

Left = Literal["site", "path", "machine", "vendor"]
Groups = Mapping[tuple[str, str], Sequence[Sample]]
Fitted = Mapping[tuple[str, str], Constants]


@dataclass(frozen=True, slots=True)
class Residual:
    """What was predicted for a sample whose group, or part of it, was left out."""

    left: Left
    sample: Sample
    predicted: float

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.sample.seconds / self.predicted


def residuals(groups: Groups, fitted: Fitted, left: Left) -> Iterator[Residual]:
    """site: half of a group's (N, K) is predicted from the other half; path: one path of one
    machine from everything else; machine, vendor: all of one from everything else."""
    for group, data in groups.items():
        if left == "site":
            yield from _sites(data)
            continue
        chip = data[0].plan.chip
        others = {
            other: constants
            for other, constants in fitted.items()
            if not _same(left, other, group, groups)
        }
        table = explain(groups, others)
        constants = combined(table, levels(chip.vendor, group[1], chip.family, chip.name))
        yield from _residuals(left, data, constants)


def _same(left: Left, a: tuple[str, str], b: tuple[str, str], groups: Groups) -> bool:
    if left == "path":
        return a == b
    if left == "machine":
        return a[0] == b[0]
    return groups[a][0].plan.chip.vendor == groups[b][0].plan.chip.vendor


def _sites(data: Sequence[Sample]) -> Iterator[Residual]:
    sites = sorted({(s.op.n, s.op.k) for s in data})
    first = set(sites[::2])
    halves = [
        [s for s in data if (s.op.n, s.op.k) in first],
        [s for s in data if (s.op.n, s.op.k) not in first],
    ]
    for seen, unseen in (halves, halves[::-1]):
        if seen and unseen:
            yield from _residuals("site", unseen, fit_group(seen))


def _residuals(left: Left, data: Sequence[Sample], constants: Constants) -> Iterator[Residual]:
    for sample, predicted in zip(data, seconds(data, constants), strict=True):
        yield Residual(left, sample, predicted)
