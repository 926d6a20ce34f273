"""Fits the constants of attention kernels to benchmarks/validation/attention.csv.

python benchmarks/calibrate_attention.py     # rewrites calibration/attention.toml and the
                                             # intervals of prefill and decode
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.calibrate import replace_section
from lowprec.perf.kernel.attention import priced
from lowprec.perf.kernel.constants import FOLDER
from lowprec.perf.kernel.intervals import REGIMES
from lowprec.perf.validation.attention import Measured, measured
from lowprec.perf.validation.files import read_points

POINTS = Path(__file__).parent / "validation" / "attention.csv"
# Where each constant is before any point is seen, and the standard deviation of its logarithm.
PRIOR: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "prefill": {
        "launch": (10e-6, 0.4), "busy": (0.8, 0.2), "softmax": (1.0, 0.4), "fill": (2e-6, 0.7),
        "read": (0.4, 0.5),
    },
    "decode": {
        "launch": (9e-6, 0.2), "busy": (0.3, 0.5), "share": (3.0, 0.1), "fill": (1.2e-6, 0.3),
        "read": (0.92, 0.05), "split": (3e-6, 0.6), "narrow": (0.8, 0.3),
    },
}  # fmt: skip
HEAD = """# Written by benchmarks/calibrate_attention.py from validation/attention.csv: {points}
# published times (ai-dynamo/aiconfigurator@095f58a, Apache-2.0). What they mean and where they
# enter: lowprec/perf/kernel/attention.py. launch, fill, split: seconds; busy, read: shares of the
# datapath's rate and of the memory's bandwidth; softmax: exponentials per pair; share: of one core
# in the bandwidth, over the even one; narrow: launch with a cache narrower than the queries, over
# the other. [prefill], [decode]: for machines without own points.
"""
Timed = tuple[Measured, float]


def predicted(data: Sequence[Timed], phase: str, constants: Mapping[str, float]) -> list[float]:
    c = dict(constants)
    return [priced(m.op, m.rule, m.machine, m.dtype, phase, c).seconds.total for m, _ in data]


def fit(data: Sequence[Timed], phase: str) -> dict[str, float]:
    """Least squares of log errors with a robust loss and a normal prior."""
    import numpy as np
    from scipy.optimize import least_squares

    prior = PRIOR[phase]
    start = np.array([center for center, _ in prior.values()])
    spread = np.array([width for _, width in prior.values()])
    logs = np.log([seconds for _, seconds in data])
    upper = [-math.log(prior[n][0]) + 1e-6 if n in ("busy", "read") else np.inf for n in prior]

    def residuals(z: Any) -> Any:
        constants = dict(zip(prior, map(float, start * np.exp(z)), strict=True))
        return np.concatenate(
            [(np.log(predicted(data, phase, constants)) - logs) / 0.1, z / spread]
        )

    found = least_squares(
        residuals, np.zeros(len(start)), bounds=(-np.inf, upper), loss="soft_l1", diff_step=3e-3,
        max_nfev=40,
    )  # fmt: skip
    return dict(zip(prior, map(float, start * np.exp(found.x)), strict=True))


def main() -> None:
    import numpy as np

    points = list(read_points(POINTS))
    by_phase: dict[str, list[Timed]] = {"prefill": [], "decode": []}
    for point in points:
        match = measured(point)
        assert match is not None
        assert point.value is not None
        phase = "decode" if match.op.queries == 1 else "prefill"
        by_phase[phase].append((match, point.value * 1e-6))
    lines = [HEAD.format(points=len(points))]
    for phase, data in by_phase.items():
        machines = sorted({m.machine.name for m, _ in data})
        lines += [f"[{phase}]", *(f"{k} = {v:.4g}" for k, v in fit(data, phase).items()), ""]
        ratios: dict[str, list[float]] = {"fitted": [], "transferred": []}
        for name in machines:
            own = [d for d in data if d[0].machine.name == name]
            other = [d for d in data if d[0].machine.name != name]
            heads = sorted({m.op.heads for m, _ in own})
            for part in range(3):
                left = set(heads[part::3])
                test = [d for d in own if d[0].op.heads in left]
                rest = [d for d in own if d[0].op.heads not in left]
                ratios["fitted"] += _ratios(test, phase, fit(rest, phase))
            ratios["transferred"] += _ratios(own, phase, fit(other, phase))
            values = fit(own, phase)
            lines += [f'[{phase}_on."{name}"]', f"points = {len(own)}"]
            lines += [*(f"{k} = {v:.4g}" for k, v in values.items()), ""]
        # What is known less well is not known better.
        ratios["transferred"] += ratios["fitted"]
        section = [f"[{phase}]"]
        for level, found in ratios.items():
            low, high = np.quantile(found, [0.05, 0.95])
            each = ", ".join(f"{name} = [{low:.3f}, {high:.3f}]" for name, _ in REGIMES)
            section.append(f"{level} = {{ {each} }}")
            errors = np.abs(1 / np.array(found) - 1)
            print(
                phase, level, f"median {np.median(errors):.1%}, p90 {np.quantile(errors, 0.9):.1%}"
            )
        replace_section(FOLDER / "intervals.toml", f"[{phase}]", section)
    (FOLDER / "attention.toml").write_text("\n".join(lines))


def _ratios(data: Sequence[Timed], phase: str, constants: Mapping[str, float]) -> list[float]:
    """Measured over predicted."""
    return [s / p for (_, s), p in zip(data, predicted(data, phase, constants), strict=True)]


if __name__ == "__main__":
    main()
