"""What the simulation needs to know of a machine beside its file."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Device:
    """SI units; barrier: seconds per step."""

    cores: int
    bandwidth: float
    cache: float
    cache_bandwidth: float
    memory_latency: float
    cache_latency: float
    barrier: float

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
        return cls(
            cores=cores,
            bandwidth=machine.memory.bandwidth.value,
            cache=machine.memory.cache.value,
            cache_bandwidth=given.value if given else PORT * cores * clock,
            memory_latency=MEMORY_LATENCY,
            cache_latency=CACHE_LATENCY,
            barrier=BARRIER_CLOCKS / clock,
        )

    def tiling(self, op: Matmul) -> Tiling:
        """The largest of the usual tiles that gives every core work, else the smallest."""
        sizes = [(256, 256), (128, 256), (128, 128), (64, 128), (64, 64), (64, 32)]
        for m, n in sizes:
            if -(-op.m // m) * -(-op.n // n) >= self.cores:
                break
        return Tiling(m=m, n=n, k=64 if op.k <= 4096 else 128)
