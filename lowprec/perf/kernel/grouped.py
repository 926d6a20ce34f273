"""Seconds of a mixture of experts on one device: which experts get how many rows, and the kernels.

A fused layer routes and permutes its rows, multiplies them by gate and up projections together and
by the down projections, both as grouped matmuls, and adds the results up. Under a power law the
experts' shares of the rows are drawn from p(x) ~ x^-skew between one row and 0.8 of the tokens, and
the device is the busiest of its group, as ai-dynamo/aiconfigurator's benchmark has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from lowprec.perf.kernel.constants import FOLDER
from lowprec.perf.kernel.intervals import interval
from lowprec.perf.kernel.matmul import priced
from lowprec.perf.kernel.plan import Plan
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


@lru_cache(maxsize=4096)
def rows(layer: Experts) -> tuple[tuple[float, float], ...]:
    """How many experts of the device get how many rows, those that get any."""
    local = max(1, layer.experts // layer.expert)
    total = layer.tokens * layer.top_k / layer.expert
    if layer.skew <= 0 or layer.tokens < 2:
        busy = min(float(local), max(total, 1.0))
        return ((max(total, 1.0) / busy, busy),)
    top, power = 0.8 * layer.tokens, 1 - layer.skew
    shares = [((top**power - 1) * (i + 0.5) / local + 1) ** (1 / power) for i in range(local)]
    mean = sum(shares) / local
    spread = math.sqrt(sum((s - mean) ** 2 for s in shares) / local) / mean
    # The busiest of `expert` random parts of the experts, as of normal deviates.
    busiest = 1 + spread * math.sqrt(2 * math.log(layer.expert) / local)
    scale = total * busiest / sum(shares)
    counts: dict[float, float] = {}
    for share in shares:
        expected = min(share * scale, float(layer.tokens))
        if expected >= 1:
            key = float(round(expected))
            counts[key] = counts.get(key, 0.0) + 1
        else:
            counts[1.0] = counts.get(1.0, 0.0) + expected
    return tuple(sorted(counts.items()))


def experts(layer: Experts, plan: Plan) -> Cost:
    """Cost of the fused layer with operands as in `plan`."""
    c, level = constants(plan)
    return cost(layer, plan, c, level)


def constants(plan: Plan) -> tuple[dict[str, float], Calibration]:
    """The constants of the plan's path and machine, else of the path, else of all."""
    own: dict[str, float] | None = table().get("on", {}).get(plan.chip.name, {}).get(plan.path)
    if own is not None:
        return own, "fitted"
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
