"""The price of one operation, at the level that was asked for."""

from __future__ import annotations

from typing import Literal

from lowprec.perf.hardware import Machine
from lowprec.perf.roofline import Chips, Cost, cost
from lowprec.spec import Format, Rule
from lowprec.spec.workload import Op

Level = Literal["bound"]


def price(op: Op, rule: Rule | None, machine: Machine, dtype: Format, level: Level) -> Cost:
    """Seconds of `op` on one `machine` under the recipe's `rule` (None: everything in `dtype`).

    level: "bound" is the roofline at the datasheet's rates.
    """
    match level:
        case "bound":
            return cost(op, rule, Chips(machine, 1), dtype)
