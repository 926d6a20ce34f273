"""What a unit costs in gates, by component and per lane, alone and over a baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowprec.rtl.multi import MultiUnit
from lowprec.rtl.synth import Synthesis, synthesise
from lowprec.spec.base import Spec

if TYPE_CHECKING:
    from lowprec.rtl.converter import Converter
    from lowprec.rtl.unit import Unit


class Cost(Spec):
    """A synthesised unit. All gates are NAND2 equivalents; flip-flops are counted apart.

    unit: what it is, in words. lanes: products, or numbers converted, per pass.
    """

    unit: str
    lanes: int
    synthesis: Synthesis

    @property
    def gates_per_lane(self) -> float:
        return self.synthesis.gates / self.lanes

    @property
    def transistors_per_lane(self) -> float:
        return self.synthesis.transistors / self.lanes

    def by_component(self) -> dict[str, float]:
        """Gates per lane."""
        return {k: v / self.lanes for k, v in self.synthesis.by_component().items()}


class Difference(Spec):
    """Gates per lane of one component in a unit and in the baseline."""

    component: str
    gates: float
    baseline: float

    @property
    def ratio(self) -> float | None:
        return self.gates / self.baseline if self.baseline else None


def cost(unit: Unit | MultiUnit | Converter) -> Cost:
    """Synthesises a dot-product unit or a converter; needs yosys. Of a unit for several formats a
    lane is a slot."""
    what = unit.about.splitlines()[0]
    lanes = unit.slots if isinstance(unit, MultiUnit) else unit.lanes
    return Cost(unit=what, lanes=lanes, synthesis=synthesise(unit.verilog(), unit.name))


def difference(unit: Cost, baseline: Cost) -> list[Difference]:
    """By component, and last the whole."""
    ours, theirs = unit.by_component(), baseline.by_component()
    rows = [
        Difference(component=k, gates=ours.get(k, 0.0), baseline=theirs.get(k, 0.0))
        for k in dict.fromkeys([*ours, *theirs])
    ]
    total = Difference(component="all", gates=unit.gates_per_lane, baseline=baseline.gates_per_lane)
    return [*rows, total]
