"""Error tables: predictions against measurements, by level, chip, format and regime."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lowprec.perf.hardware import machine
from lowprec.perf.kernel.constants import NAMES, Constants, gemm_table
from lowprec.perf.kernel.intervals import interval, regime
from lowprec.perf.validation.files import has_points
from lowprec.perf.validation.fit import grouped, samples
from lowprec.perf.validation.leave_out import Left, Residual, residuals
from lowprec.perf.validation.point import Point
from lowprec.perf.validation.predict import Answer, answer
from lowprec.perf.validation.text import sizes


@dataclass(frozen=True, slots=True)
class Error:
    """One predicted and measured value, in one unit, and what to group it by."""

    set: str
    level: str
    chip: str
    format: str
    regime: str
    predicted: float
    measured: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True)
class Row:
    """Errors of the points that have `value` in column `by`, as shares; coverage: the share of
    measurements within the 90 % interval."""

    by: str
    value: str
    points: int
    median: float
    mean: float
    p90: float
    bias: float
    coverage: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


BY: Mapping[str, Callable[[Error], str]] = {
    "set": lambda e: e.set,
    "level": lambda e: f"{e.set}: {e.level}",
    "chip": lambda e: f"{e.set}: {e.chip}",
    "format": lambda e: f"{e.set}: {e.format}",
    "regime": lambda e: f"{e.set}: {e.regime}",
}


def rows(errors: Iterable[Error]) -> list[Row]:
    """One row per value of each way to group."""
    found = list(errors)
    result = []
    for by, key in BY.items():
        groups: dict[str, list[Error]] = {}
        for error in found:
            groups.setdefault(key(error), []).append(error)
        result += [_row(by, value, group) for value, group in groups.items()]
    return result


def _row(by: str, value: str, group: Sequence[Error]) -> Row:
    absolute = sorted(abs(e.relative) for e in group)
    inside = sum(e.low <= e.measured <= e.high for e in group)
    return Row(
        by=by,
        value=value,
        points=len(group),
        median=statistics.median(absolute),
        mean=statistics.fmean(absolute),
        p90=absolute[min(len(absolute) - 1, int(0.9 * len(absolute)))],
        bias=statistics.median(e.relative for e in group),
        coverage=inside / len(group),
    )


def errors(name: str, points: Iterable[Point]) -> tuple[list[Error], list[Answer]]:
    """Errors of the points of a set, and the answers that are reasons."""
    found, refused = [], []
    for each in map(answer, points):
        if each.prediction is None or not each.point.value:
            refused.append(each)
            continue
        p = each.prediction
        found.append(
            Error(
                set=_set(name, each.point),
                level=p.level,
                chip=machine(each.point.hw).name,
                format=each.point.format or each.point.what,
                regime=_regime(each.point),
                predicted=p.value,
                measured=each.point.value,
                low=p.low,
                high=p.high,
            )
        )
    return found, refused


def _set(name: str, point: Point) -> str:
    """Times per output token and to the first one are sets of their own, as are servers whose
    prefill and decode are apart."""
    if found := re.search(r"\b(agg|disagg) (TPOT|TTFT)$", point.what):
        return f"{name}, {found[2]}{', apart' if found[1] == 'disagg' else ''}"
    return name


def _regime(point: Point) -> str:
    found = sizes(point.shape)
    tokens = found.get("m", found.get("t", 1))
    return regime(found.get("b", 1) * found.get("s", 1) if "s" in found else tokens)


def fitted_groups() -> dict[tuple[str, str], Constants]:
    """The constants of all groups that have points of their own."""
    return {
        (name, path): Constants(**{key: values[key] for key in NAMES})
        for name, paths in gemm_table()["group"].items()
        for path, values in paths.items()
    }


def left_out(points: Iterable[Point], left: Left) -> list[Error]:
    """Errors of matmuls whose sites, path or machine were left out of the fit."""
    groups = grouped(samples(points))
    level = {"site": "fitted", "vendor": "spec only"}.get(left, "transferred")
    return [_left(left, level, r) for r in residuals(groups, fitted_groups(), left)]


def _left(left: Left, level: Any, r: Residual) -> Error:
    m = r.sample.op.m
    low, high = interval("gemm", level, m)
    plan = r.sample.plan
    return Error(
        set=f"matmuls, {left} left out",
        level=level,
        chip=plan.chip.name,
        format=plan.path,
        regime=regime(m),
        predicted=r.predicted,
        measured=r.sample.seconds,
        low=r.predicted * low,
        high=r.predicted * high,
    )


def validation_files(folder: Path) -> list[Path]:
    """The validation files of a folder, by name: those with the columns of points."""
    return [path for path in sorted(folder.glob("*.csv")) if has_points(path)]
