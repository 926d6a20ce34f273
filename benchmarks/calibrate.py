"""Fits the constants of lowprec/perf/kernel to benchmarks/validation/gemm.csv, and their intervals.

python benchmarks/calibrate.py     # some minutes; rewrites lowprec/perf/calibration/gemm.toml
                                   # and the [gemm] of intervals.toml
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lowprec.perf.kernel.constants import FOLDER, NAMES
from lowprec.perf.kernel.intervals import REGIMES, regime
from lowprec.perf.kernel.plan import spell
from lowprec.perf.validation.files import read_points
from lowprec.perf.validation.fit import Sample, explain, fit_group, grouped, samples
from lowprec.perf.validation.leave_out import Fitted, Groups, Left, residuals

POINTS = Path(__file__).parent / "validation" / "gemm.csv"
# Which left-out residuals an interval comes from, by what the constants of a prediction rest on.
LEVELS: Mapping[str, tuple[Left, ...]] = {
    "fitted": ("site",),
    "transferred": ("path", "machine"),
    "spec only": ("vendor",),
}
HEAD = """# Written by benchmarks/calibrate.py from benchmarks/validation/gemm.csv: {points} matmuls
# (ai-dynamo/aiconfigurator@095f58a, Apache-2.0; ROCm/aiter@e404860, MIT). What they mean:
# lowprec/perf/kernel/constants.py. [base] in SI units; [vendor], [library], [path], [family],
# [machine]: natural logarithms of factors; [group]: a machine's own constants for a path, with the
# number of its points and their formats.
"""


def main() -> None:
    data = samples(read_points(POINTS))
    groups = grouped(data)
    fitted = {}
    for group, found in groups.items():
        print(*group, len(found), file=sys.stderr, flush=True)
        fitted[group] = fit_group(found)
    table = explain(groups, fitted)
    lines = [HEAD.format(points=len(data))]
    for level, entries in table.items():
        if level in ("base", "energy"):
            lines += [f"[{level}]", *_values(entries), ""]
        else:
            for key, factors in sorted(entries.items()):
                lines += [f'[{level}."{key}"]', *_values(factors), ""]
    for (machine, path), constants in fitted.items():
        values = {name: getattr(constants, name) for name in NAMES}
        lines += [f'[group."{machine}"."{path}"]', *_points(groups[machine, path])]
        lines += [*_values(values), ""]
    (FOLDER / "gemm.toml").write_text("\n".join(lines))

    write_intervals(groups, fitted)


def write_intervals(groups: Groups, fitted: Fitted) -> None:
    """Quantiles of the left-out residuals."""
    import numpy as np

    intervals = ["[gemm]"]
    for level, kinds in LEVELS.items():
        found = [r for left in kinds for r in residuals(groups, fitted, left)]
        parts = []
        for name, _ in REGIMES:
            ratios = [r.ratio for r in found if regime(r.sample.op.m) == name]
            low, high = np.quantile(ratios, [0.05, 0.95])
            parts.append(f"{name} = [{low:.3f}, {high:.3f}]")
        intervals.append(f'"{level}" = {{ {", ".join(parts)} }}')
        errors = [abs(1 / r.ratio - 1) for r in found]
        print(level, f"median {np.median(errors):.1%}, p90 {np.quantile(errors, 0.9):.1%}")
    replace_section(FOLDER / "intervals.toml", "[gemm]", intervals)


def _points(data: Sequence[Sample]) -> list[str]:
    formats = sorted({spell(s.plan.x, s.plan.w) for s in data})
    return [f"points = {len(data)}", f"formats = {json.dumps(formats)}"]


def _values(values: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {value:.5g}" for name, value in values.items()]


def replace_section(path: Path, name: str, lines: list[str]) -> None:
    """Replaces one table of a TOML file, up to the next empty line."""
    text = path.read_text()
    start = text.index(name)
    end = text.find("\n\n", start)
    rest = text[end:] if end >= 0 else "\n"
    path.write_text(text[:start] + "\n".join(lines) + rest)


if __name__ == "__main__":
    main()
