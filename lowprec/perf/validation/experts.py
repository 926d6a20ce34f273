"""Rows of mixtures of experts and of grouped matmuls."""

from __future__ import annotations

import re

from lowprec.errors import LowprecError
from lowprec.perf.hardware import machine as load_machine
from lowprec.perf.kernel.grouped import Experts, experts
from lowprec.perf.kernel.matmul import priced
from lowprec.perf.kernel.plan import Plan, plan_of
from lowprec.perf.validation.formats import operands_of
from lowprec.perf.validation.gemm import answer
from lowprec.perf.validation.point import Point, Prediction
from lowprec.perf.validation.text import need, sizes
from lowprec.spec import Matmul

_LAYER = {
    "T": ("t", "tokens", "num_tokens", "m"),
    "H": ("h", "hidden", "hidden_size"),
    "I": ("i", "inter", "inner", "intermediate"),
    "topk": ("topk", "top_k", "k"),
    "E": ("e", "experts", "num_experts"),
}
_GROUPED = {
    "groups": ("groups", "g", "experts"),
    "M/group": ("m/group", "m_per_group", "m"),
    "N": ("n",),
    "K": ("k",),
}


def predict(point: Point) -> Prediction | None:
    """The point's value and interval; None if it has no experts or groups."""
    if point.level.startswith("e2e"):
        return None
    if re.search(r"group\w* gemm|grouped", point.what, re.IGNORECASE):
        return _grouped(point)
    found = measured(point)
    if found is None:
        return None
    return answer(point, experts(*found))


def measured(point: Point) -> tuple[Experts, Plan] | None:
    """The layer of the row and how the model multiplies it; None if it is no layer of experts."""
    if not re.search(r"\bmoe\b|experts", point.what, re.IGNORECASE) or point.level == "collective":
        return None
    found = sizes(point.shape)
    size = need(found, _LAYER, point.shape)
    for name in ("topk", "ep"):
        if (size | found).get(name, 1) > size["E"]:
            raise LowprecError(f"shape: {point.shape!r}: {name} exceeds the {size['E']} experts")
    layer = Experts(
        tokens=size["T"],
        hidden=size["H"],
        inner=size["I"],
        top_k=size["topk"],
        experts=size["E"],
        tensor=found.get("tp", 1),
        expert=found.get("ep", 1),
        skew=_skew(point.conditions),
    )
    return layer, _plan(point)


def _plan(point: Point) -> Plan:
    machine = load_machine(point.hw)
    formats = operands_of(point.format, machine)
    return plan_of(formats.x, formats.w, machine, formats.dtype)


def _skew(conditions: str) -> float:
    if match := re.search(r"power[-_ ]?law[-_ ]?([0-9.]+)", conditions):
        return float(match[1])
    if not conditions or re.search(r"balanced|uniform|even", conditions, re.IGNORECASE):
        return 0.0
    raise LowprecError(
        f"conditions: {conditions!r} says no known routing; expected balanced or power_law_<alpha>"
    )


def _grouped(point: Point) -> Prediction:
    size = need(sizes(point.shape), _GROUPED, point.shape)
    groups, m = size["groups"], size["M/group"]
    op = Matmul(kind="matmul", path="grouped", m=groups * m, n=size["N"], k=size["K"])
    return answer(point, priced(op, _plan(point), rows=((m, groups),), quantized=True))
