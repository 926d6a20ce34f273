"""Fits the matmul's constants to the points of benchmarks/validation/gemm.csv.

First every group of points (machine and path of kernel) alone, by least squares of log errors with
a robust loss and a normal prior around the base: with 11 constants and about 200 points, what a
group says nothing about stays where it was. Then the groups' constants are explained by factors of
their vendor, library, path, family and machine (ridge regression), so that a group without points
gets the factors of what it shares with others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lowprec.perf.kernel.constants import NAMES, SHARES, Constants, levels
from lowprec.perf.kernel.matmul import priced
from lowprec.perf.kernel.plan import Plan
from lowprec.perf.validation.gemm import dispatch, measured
from lowprec.perf.validation.point import Point
from lowprec.spec import Matmul

# Where each constant is before any point is seen, and the standard deviation of its logarithm.
PRIOR: Mapping[str, tuple[float, float]] = {
    "launch": (2.5e-6, 0.6),
    "read": (0.85, 0.15),
    "write": (0.8, 0.4),
    "busy": (0.9, 0.3),
    "energy": (1.4, 0.03),
    "fill": (0.4e-6, 0.7),
    "feed": (80.0, 0.3),
    "split": (3e-6, 0.6),
    "quantize": (1.5, 0.6),
    "quantize_launch": (3e-6, 1.0),
    "convert": (1.5, 1.0),
}
# `Constants.energy` by family before the fit, from the best 16-bit rates that are published
# (stas00/ml-engineering@744d01e, MAMF table: 794 TFLOPS on H100, 1745 on B200, 668 on MI300X,
# 1565 on MI355X, each at 0.8 of the chip's watts). A100 and Gaudi 2 do not reach their power.
ENERGY = {
    "ampere": 1.5,
    "hopper": 1.45,
    "blackwell": 1.0,
    "cdna3": 1.9,
    "cdna4": 1.5,
    "gaudi": 1.23,
}
NOISE = 0.1
# Standard deviations of the factors' logarithms, and of what a group has for itself.
SPREAD = {
    "base": 0.6,
    "vendor": 1.0,
    "library": 1.0,
    "path": 0.5,
    "family": 0.3,
    "machine": 0.2,
    "group": 0.5,
}
# A launch is the software's.
LAUNCHES = ("launch", "quantize_launch")
LAUNCH_SPREAD = SPREAD | {"path": 1.5, "family": 0.2}


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured matmul: seconds, those of them that the way of timing added, and all that the
    model needs to price it."""

    op: Matmul
    plan: Plan
    quantized: bool
    seconds: float
    dispatch: float

    @property
    def group(self) -> tuple[str, str]:
        """Machine and path."""
        return self.plan.chip.name, self.plan.path


def samples(points: Iterable[Point]) -> list[Sample]:
    """The points that are matmuls timed in microseconds."""
    found = []
    for point in points:
        match = measured(point)
        if match is not None and point.unit == "us" and point.value:
            op, plan, quantized = match
            found.append(
                Sample(op, plan, quantized, point.value * 1e-6, dispatch(point, plan.path))
            )
    return found


def grouped(data: Iterable[Sample]) -> dict[tuple[str, str], list[Sample]]:
    """Samples by machine and path."""
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in data:
        groups.setdefault(sample.group, []).append(sample)
    return groups


def seconds(data: Sequence[Sample], constants: Constants) -> list[float]:
    """What the model says of each sample with these constants."""
    plans: dict[int, Plan] = {}
    result = []
    for s in data:
        plan = plans.get(id(s.plan))
        if plan is None:
            plan = plans[id(s.plan)] = replace(s.plan, constants=constants)
        result.append(priced(s.op, plan, quantized=s.quantized).seconds.total + s.dispatch)
    return result


def fit_group(data: Sequence[Sample]) -> Constants:
    """The constants of samples of one group."""
    import numpy as np
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    prior = {name: before(name, data[0]) for name in NAMES}
    start = np.array([prior[name] for name in NAMES])
    spread = np.array([PRIOR[name][1] for name in NAMES])
    measured_log = np.log([s.seconds for s in data])
    upper = np.array([-math.log(prior[n]) + 1e-6 if n in SHARES else np.inf for n in NAMES])

    def residuals(z: Any) -> Any:
        constants = Constants(*map(float, start * np.exp(z)))
        errors = np.log(seconds(data, constants)) - measured_log
        return np.concatenate([errors / NOISE, z / spread])

    found = least_squares(
        residuals,
        np.zeros(len(NAMES)),
        bounds=(-np.inf, upper),
        loss="soft_l1",
        diff_step=3e-3,
        max_nfev=25,
    )
    return Constants(*map(float, start * np.exp(found.x)))


def before(name: str, sample: Sample) -> float:
    """The constant of a sample's family before the fit."""
    if name == "energy":
        return ENERGY.get(sample.plan.chip.family, PRIOR[name][0])
    return PRIOR[name][0]


def said(data: Sequence[Sample]) -> set[str]:
    """The constants that samples of one group say anything about."""
    plan, quantized = data[0].plan, data[0].quantized
    silent = set()
    if quantized or plan.path.startswith(("plain", "weight")):
        silent |= {"quantize", "quantize_launch"}
    if not (plan.choice.promoted or plan.convert_w):
        silent.add("convert")
    if plan.scaled_tiles:
        silent.add("split")
    return set(NAMES) - silent


def explain(
    groups: Mapping[tuple[str, str], Sequence[Sample]],
    fitted: Mapping[tuple[str, str], Constants],
) -> dict[str, Any]:
    """The table of base and factors (see kernel/constants.py) that explains the groups best."""
    import numpy as np

    keys = {g: _keys(groups[g][0]) for g in fitted}
    all_keys = sorted({key for found in keys.values() for key in found})
    table: dict[str, Any] = {"base": {}, "energy": dict(ENERGY)}
    for name in NAMES:
        spread = LAUNCH_SPREAD if name in LAUNCHES else SPREAD
        speaking = [g for g in fitted if name in said(groups[g])]
        weights = np.array([1 / spread["base"] ** 2, *(1 / spread[k[0]] ** 2 for k in all_keys)])
        rows = np.array([[1.0, *(float(k in keys[g]) for k in all_keys)] for g in speaking])
        values = np.array(
            [math.log(getattr(fitted[g], name) / before(name, groups[g][0])) for g in speaking]
        )
        center = PRIOR[name][0]
        if not speaking:
            table["base"][name] = center
            continue
        precision = 1 / spread["group"] ** 2
        solved = np.linalg.solve(
            precision * rows.T @ rows + np.diag(weights), precision * rows.T @ values
        )
        table["base"][name] = float(center * math.exp(solved[0]))
        for (level, key), factor in zip(all_keys, solved[1:], strict=True):
            table.setdefault(level, {}).setdefault(key, {})[name] = float(factor)
    return table


def _keys(sample: Sample) -> tuple[tuple[str, str], ...]:
    chip = sample.plan.chip
    return levels(chip.vendor, sample.plan.path, chip.family, chip.name)
