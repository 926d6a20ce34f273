"""Fits the slowdowns of training frameworks to benchmarks/validation/training.csv.

python benchmarks/fit_training.py     # rewrites lowprec/perf/calibration/training.toml
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from lowprec.perf.framework import framework
from lowprec.perf.kernel.constants import FOLDER
from lowprec.perf.validation.files import read_points
from lowprec.perf.validation.point import Point
from lowprec.perf.validation.training import predict

POINTS = Path(__file__).parent / "validation" / "training.csv"
SOURCES = {
    "megatron": "arXiv 2205.05198 table 5",
    "torchtitan": "pytorch/torchtitan@b5bcd76 benchmarks",
    "torchao": "pytorch/ao@36027d8 docs/source/workflows/training.md",
}
HEAD = """# Written by benchmarks/fit_training.py from validation/training.csv: {points} published
# steps. What one takes beyond its kernels priced alone: clocks that fall under hours of load,
# launches, the framework. slowdown: measured over priced, the median of the points; interval: what
# 90 % of the points' ratios to that lie between, widened to the next 5 %.
"""


def ratio(point: Point, name: str) -> float:
    """Measured seconds over those of the kernels alone."""
    found = predict(point)
    assert found is not None
    assert point.value is not None
    over = point.value / found.value
    return framework(name).slowdown * (over if point.unit == "s" else 1 / over)


def section(name: str, ratios: Sequence[float]) -> str:
    import numpy as np

    slowdown = statistics.median(ratios)
    low, high = np.quantile(np.array(ratios) / slowdown, [0.05, 0.95])
    ends = math.floor(20 * low) / 20, math.ceil(20 * high) / 20
    errors = np.abs(slowdown / np.array(ratios) - 1)
    print(name, f"{slowdown:.3f}, median error {np.median(errors):.1%}, worst {errors.max():.1%}")
    source = f"{SOURCES[name]}, {len(ratios)} rows: {min(ratios):.2f} to {max(ratios):.2f}"
    return (
        f"\n[{name}]\nslowdown = {slowdown:.4g}\ninterval = [{ends[0]:.2f}, {ends[1]:.2f}]\n"
        f'source = "{source}"\n'
    )


def main() -> None:
    points = list(read_points(POINTS))
    text = HEAD.format(points=len(points))
    for name in SOURCES:
        own = [p for p in points if p.source_group.startswith(name)]
        text += section(name, [ratio(point, name) for point in own])
    (FOLDER / "training.toml").write_text(text)


if __name__ == "__main__":
    main()
