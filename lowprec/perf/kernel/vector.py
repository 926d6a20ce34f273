"""Seconds of vector operations, gathers and quantizers that stand alone: a launch and a stream."""

from __future__ import annotations

from functools import cache
from typing import Any

from lowprec.perf.hardware import Machine
from lowprec.perf.kernel.chip import Chip, chip_of
from lowprec.perf.kernel.constants import FOLDER
from lowprec.perf.kernel.intervals import interval
from lowprec.perf.roofline import Cost, Seconds, nbytes
from lowprec.perf.validation.point import Calibration
from lowprec.spec import Embedding, Format, Vector, read_toml


@cache
def table() -> dict[str, Any]:
    """calibration/vector.toml, read once."""
    return read_toml(FOLDER / "vector.toml")


def vector(op: Vector | Embedding, machine: Machine, dtype: Format) -> Cost:
    """Cost of `op`: its bytes at what a streaming kernel reaches of the memory's bandwidth, and
    the vector units' products where that is longer."""
    if isinstance(op, Vector):
        moved, flops = nbytes(dtype, (op.read,)) + nbytes(dtype, (op.written,)), op.flops
    else:
        moved, flops = 2 * nbytes(dtype, (op.rows, op.width)), 0
    chip = chip_of(machine)
    launch, stream, level = streaming("cast", moved, chip)
    compute = flops / machine.vector.rate.value
    seconds = Seconds(compute=compute, memory=stream, launch=launch)
    total = seconds.total
    low, high = interval("vector", level, 1)
    return Cost(None, flops, moved, seconds, total * low, total * high, level)


def streaming(kernel: str, moved: float, chip: Chip) -> tuple[float, float, Calibration]:
    """Seconds of the launch and of the stream of a kernel ("cast" or "amax"), and what they rest
    on."""
    own = table().get(f"{kernel}_on", {}).get(chip.name)
    c = own or table()[kernel]
    level: Calibration = "fitted" if own and not chip.what_if else "transferred"
    return c["launch"], moved / (chip.bandwidth * c["share"]), level
