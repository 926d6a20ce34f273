"""Seconds of a mixture of experts on one device: which experts get how many rows, and the kernels.

A fused layer routes and permutes its rows, multiplies them by gate and up projections together and
by the down projections, both as grouped matmuls, and adds the results up. Rows spread over the
experts as routing.py has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from lowprec.perf.kernel.constants import FOLDER
from lowprec.perf.kernel.intervals import interval
from lowprec.perf.kernel.matmul import priced
from lowprec.perf.kernel.plan import Plan
from lowprec.perf.kernel.routing import Rows, spread
from lowprec.perf.roofline import Cost, Seconds
from lowprec.perf.validation.point import Calibration
from lowprec.spec import Matmul, read_toml


@dataclass(frozen=True, slots=True)
class Experts:
    """One layer's experts as one device of a tensor- and expert-parallel group sees them.

    tokens: of the whole group; hidden, inner: widths; tensor, expert: parallel degrees. skew:
    exponent of the power law of the experts' shares, 0 for an even spread.
    """

    tokens: int
    hidden: int
    inner: int
    top_k: int
    experts: int
    tensor: int = 1
    expert: int = 1
    skew: float = 0.0


@cache
def table() -> dict[str, Any]:
    """calibration/experts.toml, read once."""
    return read_toml(FOLDER / "experts.toml")


def rows(layer: Experts) -> Rows:
    """How many experts of the device get how many rows, those that get any."""
    total = layer.tokens * layer.top_k / layer.expert
    local = max(1, layer.experts // layer.expert)
    return spread(total, layer.tokens, local, layer.expert, layer.skew)


def experts(layer: Experts, plan: Plan) -> Cost:
    """Cost of the fused layer with operands as in `plan`."""
    c, level = constants(plan)
    return cost(layer, plan, c, level)


def constants(plan: Plan) -> tuple[dict[str, float], Calibration]:
    """The constants of the plan's path and machine, else of the path, else of all."""
    own: dict[str, float] | None = table().get("on", {}).get(plan.chip.name, {}).get(plan.path)
    if own is not None:
        return own, "transferred" if plan.chip.what_if else "fitted"
    return table().get("path", {}).get(plan.path, table()["base"]), "transferred"


def cost(layer: Experts, plan: Plan, c: dict[str, float], level: Calibration) -> Cost:
    """Cost of the layer with these constants."""
    spread = rows(layer)
    total = sum(m * count for m, count in spread)
    inner = -(-layer.inner // layer.tensor)
    both = (_matmul(total, 2 * inner, layer.hidden), _matmul(total, layer.hidden, inner))
    found = [priced(op, plan, rows=spread, quantized=True) for op in both]
    kernels = [each.seconds.total - each.seconds.launch for each in found]
    permuted = 4 * total * layer.hidden * plan.dtype.storage_bits / 8
    seconds = Seconds(
        compute=c["slow"] * sum(kernels),
        quantize=c["passes"] * permuted / plan.chip.bandwidth,
        launch=c["launch"],
    )
    low, high = interval("experts", level, layer.tokens)
    time = seconds.total
    return Cost(
        choice=plan.choice,
        flops=sum(each.flops for each in found),
        bytes=sum(each.bytes for each in found),
        seconds=seconds,
        low=time * low,
        high=time * high,
        calibration=level,
    )


def _matmul(total: float, n: int, k: int) -> Matmul:
    return Matmul(kind="matmul", path="experts", m=max(1, round(total)), n=n, k=k)
