"""One device, tile by tile, as an event simulation."""

from lowprec.perf.chip.simulation import Simulated, simulate_gemm
from lowprec.perf.chip.tiling import Tiling

__all__ = ["Simulated", "Tiling", "simulate_gemm"]
