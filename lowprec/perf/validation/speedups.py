"""Speed-ups of formats over bfloat16: matmuls timed in both, on one chip and of one shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from lowprec.perf.kernel.intervals import interval, regime
from lowprec.perf.validation.fit import Sample, grouped, samples, seconds
from lowprec.perf.validation.leave_out import Fitted, residuals
from lowprec.perf.validation.point import Calibration, Point
from lowprec.perf.validation.table import Error

NAME = "speed-up over bf16"
_PLAIN = "plain/16"


def speedups(points: Iterable[Point], fitted: Fitted) -> list[Error]:
    """Errors of the speed-ups, with the constants of each chip and format."""
    data = samples(points)
    own = {group: seconds(some, fitted[group]) for group, some in grouped(data).items()}
    return list(_ratios(data, own, NAME, "fitted"))


def left_out(points: Iterable[Point], others: Iterable[Point], fitted: Fitted) -> list[Error]:
    """The same with the format of the chip left out of the fit; bfloat16's stays.

    others: those that the constants were fitted to.
    """
    data = samples(points)
    groups = grouped(data)
    found: dict[tuple[str, str], list[float]] = {}
    for r in residuals(grouped(samples(others)) | groups, fitted, "path"):
        if r.sample.group in groups and r.sample.plan.path != _PLAIN:
            found.setdefault(r.sample.group, []).append(r.predicted)
    found |= {g: seconds(some, fitted[g]) for g, some in groups.items() if g[1] == _PLAIN}
    return list(_ratios(data, found, f"{NAME}, format left out", "transferred"))


def _ratios(
    data: list[Sample],
    predicted: dict[tuple[str, str], list[float]],
    name: str,
    level: Calibration,
) -> Iterator[Error]:
    times: dict[tuple[str, int, int, int], dict[str, tuple[float, float]]] = {}
    for group, some in grouped(data).items():
        for sample, ours in zip(some, predicted[group], strict=True):
            key = (group[0], sample.op.m, sample.op.n, sample.op.k)
            times.setdefault(key, {})[group[1]] = (ours, sample.seconds)
    for (chip, m, _, _), paths in times.items():
        if _PLAIN not in paths:
            continue
        ours, theirs = paths.pop(_PLAIN)
        # The interval is that of the format's time; that of bfloat16 errs alike.
        low, high = interval("gemm", level, m)
        error = Error(name, level, chip, "", regime(m), 0.0, 0.0, 0.0, 0.0)
        for path, (time, measured) in paths.items():
            ratio = ours / time
            yield replace(
                error,
                format=path,
                predicted=ratio,
                measured=theirs / measured,
                low=ratio / high,
                high=ratio / low,
            )
