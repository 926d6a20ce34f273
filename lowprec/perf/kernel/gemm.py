"""Seconds of one matmul kernel: tiles over cores in waves, beside the memory's stream.

A result is cut into tiles of tm x tn, one to a core at a time. A core's tile takes, per element
of K, the longer of its products (at `busy` of the core's rate) and of its operands' way into the
core (`feed`, and the core's share of the last cache's bandwidth), and at its ends the filling of
its pipeline and the writing of its result. All cores work in waves, the last one partly idle;
few tiles may split K and add up their parts. The chip's watts bound the FLOP/s of all cores
together (clock.py). The memory's stream overlaps with that:
time = hypot(cores, memory), close to the longer one, and more where both are long. Of all tiles
and splits a library offers, the fastest counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lowprec.perf.kernel.clock import sustained
from lowprec.perf.kernel.plan import Plan

# Tiles that libraries choose from (cuBLAS, CUTLASS, hipBLASLt, aiter), M by N. Units that apply
# scales per 16 or 32 elements themselves take 128 rows at least, without splitting K: NVFP4 on
# B200 takes the same time for 1 and for 128 rows, and for K = 16384 what one core needs.
TILES = (
    (16, 64), (16, 128), (32, 64), (64, 64), (64, 128), (64, 256), (128, 64), (128, 128),
    (128, 256), (256, 128), (256, 256),
)  # fmt: skip
SCALED_TILES = ((128, 64), (128, 128), (128, 256), (256, 128), (256, 256))
# K is split into parts of 128 elements at least, down to one unit of work per core.
SMALLEST_PART = 128
REFERENCE_CLOCK = 1.83e9


@dataclass(frozen=True, slots=True)
class Shape:
    """Products x_MK @ w_NK.T: `rows` gives M and how many products have it (a batch, or experts
    by the rows that reach them), `weights` how many distinct w_NK are read."""

    rows: Sequence[tuple[float, float]]
    n: int
    k: int
    weights: float


def kernel(shape: Shape, plan: Plan, read: float, written: float) -> tuple[float, float]:
    """Seconds of the cores and of the memory, without launch; both run at once (see `overlap`).

    read, written: bytes of the operands and of the result.
    """
    chip, c = plan.chip, plan.constants
    x_bits, w_bits = plan.x_bits, plan.w_bits
    memory = (read / c.read + written / c.write) / chip.bandwidth
    cores, whole, n, k = chip.cores, chip.whole, shape.n, shape.k
    core = plan.rate * plan.reach * c.busy / cores
    way_in = c.feed * chip.clock * math.sqrt(chip.width * (x_bits + w_bits) / 32)
    fill = c.fill * REFERENCE_CLOCK / chip.clock
    power = min(plan.limit, sustained(chip.watts, plan.bits, c.energy))
    promoted = plan.choice.promoted
    sums = c.convert / promoted / chip.vector if promoted else 0.0
    w_ops, x_ops = (c.convert * ops / chip.vector for ops in (plan.convert_w, plan.convert_x))
    adding = 4 * n * sum(m * count for m, count in shape.rows) / chip.bandwidth
    parts_at_most = 1 if plan.scaled_tiles else k // SMALLEST_PART
    best = math.inf
    for tm, tn, count in _tilings(shape, SCALED_TILES if plan.scaled_tiles else TILES):
        area = tm * tn
        shared, parts = 0.0, 1
        while True:
            waves = math.ceil(count * parts / cores)
            # Tiles at a time, which share the cache and the vector units; a core that counts as
            # several lends a lone tile what the others would have.
            if shared != (now := max(whole, count * parts / waves)):
                shared = now
                feed = 8 / math.hypot(1 / way_in, shared / chip.cache_bandwidth)
                step = max(2 * area / core, (tm * x_bits + tn * w_bits) / feed)
                step += area * sums * shared
                if w_ops or x_ops:
                    step = math.hypot(step, (tn * w_ops + tm * x_ops) * shared)
                ends = fill + 16 * area / feed
            least = count * area * 2.0 * k / power
            seconds = waves * (k / parts * step + ends)
            if parts > 1:
                seconds += c.split + parts * adding
            best = min(best, max(seconds, least))
            if seconds <= least or count * parts >= cores or 2 * parts > parts_at_most:
                break
            parts *= 2
    return best, memory


def _tilings(shape: Shape, tiles: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, float]]:
    """The tiles that are not mostly empty, and how many of each the result takes."""
    rows, n = shape.rows, shape.n
    single, number = rows[0] if len(rows) == 1 else (0.0, 0.0)
    longest = single or max(m for m, _ in rows)
    smallest = tiles[0][0]
    for tm, tn in tiles:
        if (tm > smallest and tm >= 2 * longest) or (tn > 64 and tn >= 2 * n):
            continue
        if single:
            yield tm, tn, -(-single // tm) * number * -(-n // tn)
        else:
            yield tm, tn, sum(-(-m // tm) * many for m, many in rows) * -(-n // tn)


def overlap(cores: float, memory: float) -> float:
    """Seconds of a kernel whose cores and memory stream work at once."""
    return math.hypot(cores, memory)
