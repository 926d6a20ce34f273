"""Machines with another datapath in the area, or under the power, of one that they have."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

from lowprec.errors import LowprecError, unknown
from lowprec.perf.accelerator import Machine
from lowprec.perf.datapath import Datapath, Scaling
from lowprec.perf.datapath_cost import StructuralCost, structural_cost
from lowprec.perf.quantity import Quantity
from lowprec.spec import BlockFormat, CodebookFormat, FloatFormat, Format, IntFormat
from lowprec.spec import Datapath as Unit
from lowprec.spec.default_datapath import passes

Scalar = FloatFormat | IntFormat | CodebookFormat


@dataclass(frozen=True)
class Swap:
    """A machine with a new datapath, and where its rate comes from, all as ratios to the old unit.

    lanes: products per cycle that fit the area. clock: 1, or less where the new unit is slower
    through as many pipeline stages. power: how far the power's budget holds the rate down, at most
    1. passes: of the new unit for a product (of formats with offsets). low and high: of the rate in
    FLOP/s, from the cost model's 90 % intervals.
    """

    machine: Machine
    datapath: Datapath
    lanes: float
    clock: float
    power: float
    passes: int
    low: float
    high: float

    @property
    def rate(self) -> float:
        return self.datapath.rate.value


def swap(
    machine: Machine,
    name: str,
    old: Unit,
    new: Unit,
    *,
    element: Format | None = None,
    shared: BlockFormat | None = None,
    area: float = 1.0,
    power: float = 1.0,
    energy: float | None = None,
    deeper: bool = False,
    keep: bool = False,
) -> Swap:
    """`machine` with `new` in place of its datapath `name`, whose unit is `old`; beside it if
    `keep`.

    element: what both operands of the new unit are, by default its first input; shared: their
    block format, if its elements share more than a scale, which the machine then multiplies by
    itself. area: of the new
    units in areas of the old ones; power: likewise in what the old ones draw. energy: of a product
    of the new unit in those of the old one (`lowprec.rtl.energy` measures it), by default as their
    gates are. deeper: the new unit has as many more pipeline stages as it needs for the old clock,
    whose registers are not counted. LowprecError for an unknown datapath and budgets that are not
    positive.
    """
    if not (area > 0 and power > 0 and (energy is None or energy > 0)):
        raise LowprecError(f"area {area}, power {power}, energy {energy}: expected positive ratios")
    known = {path.name: path for path in machine.datapaths}
    if name not in known:
        raise unknown("datapath", name, known, f"machine {machine.name!r}")
    before, after = structural_cost(old), _cost(new, element, shared)
    ratio = before.gates_per_lane / after.gates_per_lane
    lanes = area * ratio
    clock = 1.0 if deeper else min(1.0, before.delay / after.delay)
    drawn = lanes * clock * (1 / ratio if energy is None else energy)
    held = min(1.0, power / drawn)
    needed = 1 if shared is None else passes(shared)
    rate = known[name].rate.value * lanes * clock * held / needed
    found = Datapath(
        name=new.name[:40],
        operands=_operands(new, element, shared),
        scalings=_scalings(new) if shared is None else (),
        rate=_rate(rate, before, after, old, machine, name),
    )
    kept = [path for path in machine.datapaths if keep or path.name != name]
    if any(path.name == found.name for path in kept):
        raise LowprecError(f"machine {machine.name!r} has a datapath {found.name!r} already")
    changed = machine.model_copy(
        update={
            "datapaths": (*kept, found),
            "based_on": machine.based_on or machine.name,
            "aliases": (),
        }
    )
    spread = _spread(before, after)
    return Swap(changed, found, lanes, clock, held, needed, rate / spread, rate * spread)


def _operands(
    new: Unit, element: Format | None, shared: BlockFormat | None
) -> tuple[Scalar | BlockFormat, ...]:
    if shared is not None:
        return (shared,)
    return (element,) if isinstance(element, Scalar) else new.inputs


def _cost(new: Unit, element: Format | None, shared: BlockFormat | None) -> StructuralCost:
    scale = shared.scale if shared is not None and new.scaling else None
    return structural_cost(new, element, element, scale=scale, shared=shared)


def _rate(
    rate: float,
    before: StructuralCost,
    after: StructuralCost,
    old: Unit,
    machine: Machine,
    name: str,
) -> Quantity:
    source = (
        f"what-if: {after.gates_per_lane:.0f} gates per lane where {old.name} has "
        f"{before.gates_per_lane:.0f}, from the rate of {machine.name}'s {name}"
    )
    return Quantity(value=rate, kind="derived", source=source)


def _scalings(unit: Unit) -> tuple[Scaling, ...]:
    if unit.scaling is None:
        return ()
    return tuple(Scaling(scale=f, block=unit.scaling.block) for f in unit.scaling.formats)


def _spread(before: StructuralCost, after: StructuralCost) -> float:
    """The factor that a ratio of two modelled areas may be off: their errors are independent."""
    shares = [cost.high / cost.gates - 1 for cost in (before, after)]
    return 1 + hypot(*shares)
