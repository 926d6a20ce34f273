"""One published measurement, and what the model says of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# How the constants behind a prediction came about, best last: from the machine file alone; from
# points of other chips, formats or software; from points of this chip, format and software; the
# point itself is one of a measured table.
Calibration = Literal["spec only", "transferred", "fitted", "measured"]


@dataclass(frozen=True)
class Point:
    """A row of a validation file: the columns as they are written there, missing ones empty.

    hw: the chip as its source spells it; chips: how many; level: "kernel", "collective",
    "e2e inference" or "e2e training"; what, shape, format, conditions: the source's words;
    value: measured, in `unit`, None where only a prediction is asked for.
    """

    id: str
    hw: str
    what: str
    shape: str
    format: str
    unit: str
    chips: float = 1
    level: str = ""
    value: float | None = None
    conditions: str = ""
    source: str = ""
    source_group: str = ""
    note: str = ""


@dataclass(frozen=True)
class Prediction:
    """A value with its 90 % interval, in the point's `unit`."""

    value: float
    low: float
    high: float
    unit: str
    level: Calibration
