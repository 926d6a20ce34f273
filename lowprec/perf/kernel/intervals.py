"""90 % intervals: quantiles of measured over predicted, of points that were left out of the fit."""

from __future__ import annotations

from functools import cache
from typing import Any

from lowprec.perf.kernel.constants import FOLDER
from lowprec.perf.validation.point import Calibration
from lowprec.spec import read_toml

# Rows of the activation, or what corresponds to them, from which a kernel counts as the next.
REGIMES = (("small", 256.0), ("medium", 2048.0), ("large", float("inf")))


def regime(rows: float) -> str:
    """small, medium or large."""
    return next(name for name, end in REGIMES if rows <= end)


@cache
def _table() -> dict[str, Any]:
    return read_toml(FOLDER / "intervals.toml")


@cache
def _factors(kind: str, level: Calibration, name: str) -> tuple[float, float]:
    low, high = _table()[kind][level][name]
    return low, high


def interval(kind: str, level: Calibration, rows: float) -> tuple[float, float]:
    """What a prediction is multiplied with for the two ends of its interval."""
    return _factors(kind, level, regime(rows))
