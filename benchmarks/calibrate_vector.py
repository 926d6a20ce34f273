"""Fits launch and stream of kernels that quantize to benchmarks/validation/quantizers.csv.

python benchmarks/calibrate_vector.py     # rewrites calibration/vector.toml and its intervals
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.calibrate import replace_section
from lowprec.perf.kernel.chip import chip_of
from lowprec.perf.kernel.constants import FOLDER
from lowprec.perf.kernel.intervals import REGIMES
from lowprec.perf.validation.files import read_points
from lowprec.perf.validation.quantizers import measured

POINTS = Path(__file__).parent / "validation" / "quantizers.csv"
HEAD = """# Written by benchmarks/calibrate_vector.py from validation/quantizers.csv: {points}
# published times (ai-dynamo/aiconfigurator@095f58a, Apache-2.0). launch: seconds; share: of the
# memory's bandwidth. [cast] and [amax]: for machines without points of their own.
"""
Row = tuple[float, float]  # seconds at the full bandwidth, seconds measured


def fit(rows: list[Row]) -> tuple[float, float]:
    """launch and share that fit log errors best."""
    import numpy as np
    from scipy.optimize import least_squares

    ideal, seconds = np.array(rows).T

    def residuals(z: Any) -> Any:
        return np.log(np.exp(z[0]) + ideal / np.exp(z[1])) - np.log(seconds)

    found = least_squares(
        residuals, np.log([3e-6, 0.6]), bounds=(-np.inf, [np.inf, 0.0]), loss="soft_l1", f_scale=0.1
    )
    return float(np.exp(found.x[0])), float(np.exp(found.x[1]))


def main() -> None:
    import numpy as np

    groups: dict[str, dict[str, list[Row]]] = {}
    points = list(read_points(POINTS))
    for point in points:
        match = measured(point)
        assert match is not None
        assert point.value is not None
        kernel, moved, machine = match
        row = (moved / chip_of(machine).bandwidth, point.value * 1e-6)
        groups.setdefault(kernel, {}).setdefault(machine.name, []).append(row)
    lines = [HEAD.format(points=len(points))]
    ratios: dict[str, list[float]] = {"fitted": [], "transferred": []}
    for kernel, machines in groups.items():
        launch, share = fit([row for rows in machines.values() for row in rows])
        lines += [f"[{kernel}]", f"launch = {launch:.4g}", f"share = {share:.4g}", ""]
        for name, rows in machines.items():
            launch, share = fit(rows)
            lines += [f'[{kernel}_on."{name}"]', f"points = {len(rows)}"]
            lines += [f"launch = {launch:.4g}", f"share = {share:.4g}", ""]
            for part in range(3):
                ratios["fitted"] += _ratios(rows[part::3], fit(
                    [row for i, row in enumerate(rows) if i % 3 != part]
                ))  # fmt: skip
            others = [row for other, found in machines.items() if other != name for row in found]
            ratios["transferred"] += _ratios(rows, fit(others))
    section = ["[vector]"]
    for level, found in ratios.items():
        low, high = np.quantile(found, [0.05, 0.95])
        each = ", ".join(f"{name} = [{low:.3f}, {high:.3f}]" for name, _ in REGIMES)
        section.append(f"{level} = {{ {each} }}")
        print(level, f"median {np.median(np.abs(1 / np.array(found) - 1)):.1%}")
    replace_section(FOLDER / "intervals.toml", "[vector]", section)
    (FOLDER / "vector.toml").write_text("\n".join(lines))


def _ratios(rows: list[Row], constants: tuple[float, float]) -> list[float]:
    launch, share = constants
    return [seconds / (launch + ideal / share) for ideal, seconds in rows]


if __name__ == "__main__":
    main()
