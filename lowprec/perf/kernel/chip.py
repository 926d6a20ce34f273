"""The numbers of one machine that kernels on one of its datapaths need, as plain floats."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lowprec.perf.datapath import Datapath
from lowprec.perf.hardware import Machine

# Where a machine file says nothing: a clock in the middle of what datacentre chips run at, and as
# many cores as keep each at the size below.
CLOCK = 1.8e9
# FLOP per clock of 16-bit products that one core of a GPU does; a larger core (a systolic array of
# a TPU) is counted as several of the largest, since it takes larger tiles.
REFERENCE_CORE = 4096.0
LARGEST_CORE = 16384.0


@dataclass(frozen=True, slots=True)
class Chip:
    """name: of a what-if that of the machine it is based on, whose measured constants it has;
    bandwidth: bytes/s; cache_bandwidth: bytes/s to all cores, infinite where unknown; clock: Hz;
    watts: 0 where unknown; vector: FP32 operations/s (an FMA is one); width: operand bits per clock
    and core over those of the reference core, which is what the core's way in is made for; whole:
    the machine's cores, where one of them counts as several. No other datapath than the one in use
    counts."""

    name: str
    what_if: bool
    vendor: str
    family: str
    bandwidth: float
    cache: float
    cache_bandwidth: float
    cores: float
    clock: float
    watts: float
    vector: float
    width: float
    whole: float


_KNOWN: dict[tuple[int, int, int], tuple[Machine, Chip]] = {}


def chip_of(machine: Machine, path: Datapath | None = None, bits: int = 32) -> Chip:
    """The chip of `machine` whose `path` multiplies operands of `bits`; without one its vector
    units. Found once per object, which is immutable."""
    path = path or machine.vector
    key = (id(machine), id(path), bits)
    known = _KNOWN.get(key)
    if known is None or known[0] is not machine:
        if len(_KNOWN) > 4096:
            _KNOWN.clear()
        known = _KNOWN[key] = (machine, _chip(machine, path.rate.value * bits / 16))
    return known[1]


def _chip(machine: Machine, rate: float) -> Chip:
    """rate: FLOP/s of the 16-bit products that as many operand bits would make."""
    clock = machine.clock.value if machine.clock else CLOCK
    cores = machine.cores.value if machine.cores else rate / clock / REFERENCE_CORE
    cores = max(cores, rate / clock / LARGEST_CORE)
    memory = machine.memory
    return Chip(
        name=machine.based_on or machine.name,
        what_if=machine.based_on is not None,
        vendor=machine.vendor,
        family=machine.family or "",
        bandwidth=memory.bandwidth.value,
        cache=memory.cache.value if memory.cache else 0.0,
        cache_bandwidth=memory.cache_bandwidth.value if memory.cache_bandwidth else math.inf,
        cores=cores,
        clock=clock,
        watts=machine.power.value if machine.power else 0.0,
        vector=machine.vector.rate.value / 2,
        width=rate / clock / cores / REFERENCE_CORE,
        whole=min(cores, machine.cores.value if machine.cores else 1.0),
    )
