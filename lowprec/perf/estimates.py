"""The price of a workload under a recipe on machines, at the level that is asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from lowprec.errors import LowprecError, unknown
from lowprec.perf.capacity import check, need
from lowprec.perf.collective import Software, collective
from lowprec.perf.fusion import fused
from lowprec.perf.grouping import Group, grouped, kv_bytes, weight_bytes
from lowprec.perf.hardware import Machine
from lowprec.perf.hardware import machine as load_machine
from lowprec.perf.notes import notes
from lowprec.perf.parallel import Parallel
from lowprec.perf.price import Level, price
from lowprec.perf.roofline import RESOURCES, Chips, Cost, Resource, Seconds, cost
from lowprec.perf.sharding import Exchange, Share, share
from lowprec.perf.system import System, list_systems, load_system
from lowprec.perf.validation.point import Calibration
from lowprec.perf.workloads import load_workload
from lowprec.spec import Format, Recipe, Spec, Workload, load_format, load_recipe

# From the least known to the best known.
CALIBRATIONS: tuple[Calibration, ...] = get_args(Calibration)


class Term(Spec):
    """`count` operations of equal shape and price; sums over all of them.

    path: of the one operation, or with ``*`` for the layer numbers they differ in; a kernel of
    several modules' operations has all their names. kind: the operation's, or the collective's.
    flops, bytes: of one chip. seconds is the total of `resources`, within low and high in 90 % of
    cases; utilisation: FLOP done over FLOP that the datapath could have done in that time;
    datapath: None for operations that only move bytes.
    """

    path: str
    kind: str
    count: int
    flops: float
    bytes: float
    seconds: float
    low: float
    high: float
    calibration: Calibration
    resources: Seconds
    binding: Resource
    datapath: str | None
    native: bool
    reason: str
    utilisation: float


class Estimate(Spec):
    """What a forward pass takes, on `chips` chips that are laid out as `parallel` says.

    low, high: the sums of the terms' 90 % intervals, that is, as if all erred alike. level: "bound"
    or "kernel"; calibration: how the least known constants of its terms came about. weight_bytes
    and cache_bytes are of the whole model, stored once; chip_bytes what the fullest chip holds;
    fits says whether it can. shares: parts of the time by resource, adding up to 1; bound: the
    largest.
    """

    machine: str
    recipe: str
    model: str
    phase: str
    level: Level
    parallel: str
    calibration: Calibration
    seconds: float
    low: float
    high: float
    tokens_per_second: float
    tokens_per_second_per_chip: float
    chips: int
    fits: bool
    weight_bytes: int
    cache_bytes: int
    chip_bytes: int
    bound: Resource
    shares: dict[Resource, float]
    terms: tuple[Term, ...]
    notes: tuple[str, ...]


def estimate(
    workload: Workload | str | Path,
    recipe: Recipe | Mapping[str, Any] | str | Path,
    machine: Machine | str | Path,
    *,
    level: Level = "kernel",
    parallel: Parallel | Mapping[str, Any] | str | None = None,
    system: System | str | Path | None = None,
) -> Estimate:
    """Prices every operation of `workload`, or of the shipped one of that name, with the formats
    that `recipe` gives it.

    An operation's formats are those of the first rule that speaks of it; everything else runs in
    `workload.dtype`. level: "bound" is the datasheet's roofline, "kernel" what kernels make of it.
    parallel: the layout over chips, one chip if left out; system: the `System` or its name whose
    links they use, the machine's own if left out. A model that one chip cannot hold, without
    `parallel`, is at the level "bound" split evenly over the fewest chips that hold it, at no cost
    (see `Chips`).
    LowprecError: a rule that matches no matmul, a type that the machine has no datapath for, a
    plan that does not fit the chips' memory.
    """
    if not isinstance(workload, Workload):
        workload = load_workload(workload)
    recipe = load_recipe(recipe)
    if not isinstance(machine, Machine):
        machine = load_machine(machine)
    if level not in get_args(Level):
        raise unknown("level", str(level), get_args(Level))
    dtype = scalar_dtype(workload)
    groups = grouped(workload, recipe)
    plan = Parallel.of(parallel)
    plan.check(workload)
    stored = weight_bytes(groups, dtype), kv_bytes(groups, dtype)
    count = math.ceil(sum(stored) / machine.memory.capacity.value)
    if level == "bound" and parallel is None and count > 1:
        terms = _ideal(groups, Chips(machine, count), dtype)
        chip_bytes = -(-sum(stored) // count)
    else:
        count = plan.chips
        part = share(groups, workload.batch, plan, dtype)
        held = need(part, plan, dtype)
        if parallel is not None or level != "bound":
            check(held, machine, plan, groups, workload.batch, dtype)
        chip_bytes = held.total
        pricing = Pricing(machine, dtype, level, plan, find_system(system, machine))
        terms = pricing.terms(part)
    seconds = sum(term.seconds for term in terms)
    parts = [term.resources.parts() for term in terms]
    shares = {name: sum(part[name] for part in parts) / seconds for name in RESOURCES}
    return Estimate(
        machine=machine.name,
        recipe=recipe.name,
        model=workload.model,
        phase=workload.phase,
        level=level,
        parallel=plan.spell(),
        calibration=min((term.calibration for term in terms), key=CALIBRATIONS.index),
        seconds=seconds,
        low=sum(term.low for term in terms),
        high=sum(term.high for term in terms),
        tokens_per_second=workload.new_tokens / seconds,
        tokens_per_second_per_chip=workload.new_tokens / seconds / count,
        chips=count,
        fits=chip_bytes <= machine.memory.capacity.value and count == plan.chips,
        weight_bytes=stored[0],
        cache_bytes=stored[1],
        chip_bytes=chip_bytes,
        bound=max(shares, key=shares.__getitem__),
        shares=shares,
        terms=terms,
        notes=notes(machine, level, count if count != plan.chips else 1, terms),
    )


def find_system(system: System | str | Path | None, machine: Machine) -> System:
    """The system, or the machine's own links if None. LowprecError: a system of other chips."""
    if system is None:
        return System.of(machine)
    found = system if isinstance(system, System) else load_system(system)
    if not found.holds(machine):
        known = [name for name in list_systems() if load_system(name).holds(machine)]
        raise LowprecError(
            f"system {found.name!r}: its chips are {found.machine.name}, not {machine.name}; "
            f"systems of those: {', '.join(known) or 'none'}"
        )
    return found


def scalar_dtype(workload: Workload) -> Format:
    """The type that the model computes in."""
    dtype = load_format(workload.dtype, "workload: dtype")
    if not isinstance(dtype, Format):
        raise LowprecError(f"workload: dtype: {workload.dtype!r} is no scalar format")
    return dtype


def _ideal(groups: Sequence[Group], chips: Chips, dtype: Format) -> tuple[Term, ...]:
    return tuple(_term(g, cost(g.op, g.rule, chips, dtype), 1.0) for g in groups)


@dataclass(frozen=True)
class Pricing:
    """One chip's operations and exchanges in seconds; software: whose collectives.

    Of `microbatches` parts that a pass sends through `pp` stages, the first takes the sum of all
    stages and every further one the time of one stage.
    """

    machine: Machine
    dtype: Format
    level: Level
    plan: Parallel
    system: System
    software: Software = "engine"

    @property
    def _passes(self) -> float:
        return 1 + (self.plan.microbatches - 1) / self.plan.pp

    def terms(self, part: Share) -> tuple[Term, ...]:
        """The kernels and collectives of one chip's share."""
        kernels = part.groups if self.level == "bound" else fused(part.groups)
        here = self.machine, self.dtype, self.level
        found = [
            _term(g, price(g.op, g.rule, *here, skew=self.plan.routing), self._passes)
            for g in kernels
        ]
        return tuple(found + [self._exchange(each) for each in part.exchanges])

    def _exchange(self, each: Exchange) -> Term:
        one = collective(
            each.kind,
            each.nbytes,
            each.ranks,
            self.system,
            stride=each.stride,
            software=self.software,
        )
        scale = each.count * self._passes * (1 - self.plan.overlap)
        return Term(
            path=each.path,
            kind=each.kind,
            count=each.count,
            flops=0.0,
            bytes=each.count * each.nbytes,
            seconds=scale * one.seconds,
            low=scale * one.low,
            high=scale * one.high,
            calibration=one.calibration,
            resources=Seconds(network=scale * one.seconds),
            binding="network",
            datapath=None,
            native=True,
            reason=f"{one.algorithm} among {each.ranks} chips, {each.stride} apart",
            utilisation=0.0,
        )


def _term(group: Group, one: Cost, passes: float) -> Term:
    choice = one.choice
    seconds = one.seconds.total
    scale = group.count * passes
    return Term(
        path=group.path,
        kind=group.op.kind,
        count=group.count,
        flops=scale * one.flops,
        bytes=scale * one.bytes,
        seconds=scale * seconds,
        low=scale * one.low,
        high=scale * one.high,
        calibration=one.calibration,
        resources=Seconds(**{name: scale * getattr(one.seconds, name) for name in RESOURCES}),
        binding=one.seconds.binding,
        datapath=choice.datapath.name if choice else None,
        native=choice.native if choice else True,
        reason=choice.reason if choice else "bytes only, fused with its neighbours",
        utilisation=one.seconds.compute / seconds if seconds else 0.0,
    )
