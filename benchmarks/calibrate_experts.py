"""Fits fused mixture-of-experts layers to benchmarks/validation/experts.csv.

python benchmarks/calibrate_experts.py     # rewrites calibration/experts.toml and its intervals
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.calibrate import replace_section
from lowprec.perf.kernel.constants import FOLDER
from lowprec.perf.kernel.grouped import Experts, cost
from lowprec.perf.kernel.intervals import REGIMES
from lowprec.perf.kernel.plan import Plan
from lowprec.perf.validation.experts import measured
from lowprec.perf.validation.files import read_points

POINTS = Path(__file__).parent / "validation" / "experts.csv"
PRIOR = {"launch": (2e-5, 0.7), "slow": (1.3, 0.4), "passes": (1.0, 0.7)}
HEAD = """# Written by benchmarks/calibrate_experts.py from validation/experts.csv: {points}
# published times (ai-dynamo/aiconfigurator@095f58a, Apache-2.0). launch: seconds of all kernels of
# the layer; slow: time of the grouped matmuls over that of the same ones alone; passes: over the
# bytes that routing moves. [base]: for paths without points (the
# medians of the paths), [path]: for other machines.
"""
Row = tuple[Experts, Plan, float]


def predicted(data: Sequence[Row], c: dict[str, float]) -> list[float]:
    return [cost(layer, plan, c, "fitted").seconds.total for layer, plan, _ in data]


def fit(data: Sequence[Row]) -> dict[str, float]:
    """Least squares of log errors with a robust loss and a normal prior."""
    import numpy as np
    from scipy.optimize import least_squares

    start = np.array([center for center, _ in PRIOR.values()])
    spread = np.array([width for _, width in PRIOR.values()])
    logs = np.log([seconds for *_, seconds in data])

    def residuals(z: Any) -> Any:
        c = dict(zip(PRIOR, map(float, start * np.exp(z)), strict=True))
        return np.concatenate([(np.log(predicted(data, c)) - logs) / 0.1, z / spread])

    lower = [-np.inf, -math.log(PRIOR["slow"][0]), -np.inf]
    found = least_squares(
        residuals, np.zeros(3), bounds=(lower, np.inf), loss="soft_l1", diff_step=3e-3
    )
    return dict(zip(PRIOR, map(float, start * np.exp(found.x)), strict=True))


def main() -> None:
    import numpy as np

    points = list(read_points(POINTS))
    groups: dict[tuple[str, str], list[Row]] = {}
    for point in points:
        match = measured(point)
        assert match is not None
        assert point.value is not None
        layer, plan = match
        row = (layer, plan, point.value * 1e-6)
        groups.setdefault((plan.chip.name, plan.path), []).append(row)
    paths = {path: fit(_pooled(groups, path)) for path in sorted({path for _, path in groups})}
    lines = [HEAD.format(points=len(points)), "[base]", *_lines(_middle(paths.values())), ""]
    for path, found in paths.items():
        lines += [f'[path."{path}"]', *_lines(found), ""]
    ratios: dict[str, list[float]] = {"fitted": [], "transferred": []}
    for (machine, path), data in groups.items():
        lines += [f'[on."{machine}"."{path}"]', f"points = {len(data)}", *_lines(fit(data)), ""]
        for part in range(4):
            rest = [row for i, row in enumerate(data) if i % 4 != part]
            ratios["fitted"] += _ratios(data[part::4], fit(rest))
        errors = np.abs(1 / np.array(ratios["fitted"][-len(data) :]) - 1)
        print(machine, path, f"left out: median {np.median(errors):.1%}")
        others = _middle(c for other, c in paths.items() if other != path)
        ratios["transferred"] += _ratios(data, others)
    section = ["[experts]"]
    for level, each in ratios.items():
        low, high = np.quantile(each, [0.05, 0.95])
        ends = ", ".join(f"{name} = [{low:.3f}, {high:.3f}]" for name, _ in REGIMES)
        section.append(f"{level} = {{ {ends} }}")
        errors = np.abs(1 / np.array(each) - 1)
        print(level, f"median {np.median(errors):.1%}, p90 {np.quantile(errors, 0.9):.1%}")
    replace_section(FOLDER / "intervals.toml", "[experts]", section)
    (FOLDER / "experts.toml").write_text("\n".join(lines))


def _pooled(groups: Mapping[tuple[str, str], list[Row]], path: str) -> list[Row]:
    return [row for key, data in groups.items() if key[1] == path for row in data]


def _middle(found: Iterable[dict[str, float]]) -> dict[str, float]:
    """The median of each constant: one path's kernels may be far from all others'."""
    several = list(found)
    return {name: statistics.median(c[name] for c in several) for name in PRIOR}


def _ratios(data: Sequence[Row], c: dict[str, float]) -> list[float]:
    """Measured over predicted."""
    return [s / p for (*_, s), p in zip(data, predicted(data, c), strict=True)]


def _lines(c: dict[str, float]) -> list[str]:
    return [f"{name} = {value:.4g}" for name, value in c.items()]


if __name__ == "__main__":
    main()
