"""Fleet: watts, joules and dollars of an estimate, and what fits into a budget of power.

Every figure says how its inputs are known ("datasheet", "measured", "derived", "assumed"): the
weakest of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from lowprec.errors import LowprecError
from lowprec.perf.estimates import Estimate
from lowprec.perf.hardware import Machine
from lowprec.perf.quantity import Quantity
from lowprec.perf.system import System
from lowprec.spec import Spec

Kind = Literal["datasheet", "measured", "derived", "assumed"]
_WEAKEST: tuple[Kind, ...] = ("assumed", "derived", "datasheet", "measured")

# Shares of the rated power, assumed: idle, while memory streams at full rate and the matrix units
# wait, and while kernels start or chips exchange data. For orientation, one H200 is reported to
# idle at 80 W and to serve at up to 593 W of 700, an H100 at 267 to 680 W from batch 1 to 128
# (api.serialalice.pt/alice-benchmark).
IDLE = 0.15
STREAMING = 0.6
WAITING = 0.35


class Figure(Spec):
    """A value with its unit and how its inputs are known."""

    value: float
    unit: str
    kind: Kind


class Fleet(Spec):
    """chip: watts that a chip draws while it runs the estimate's pass, on the average. wall: the
    same at the wall, with host, network and cooling. The rest of all chips together."""

    chip: Figure
    wall: Figure
    tokens_per_joule: Figure
    cost_per_million_tokens: Figure | None
    notes: tuple[str, ...]


class Budget(Spec):
    """What a power budget holds: racks, chips in them, tokens per second, dollars per hour."""

    racks: int
    chips: int
    tokens_per_second: Figure
    dollars_per_hour: Figure | None


def fleet(found: Estimate, machine: Machine, system: System | None = None) -> Fleet:
    """Power and cost of running `found` without pause.

    The chip draws IDLE of its rated power, and while it works up to all of it: all while a matrix
    unit computes at its rate, STREAMING while memory streams, WAITING otherwise (launches,
    communication). At the wall: times the system's overhead if it has one, else the share of the
    machine's all-in watts that the chip does not draw itself is added.
    LowprecError: a machine without rated power.
    """
    if machine.power is None:
        raise LowprecError(f"machine {machine.name!r}: power is not known, so no watts")
    chip = machine.power.value * _activity(found)
    wall, kind = _wall(chip, machine, system)
    rate = found.tokens_per_second
    cost = None
    if machine.tco and (hourly := machine.tco.per_hour):
        per_token = hourly.value * found.chips / 3600 / rate
        cost = Figure(value=per_token * 1e6, unit="USD/1e6 tokens", kind=hourly.kind)
    return Fleet(
        chip=Figure(value=chip, unit="W", kind="assumed"),
        wall=Figure(value=wall, unit="W", kind=kind),
        tokens_per_joule=Figure(value=rate / (found.chips * wall), unit="tokens/J", kind=kind),
        cost_per_million_tokens=cost,
        notes=(
            f"rated power: {STREAMING:.0%} while memory streams, {WAITING:.0%} waiting: assumed",
        ),
    )


def _activity(found: Estimate) -> float:
    """Mean share of the rated power."""
    computing = sum(term.seconds * term.utilisation for term in found.terms) / found.seconds
    streaming = max(
        0.0, sum(min(t.seconds, t.resources.memory) for t in found.terms) / found.seconds
    )
    streaming = min(streaming, 1 - computing)
    waiting = 1 - computing - streaming
    return max(IDLE, computing + STREAMING * streaming + WAITING * waiting)


def _wall(chip: float, machine: Machine, system: System | None) -> tuple[float, Kind]:
    if system is not None and system.overhead is not None:
        return chip * system.overhead.value, "assumed"
    if machine.tco and machine.tco.watts and machine.power:
        return chip + max(0.0, machine.tco.watts.value - machine.power.value), "assumed"
    raise LowprecError(
        f"machine {machine.name!r}: neither tco.watts nor a system's overhead is known, so no "
        "watts at the wall"
    )


def budget(watts: float, found: Estimate, machine: Machine, system: System) -> Budget:
    """Whole racks of `system` in `watts` at the wall, all running `found`.

    A rack is counted at its rated power. LowprecError: a system without racks, or a budget of less
    than one rack.
    """
    if system.rack is None:
        raise LowprecError(f"system {system.name!r} has no rack, so none to count")
    racks = math.floor(watts / system.rack.power.value)
    if racks < 1:
        raise LowprecError(
            f"system {system.name!r}: one rack takes {system.rack.power.value:g} W, the budget is "
            f"{watts:g} W"
        )
    chips = racks * system.rack.chips
    copies = chips // found.chips
    if not copies:
        raise LowprecError(
            f"system {system.name!r}: {chips} chips in the budget, the estimate takes {found.chips}"
        )
    inputs: list[Quantity] = [system.rack.power]
    dollars = None
    if machine.tco and (hourly := machine.tco.per_hour):
        kind = _weakest([*inputs, hourly])
        dollars = Figure(value=hourly.value * chips, unit="USD/h", kind=kind)
    return Budget(
        racks=racks,
        chips=chips,
        tokens_per_second=Figure(
            value=copies * found.tokens_per_second, unit="tokens/s", kind=_weakest(inputs)
        ),
        dollars_per_hour=dollars,
    )


def _weakest(inputs: Iterable[Quantity]) -> Kind:
    return min((quantity.kind for quantity in inputs), key=_WEAKEST.index)
