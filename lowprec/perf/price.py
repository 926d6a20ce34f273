"""The price of one operation, at the level that was asked for."""

from __future__ import annotations

from typing import Literal

from lowprec.perf.hardware import Machine
from lowprec.perf.kernel.attention import attention
from lowprec.perf.kernel.matmul import matmul
from lowprec.perf.kernel.vector import vector
from lowprec.perf.roofline import Chips, Cost, cost
from lowprec.spec import Attention, Format, Matmul, Rule
from lowprec.spec.workload import Op

Level = Literal["bound", "kernel"]


def price(
    op: Op,
    rule: Rule | None,
    machine: Machine,
    dtype: Format,
    level: Level,
    *,
    skew: float = 0.0,
) -> Cost:
    """Seconds of `op` on one `machine` under the recipe's `rule` (None: everything in `dtype`).

    level: "bound" is the roofline at the datasheet's rates; "kernel" is what kernels take, from
    constants fitted to measurements, with an interval.

    skew: exponent of the power law by which rows spread over experts, at the level "kernel"; 0:
    every expert gets as many. Traffic is near 1 (AIConfigurator benchmarks 1.01 and 1.2).
    """
    match level:
        case "bound":
            return cost(op, rule, Chips(machine, 1), dtype)
        case "kernel":
            return _kernel(op, rule, machine, dtype, skew)


def _kernel(op: Op, rule: Rule | None, machine: Machine, dtype: Format, skew: float) -> Cost:
    match op:
        case Matmul():
            return matmul(op, rule, machine, dtype, skew)
        case Attention():
            return attention(op, rule, machine, dtype)
        case _:
            return vector(op, machine, dtype)
