"""Fits lowprec/perf/calibration/collectives.toml to benchmarks/validation/collectives.csv.

python benchmarks/fit_collectives.py prints the constants, the errors with each size left out in
turn and with each family of machines left out, and the quantiles that intervals come from.
`reduce_efficiency` and the network's constants are not fitted here: their points (NCCL on H200 in
stas00/ml-engineering@744d01e network/README.md, DeepEP's README) are not shipped.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

import lowprec.perf.collective as model
from lowprec.perf import machine
from lowprec.perf.fabric import Constants, constants
from lowprec.perf.validation.collectives import predict
from lowprec.perf.validation.point import Point

POINTS = Path(__file__).parent / "validation" / "collectives.csv"
SHARED = (
    "efficiency",
    "stage",
    "ramp",
    "exchange_start",
    "exchange_hop",
    "exchange_setup",
    "reduce_setup",
    "one_shot_efficiency",
    "one_shot_hop",
)
OWN = ("start", "hop", "one_shot")


def points() -> list[Point]:
    with POINTS.open() as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    for row in rows:
        row |= {"chips": float(row["chips"]), "value": float(row["value"])}
    return [Point(**row) for row in rows]


def family(point: Point) -> str:
    return machine(point.hw).family or ""


def with_values(logs: np.ndarray, names: list[tuple[str, str]]) -> Constants:
    c = constants()
    values = dict(zip(names, np.exp(logs).tolist(), strict=True))
    families = {
        f: old.model_copy(update={k: v for (owner, k), v in values.items() if owner == f})
        for f, old in c.families.items()
    }
    shared = {k: v for (owner, k), v in values.items() if not owner}
    return c.model_copy(update={"families": families, **shared})


def residuals(rows: list[Point], c: Constants) -> np.ndarray:
    """Log of predicted over measured."""
    model.constants = lambda: c  # type: ignore[assignment]
    return np.array([math.log(predict(p).value / p.value) for p in rows])  # type: ignore


def fit(rows: list[Point], robust: float = 0.05) -> Constants:
    """Least squares of log time, outliers counting linearly."""
    c = constants.__wrapped__()
    seen = {family(p) for p in rows}
    names = [("", k) for k in SHARED] + [(f, k) for f in seen for k in OWN]
    start = [math.log(getattr(c.families[f] if f else c, k)) for f, k in names]
    # No share of a rate is more than all of it.
    most = [0.0 if "efficiency" in k else np.inf for _, k in names]
    found = least_squares(
        lambda x: residuals(rows, with_values(x, names)),
        start,
        bounds=(-np.inf, most),
        loss="soft_l1",
        f_scale=robust,
        max_nfev=20,
    )
    return with_values(found.x, names)


def say(what: str, errors: np.ndarray) -> None:
    size = np.abs(np.expm1(errors))
    low, high = np.exp(-np.quantile(errors, [0.95, 0.05]))
    print(
        f"{what:28} median {np.median(size):6.1%}  p90 {np.quantile(size, 0.9):6.1%}  "
        f"90 % of measured/predicted in {low:.2f} to {high:.2f}  ({len(errors)})"
    )


def main() -> None:
    rows = points()
    best = fit(rows)
    print(best.model_dump_json(indent=1, exclude={"points", "network"}))
    say("all points", residuals(rows, best))
    left = []
    for size in sorted({(p.shape, p.format, p.what == "all_reduce") for p in rows}):
        out = [p for p in rows if (p.shape, p.format, p.what == "all_reduce") == size]
        left.append(residuals(out, fit([p for p in rows if p not in out])))
    say("each size left out", np.concatenate(left))
    for name in sorted({family(p) for p in rows}):
        rest = fit([p for p in rows if family(p) != name])
        others = {f: v for f, v in rest.families.items() if f != name}
        rest = rest.model_copy(update={"families": others})
        out = [p for p in rows if family(p) == name]
        errors = residuals(out, rest)
        say(f"{name} left out", errors)
        large = np.array([int(p.shape.split()[0]) > 100_000 for p in out])
        say(f"{name} left out, large", errors[large])


if __name__ == "__main__":
    main()
