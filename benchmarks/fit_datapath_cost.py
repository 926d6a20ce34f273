"""Fits the constants of `lowprec.perf.datapath_cost` to benchmarks/datapath_costs.csv.

    python benchmarks/fit_datapath_cost.py

prints the errors on units left out by element format, by window, by lanes and by scale, and writes
lowprec/perf/calibration/datapath_cost.toml.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datapath_costs import FILE, Point, datapath
from numpy.typing import NDArray
from scipy.optimize import nnls

from lowprec.perf.datapath_cost import FILE as CONSTANTS
from lowprec.perf.datapath_cost import levels
from lowprec.perf.pieces import PIECES
from lowprec.perf.unit_pieces import pieces
from lowprec.rtl.synth import COMPONENTS
from lowprec.spec import Format, load_format


@dataclass(frozen=True)
class Measured:
    point: Point
    gates: dict[str, float]
    counted: dict[str, NDArray[np.float64]]
    levels: dict[str, float]
    transistors: float
    delay: float

    @property
    def total(self) -> float:
        return sum(self.gates.values())


def read() -> list[Measured]:
    with FILE.open() as file:
        return [_measured(row) for row in csv.DictReader(file)]


def _measured(row: dict[str, str]) -> Measured:
    point = Point(
        row["element"],
        int(row["window"]),
        int(row["lanes"]),
        row["scale"],
        int(row["group"]),
        row["accumulator"],
    )
    path = datapath(point)
    fmt, scale = load_format(point.element), path.scaling.formats[0] if path.scaling else None
    assert isinstance(fmt, Format)
    found = pieces(path, fmt, fmt, point.lanes, scale)
    names = [n for n in COMPONENTS if n != "convert"]
    return Measured(
        point,
        {n: float(row[f"gates_{n}"]) for n in names} | {"other": float(row["gates_other"])},
        {n: np.array([p[q] for q in PIECES]) for n, p in found.items()},
        levels(path, fmt, fmt, point.lanes),
        float(row["transistors"]),
        float(row["delay"]),
    )


def fit(points: Sequence[Measured]) -> NDArray[np.float64]:
    """Prices of the pieces: relative errors of totals, and less of components."""
    rows, sides = [], []
    for each in points:
        for name, counted in each.counted.items():
            rows.append(counted / each.total)
            sides.append(each.gates[name] / each.total)
        rows.append(5 * sum(each.counted.values()) / each.total)
        sides.append(5.0)
    return np.asarray(nnls(np.array(rows), np.array(sides))[0])


def fit_delay(points: Sequence[Measured]) -> NDArray[np.float64]:
    rows = np.array([list(p.levels.values()) for p in points])
    delays = np.array([p.delay for p in points])
    return np.asarray(nnls(rows / delays[:, None], np.ones(len(points)))[0])


def error(prices: NDArray[np.float64], each: Measured) -> float:
    return float(prices @ sum(each.counted.values()) / each.total - 1)


def left_out(points: Sequence[Measured], group: Callable[[Point], object]) -> list[float]:
    """Errors of every unit that belongs to a group under constants fitted to those of others."""
    found = []
    for value in dict.fromkeys(group(p.point) for p in points if group(p.point) is not None):
        prices = fit([p for p in points if group(p.point) != value])
        found += [error(prices, p) for p in points if group(p.point) == value]
    return found


def main() -> None:
    points = read()
    prices = fit(points)
    groups: dict[str, Callable[[Point], object]] = {
        "element": lambda p: p.element,
        "window": lambda p: p.window,
        "lanes": lambda p: p.lanes,
        "scale": lambda p: (p.scale, p.group > 0) if p.scale else None,
    }
    worst: list[float] = []
    for name, group in groups.items():
        errors = np.abs(left_out(points, group))
        worst += list(errors)
        print(f"left out by {name}: median {np.median(errors):.3f}, worst {errors.max():.3f}")
    own = np.abs([error(prices, p) for p in points])
    print(f"fitted: median {np.median(own):.3f}, worst {own.max():.3f}, {len(points)} units")
    for p in sorted(points, key=lambda p: -abs(error(prices, p)))[:8]:
        print(f"  {error(prices, p):+.3f} {tuple(p.point)}")
    delay = fit_delay(points)
    delays = [float(np.dot(delay, list(p.levels.values()))) / p.delay - 1 for p in points]
    print(f"delay: median {np.median(np.abs(delays)):.3f}, worst {np.max(np.abs(delays)):.3f}")
    lines = [
        f'source = "{len(points)} units of {FILE.name}, fitted by {Path(__file__).name}"',
        f"interval = {np.quantile(worst, 0.9):.3f}",
        f"delay_interval = {np.quantile(np.abs(delays), 0.9):.3f}",
        f"transistors = {np.median([p.transistors / p.total for p in points]):.3f}",
        "\n[gates]",
        *(f"{name} = {price:.3f}" for name, price in zip(PIECES, prices, strict=True)),
        "\n[delay]",
        *(f"{name} = {k:.3f}" for name, k in zip(points[0].levels, delay, strict=True)),
    ]
    CONSTANTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
