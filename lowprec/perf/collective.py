"""Collectives over a system's networks: the fastest of the algorithms that libraries have.

Time of one algorithm = start + hops + links.
  start  of the kernel, by family of machines
  hops   messages one after another, each at the latency of its level
  links  bytes of the busiest level over what a rank gets of it, u = bytes / (efficiency x rate),
         and the square root of (ramp x u) more: pipelines fill, so that small messages see less of
         the rate. Small messages go by a protocol with a flag beside the data instead, at a fixed
         share of the rate and without ramp. What a rank keeps it still has to copy: `stage` of one
         rank's part.
Over several levels the stages overlap: hops add up, of the links the slowest level counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from lowprec.errors import LowprecError, unknown
from lowprec.perf.fabric import Constants, Family, Spread, constants
from lowprec.perf.system import System
from lowprec.perf.topology import Level
from lowprec.perf.validation.point import Calibration

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send"]
Software = Literal["library", "engine"]


@dataclass(frozen=True)
class Collective:
    """Seconds with their 90 % interval; the algorithm and the level that takes most of the time;
    terms: start, hops and links, adding up to `seconds`."""

    seconds: float
    low: float
    high: float
    algorithm: str
    level: str
    terms: dict[str, float]
    calibration: Calibration


@dataclass(frozen=True)
class Asked:
    """The arguments of `collective` that its algorithms look at."""

    kind: Kind
    nbytes: float
    ranks: int
    system: System
    software: Software
    in_network: bool


@dataclass(frozen=True)
class Stage:
    """A group of `count` ranks on one level, and how many ranks each of its units holds."""

    level: Level
    count: int
    below: int
    outer: bool


@dataclass(frozen=True)
class Way:
    """One algorithm's time."""

    algorithm: str
    level: str
    start: float
    hops: float
    links: float

    @property
    def seconds(self) -> float:
        return self.start + self.hops + self.links


def collective(
    kind: Kind,
    nbytes: float,
    ranks: int,
    system: System,
    *,
    stride: int = 1,
    software: Software = "engine",
    in_network: bool = True,
) -> Collective:
    """What `ranks` ranks, one on every `stride`-th chip of `system`, take for one collective.

    nbytes: of the whole tensor as nccl-tests count it, in the format that travels (scales
    included): all_reduce, broadcast and send the tensor of one rank; all_gather what every rank
    ends with; reduce_scatter and all_to_all what every rank begins with.
    software: "library" is NCCL or its like; "engine" adds the one-shot all-reduce of serving
    engines. in_network: whether switches may sum (NVLink's sum no int8).
    LowprecError: an unknown kind, fewer chips in the system, no link between them.
    """
    if kind not in get_args(Kind):
        raise unknown("collective", str(kind), get_args(Kind))
    if ranks < 1 or stride < 1 or not nbytes >= 0:
        raise LowprecError(f"{kind}: expected ranks and stride of 1 or more, and bytes")
    stages = _stages(ranks, stride, system)
    if not stages or nbytes == 0:
        return Collective(0.0, 0.0, 0.0, "none", "chip", {}, "measured")
    c = constants()
    asked = Asked(kind, nbytes, ranks, system, software, in_network)
    best = min(_ways(asked, stages, c), key=lambda way: way.seconds)
    spread, calibration = _trust(system, stages, c)
    return Collective(
        seconds=best.seconds,
        low=best.seconds * spread.low,
        high=best.seconds * spread.high,
        algorithm=best.algorithm,
        level=best.level,
        terms={"start": best.start, "hops": best.hops, "links": best.links},
        calibration=calibration,
    )


def reached(ranks: int, system: System) -> tuple[float, float, float]:
    """Bytes/s of long messages that one of 2 or more `ranks` ranks exchanges with all others over
    the slowest level that they meet on, with the 90 % interval."""
    c, stages = constants(), _stages(ranks, 1, system)
    rate = min(_efficiency(s, c) * s.level.exchange(s.count) for s in stages)
    spread, _ = _trust(system, stages, c)
    return rate, rate / spread.high, rate / spread.low


def _trust(system: System, stages: list[Stage], c: Constants) -> tuple[Spread, Calibration]:
    if system.machine.family not in c.families:
        return c.transferred, "transferred"
    return (c.network.spread if any(s.outer for s in stages) else c.fitted), "fitted"


def _stages(ranks: int, stride: int, system: System) -> list[Stage]:
    """The levels on which ranks meet."""
    stages, size, inside = [], 1.0, 1
    for i, level in enumerate(system.levels):
        size *= math.inf if level.size is None else level.size
        within = ranks if math.isinf(size) else min(ranks, max(1, int(size) // stride))
        if (count := -(-within // inside)) > 1:
            stages.append(Stage(level, count, inside, outer=i > 0))
        inside = within
    if inside < ranks:
        raise LowprecError(
            f"system {system.name!r}: {ranks} ranks, one per {stride} chips, need "
            f"{ranks * stride} chips; it joins {size:g}"
        )
    return stages


def _ways(asked: Asked, stages: list[Stage], c: Constants) -> Iterator[Way]:
    kind, nbytes, ranks = asked.kind, asked.nbytes, asked.ranks
    family = c.family(asked.system.machine.family)
    if kind == "all_to_all":
        yield from _exchange(nbytes, ranks, stages, c, family)
        return
    if kind == "send":
        yield from _paths("direct", [(stages[-1], 1, nbytes)], 0, c, family)
        return
    passes = 2 if kind == "all_reduce" else 1
    steps = [
        (s, passes * s.level.hops(s.count), passes * nbytes * (s.count - 1) / s.count / s.below)
        for s in stages
    ]
    if kind == "broadcast":
        steps = [(s, hops, nbytes) for s, hops, _ in steps]
    kept = nbytes / ranks * c.stage
    yield from _paths("ring", steps, kept, c, family)
    if kind == "all_reduce":
        yield from _sums(asked, stages, kept, c, family)


def _sums(
    asked: Asked, stages: list[Stage], kept: float, c: Constants, family: Family
) -> Iterator[Way]:
    """What only an all-reduce can do: trees, switches that add, one shot."""
    nbytes, ranks, host = asked.nbytes, asked.ranks, asked.system.host
    if ranks > host and not any(s.level.direct for s in stages):
        yield from _paths("tree", _tree(nbytes, stages, host, c), kept, c, family)
    if len(stages) > 1 or stages[0].outer:
        return
    level = stages[0].level
    if asked.in_network and level.reduces and ranks > 2:
        # Every rank offers the whole tensor to the switch and multicasts its part of the sum.
        u = nbytes * (1 + 1 / ranks) / (c.reduce_efficiency * level.usable(ranks))
        yield Way("in-network", level.name, family.start + c.reduce_setup, 0, _ramped(u, c))
    if asked.software == "engine":
        links = nbytes * (ranks - 1) / (c.one_shot_efficiency * level.usable(ranks))
        hops = c.one_shot_hop * (ranks - 1)
        yield Way("one-shot", level.name, family.one_shot, hops, links)


def _exchange(
    nbytes: float, ranks: int, stages: list[Stage], c: Constants, family: Family
) -> Iterator[Way]:
    """Every rank sends to every other at once; `nbytes` / ranks to each."""
    raw = {s: nbytes * (s.count - 1) * s.below / ranks / s.level.exchange(s.count) for s in stages}
    inner = stages[0]
    kept = nbytes / ranks * c.stage / inner.level.exchange(inner.count)
    slowest, links = _slowest(raw, kept, c)
    start = family.start * c.exchange_start
    inside = 0 if inner.outer else inner.count
    hops = c.exchange_hop * inside + sum(_hop(s, c, family) for s in stages if s.outer)
    yield Way("flagged exchange", *_flagged(raw, start, hops, c))
    yield Way("exchange", slowest.level.name, start + c.exchange_setup, hops, links)


def _tree(
    nbytes: float, stages: list[Stage], host: int, c: Constants
) -> list[tuple[Stage, int, float]]:
    """A chain within each host, two complementary binary trees over the hosts."""
    steps = []
    for s in stages:
        chain = min(s.count, max(1, host // s.below))
        hops = 2 * (chain - 1 + math.ceil(math.log2(-(-s.count // chain))))
        steps.append((s, hops, 2 * nbytes / s.below / c.tree_efficiency))
    return steps


def _paths(
    algorithm: str,
    steps: list[tuple[Stage, int, float]],
    kept: float,
    c: Constants,
    family: Family,
) -> Iterator[Way]:
    """The algorithm with (stage, hops, bytes) per level, by either protocol."""
    hops = sum(n * _hop(s, c, family) for s, n, _ in steps)
    raw = {s: moved / s.level.usable(s.count) for s, _, moved in steps}
    inner = steps[0][0]
    slowest, links = _slowest(raw, kept / inner.level.usable(inner.count), c)
    yield Way(f"flagged {algorithm}", *_flagged(raw, family.start, hops, c))
    yield Way(algorithm, slowest.level.name, family.start, hops, links)


def _flagged(
    raw: dict[Stage, float], start: float, hops: float, c: Constants
) -> tuple[str, float, float, float]:
    """The level that messages with flags take longest on, and the terms."""
    slowest = max(raw, key=raw.__getitem__)
    return slowest.level.name, start, hops, raw[slowest] / c.flagged


def _slowest(raw: dict[Stage, float], kept: float, c: Constants) -> tuple[Stage, float]:
    """The stage that long messages take longest on, and how long: `raw` seconds at its full rate,
    and of the first stage the copying of what is kept. Adapters are slow enough that nothing has
    to fill first."""
    inner = next(iter(raw))
    seconds = {}
    for s, at_full_rate in raw.items():
        u = (at_full_rate + (kept if s is inner else 0)) / _efficiency(s, c)
        seconds[s] = u if s.outer else _ramped(u, c)
    slowest = max(seconds, key=seconds.__getitem__)
    return slowest, seconds[slowest]


def _ramped(seconds: float, c: Constants) -> float:
    return seconds + math.sqrt(c.ramp * seconds)


def _efficiency(stage: Stage, c: Constants) -> float:
    return c.network.efficiency if stage.outer else c.efficiency


def _hop(stage: Stage, c: Constants, family: Family) -> float:
    if stage.level.latency:
        return stage.level.latency.value
    return c.network.hop if stage.outer else family.hop
