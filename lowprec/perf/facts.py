"""What a machine file's `[facts]` say of the chip's parts, and whether its rates agree."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lowprec.errors import LowprecError, unknown
from lowprec.perf.accelerator import Machine
from lowprec.perf.quantity import Positive, Text
from lowprec.spec import Spec

_TOLERANCE = 0.04  # printed figures are rounded, and so are clocks


class Bus(Spec):
    """Main memory's pins, and bit/s of one of them."""

    bits: Annotated[int, Field(ge=1)]
    rate: Positive


class Facts(Spec):
    """Numbers of another kind than the file's own, from which its rates follow.

    clock: Hz at which the rates are quoted, where that is not the machine's clock. per_cycle: FLOP
    of one core in one cycle, by datapath. bus: the memory interface.
    """

    source: Text
    clock: Positive | None = None
    per_cycle: dict[str, Positive] = Field(default={})
    bus: Bus | None = None

    def check(self, machine: Machine, where: str) -> None:
        """LowprecError if a rate differs from cores x clock x FLOP per cycle, or the bandwidth
        from the bus, by more than 4 %."""
        rates = {path.name: path.rate.value for path in machine.datapaths}
        clock = self.clock or (machine.clock.value if machine.clock else None)
        for name, flop in self.per_cycle.items():
            if name not in rates:
                raise unknown("datapath", name, rates, f"{where}.per_cycle")
            if clock is None or machine.cores is None:
                raise LowprecError(f"{where}.per_cycle: expected cores and a clock in the file")
            _same(f"{where}.per_cycle.{name}", machine.cores.value * clock * flop, rates[name])
        if self.bus:
            bandwidth = self.bus.bits * self.bus.rate / 8
            _same(f"{where}.bus", bandwidth, machine.memory.bandwidth.value)


def _same(where: str, derived: float, stated: float) -> None:
    if abs(derived / stated - 1) > _TOLERANCE:
        raise LowprecError(f"{where}: gives {derived:.4g}, the file says {stated:.4g}")
