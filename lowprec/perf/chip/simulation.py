"""A GEMM on one device, tile by tile: memory, cache, copy engines, matrix and vector units.

Every core takes the next tile of the order when it is done with one. For a step of a tile its copy
engine asks for two slices; those that the cache has not yet come from memory. Slices queue at what
they share, memory and cache, in the order in which they are asked for, and at the core's own copy
engine; a step starts when its slices are there, the step before it is done, and costs the matrix
unit its FLOP and a barrier. As soon as a step is done its buffer asks for the slices of a later
one. At the end of a tile the vector unit converts the sums and they are written; with two sets of
accumulators the next tile has begun by then. The matrix units run at the rate that the chip's watts
allow in a sustained run; that, the launch and the share of the memory's bandwidth that streams get
are level 2's constants (lowprec/perf/kernel).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from lowprec.errors import LowprecError
from lowprec.perf.chip.device import Device
from lowprec.perf.chip.tiling import Gemm, Tiling
from lowprec.perf.hardware import Machine
from lowprec.perf.kernel.clock import sustained
from lowprec.perf.kernel.gemm import SCALED_TILES
from lowprec.perf.kernel.plan import plan_of
from lowprec.perf.roofline import conversions, nbytes, operands
from lowprec.spec import Format, Matmul, Rule, Spec

Slice = tuple[str, int, int]


class Simulated(Spec):
    """seconds of the kernel, its launch included. busy: share of that time in which each unit
    works, over all cores. memory_bytes: read from and written to memory; cache_bytes: through the
    cache. tiles, waves: of the output, and tiles per core rounded up."""

    seconds: float
    busy: dict[str, float]
    memory_bytes: float
    cache_bytes: float
    hits: float
    tiles: int
    waves: int
    datapath: str
    native: bool


@dataclass
class Server:
    """A unit that serves one request after the other at a rate."""

    rate: float
    free: float = 0.0
    work: float = 0.0

    def serve(self, now: float, amount: float) -> float:
        """When `amount`, asked for at `now`, is done."""
        self.free = max(now, self.free) + amount / self.rate
        self.work += amount
        return self.free


@dataclass
class Hierarchy:
    """Memory and the cache in front of it; the cache keeps the slices that were asked for last."""

    device: Device
    capacity: float
    memory: Server
    cache: Server
    kept: OrderedDict[Slice, tuple[float, float]] = field(default_factory=OrderedDict)
    held: float = 0.0
    hits: int = 0
    asked: int = 0

    def read(self, now: float, which: Slice, size: float) -> float:
        """When the slice has come through the cache. Both queues are joined when it is asked for:
        one that is joined later would block what comes meanwhile."""
        self.asked += 1
        through = self.cache.serve(now, size)
        if which in self.kept:
            self.hits += 1
            self.kept.move_to_end(which)
            there = max(now, self.kept[which][0])
        else:
            there = self.memory.serve(now, size) + self.device.memory_latency
            self.kept[which] = (there, size)
            self.held += size
            while self.held > self.capacity:
                _, (_, gone) = self.kept.popitem(last=False)
                self.held -= gone
        return max(there, through) + self.device.cache_latency

    def write(self, now: float, size: float) -> float:
        return max(self.cache.serve(now, size), self.memory.serve(now, size))


@dataclass
class Core:
    """One core's own units."""

    copy: Server
    matrix: Server
    vector: Server


def simulate_gemm(
    op: Matmul,
    rule: Rule | None,
    machine: Machine,
    dtype: Format,
    *,
    tiling: Tiling | None = None,
) -> Simulated:
    """One multiplication of `op` under the recipe's `rule`, weights and activations in memory as
    the rule stores them (the kernel that quantizes activations is not part of it).

    LowprecError: more than one matmul (a batch or experts), or a machine without the number of its
    cores, their clock or the size of its cache.
    """
    import simpy

    if op.batch > 1 or op.experts > 1:
        raise LowprecError(f"{op.path}: the simulation takes one matmul, not a batch or experts")
    device = Device.of(machine)
    x, w = operands(op, rule, dtype)
    plan = plan_of(x, w, machine, dtype)
    choice = plan.choice
    power = sustained(plan.chip.watts, plan.bits, plan.constants.energy)
    rate = min(plan.rate * plan.reach, plan.limit, power)
    least = SCALED_TILES[0][0] if plan.scaled_tiles else 1
    x_bits = 8 * nbytes(x, (op.m, op.k)) / (op.m * op.k)
    w_bits = 8 * nbytes(w, (op.n, op.k)) / (op.n * op.k)
    gemm = Gemm(
        m=op.m,
        n=op.n,
        k=op.k,
        x_bits=x_bits,
        w_bits=w_bits,
        y_bits=dtype.storage_bits,
        tiling=tiling or device.tiling(op, x_bits, w_bits, rate, least),
    )
    converted = 0.0
    if not choice.native:
        tile = gemm.tiling
        converted = tile.k * (tile.m * conversions(x, dtype) + tile.n * conversions(w, dtype))
    environment = simpy.Environment()
    hierarchy = Hierarchy(
        device,
        device.cache,
        Server(device.bandwidth * plan.constants.read),
        Server(device.cache_bandwidth),
    )
    cores = [
        Core(
            Server(device.cache_bandwidth / device.cores),
            Server(rate / device.cores),
            Server(machine.vector.rate.value / 2 / device.cores),
        )
        for _ in range(min(device.cores, len(gemm.order)))
    ]
    todo = iter(gemm.order)
    for core in cores:
        environment.process(_run(environment, core, todo, gemm, hierarchy, converted))
    environment.run()
    seconds = environment.now + plan.constants.launch
    return Simulated(
        seconds=seconds,
        busy={
            "memory": hierarchy.memory.work / hierarchy.memory.rate / seconds,
            "cache": hierarchy.cache.work / hierarchy.cache.rate / seconds,
            "copy": _busy([core.copy for core in cores], device.cores, seconds),
            "matrix": _busy([core.matrix for core in cores], device.cores, seconds),
            "vector": _busy([core.vector for core in cores], device.cores, seconds),
        },
        memory_bytes=hierarchy.memory.work,
        cache_bytes=hierarchy.cache.work,
        hits=hierarchy.hits / hierarchy.asked,
        tiles=len(gemm.order),
        waves=-(-len(gemm.order) // device.cores),
        datapath=choice.datapath.name,
        native=choice.native,
    )


def _busy(servers: list[Server], count: int, seconds: float) -> float:
    return sum(server.work / server.rate for server in servers) / (count * seconds)


def _run(
    environment: Any,
    core: Core,
    todo: Iterator[tuple[int, int]],
    gemm: Gemm,
    hierarchy: Hierarchy,
    converted: float,
) -> Generator[Any, Any, None]:
    """One core, from tile to tile. Loads run ahead over the end of a tile."""
    barrier = hierarchy.device.barrier
    loads: list[float] = []
    ahead = _steps(todo, gemm)
    written = 0.0

    def ask() -> None:
        step = next(ahead, None)
        if step is not None:
            loads.append(_load(environment.now, core, step, gemm, hierarchy))

    for _ in range(gemm.tiling.stages):
        ask()
    done = 0
    while loads:
        there = loads.pop(0)
        if converted:
            there = core.vector.serve(there, converted)
        end = core.matrix.serve(max(there, environment.now), gemm.step_flops) + barrier
        yield environment.timeout(end - environment.now)
        done += 1
        ask()
        if done % gemm.steps == 0:
            # The second set of accumulators is free again when the tile before is written.
            if written > environment.now:
                yield environment.timeout(written - environment.now)
            sums = gemm.tiling.m * gemm.tiling.n
            written = hierarchy.write(core.vector.serve(environment.now, sums), gemm.y_bytes)
    if written > environment.now:
        yield environment.timeout(written - environment.now)


def _steps(todo: Iterator[tuple[int, int]], gemm: Gemm) -> Iterator[tuple[int, int, int]]:
    """Row, column and step of K of all that one core takes; the next tile only when asked for."""
    for row, column in todo:
        for step in range(gemm.steps):
            yield row, column, step


def _load(
    now: float, core: Core, step: tuple[int, int, int], gemm: Gemm, hierarchy: Hierarchy
) -> float:
    row, column, k = step
    there = max(
        hierarchy.read(now, ("x", row, k), gemm.x_bytes),
        hierarchy.read(now, ("w", column, k), gemm.w_bytes),
    )
    return max(there, core.copy.serve(now, gemm.x_bytes + gemm.w_bytes))
