"""What the simulation needs to know of a machine beside its file."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lowprec.errors import LowprecError
from lowprec.perf.chip.tiling import Tiling
from lowprec.perf.hardware import Machine
from lowprec.spec import Matmul

# Assumed for all machines. Bytes per clock that a core takes from the cache: an SM's port.
# Latencies in seconds of the order that microbenchmarks of the A100, H100 and B200 report; one
# barrier between copy engine and matrix unit in clocks.
PORT = 64
MEMORY_LATENCY = 500e-9
CACHE_LATENCY = 150e-9
BARRIER_CLOCKS = 20
# The share of a core's shared memory that a kernel has for buffers, its bytes at least (where it
# is smaller, as AMD's, registers hold slices too), and the fewest and most buffers of a kernel.
BUFFERS = 0.85
SHARED_MEMORY = 160e3
STAGES = (2, 16)
SIZES = (
    (256, 256), (128, 256), (256, 128), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32),
)  # fmt: skip


@dataclass(frozen=True)
class Device:
    """SI units; barrier: seconds per step; buffers: bytes of one core's."""

    cores: int
    bandwidth: float
    cache: float
    cache_bandwidth: float
    memory_latency: float
    cache_latency: float
    barrier: float
    buffers: float

    @classmethod
    def of(cls, machine: Machine) -> Device:
        for name, value in (
            ("cores", machine.cores),
            ("clock", machine.clock),
            ("memory.cache", machine.memory.cache),
        ):
            if value is None:
                raise LowprecError(
                    f"machine {machine.name!r}: {name} is not known, so no simulation of its tiles"
                )
        assert machine.cores
        assert machine.clock
        assert machine.memory.cache
        cores, clock = int(machine.cores.value), machine.clock.value
        given = machine.memory.cache_bandwidth
        shared = machine.core.shared_memory if machine.core else None
        return cls(
            cores=cores,
            bandwidth=machine.memory.bandwidth.value,
            cache=machine.memory.cache.value,
            cache_bandwidth=given.value if given else PORT * cores * clock,
            memory_latency=MEMORY_LATENCY,
            cache_latency=CACHE_LATENCY,
            barrier=BARRIER_CLOCKS / clock,
            buffers=BUFFERS * max(shared.value if shared else 0.0, SHARED_MEMORY),
        )

    def tiling(
        self, op: Matmul, x_bits: float, w_bits: float, rate: float, rows: int = 1
    ) -> Tiling:
        """Of the usual tiles of `rows` at least the largest whose waves take within 5 % of the
        least, with as many buffers as a core has room for. rate: FLOP/s of all cores."""

        def waves(size: tuple[int, int]) -> float:
            m, n = size
            count = math.ceil(op.m / m) * math.ceil(op.n / n)
            moved = (m * x_bits + n * w_bits) / 8 / self.cache_bandwidth
            step = max(2 * m * n / rate, moved) + self.barrier / self.cores / fitting[size][0]
            return math.ceil(count / self.cores) * step

        fewest, most = STAGES
        fitting = {
            (m, n): (k, min(most, stages))
            for k in ((64,) if op.k <= 4096 else (64, 128))
            for m, n in SIZES
            if m >= rows
            and (stages := int(8 * self.buffers // (k * (m * x_bits + n * w_bits)))) >= fewest
        }
        took = {size: waves(size) for size in SIZES if size in fitting}
        m, n = next(size for size, t in took.items() if t <= 1.05 * min(took.values()))
        k, stages = fitting[m, n]
        return Tiling(m=m, n=n, k=k, stages=stages)
