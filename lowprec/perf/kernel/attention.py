"""Seconds of attention: a prefill in blocks of queries, a decode in parts of the cached keys.

Prefill (FlashAttention, arXiv 2307.08691): a core takes a block of queries of one head through all
keys that its mask leaves; each pair costs its share of the two products and one exponential on the
special-function units, an eighth of the vector lanes, which do not get faster with narrower
operands (that is why FP8 attention gains little). Decode (FlashDecoding): the queries that share a
key head are one block, and the keys of a sequence are cut into parts until the cores are busy; a
core's share of the memory's bandwidth is bounded. Both overlap with the memory's stream, and both
sit behind the launch of several kernels (rotary embedding, cache update, reduction). The decodes
that were measured read paged caches, so the look-up of pages is in the constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from lowprec.perf.datapath import Operand
from lowprec.perf.hardware import Machine
from lowprec.perf.kernel.chip import Chip, chip_of
from lowprec.perf.kernel.constants import FOLDER
from lowprec.perf.kernel.gemm import REFERENCE_CLOCK, overlap
from lowprec.perf.kernel.intervals import interval
from lowprec.perf.kernel.plan import Plan, plan_of
from lowprec.perf.roofline import Cost, Seconds, attention_operands, cache_bytes, nbytes
from lowprec.perf.validation.point import Calibration
from lowprec.spec import Attention, Format, Rule, read_toml

QUERY_BLOCKS = (64, 128, 256)
# New positions up to which a pass is a decode, whose kernel splits the keys.
DECODE = 16
LEAST_PART = 128
# Query heads that a decode kernel serves from one read of a key head: TensorRT-LLM's takes as long
# for 64 as if every head had its own (ai-dynamo/aiconfigurator@095f58a, generation_attention_perf).
MOST_SHARED = 32
RESIDENT = 4  # blocks that share a core, so that one fills its pipeline while others compute
SPECIAL = 8  # vector lanes per special-function unit (CUDA programming guide: 128 and 16 per SM)


@cache
def table() -> dict[str, Any]:
    """calibration/attention.toml, read once."""
    return read_toml(FOLDER / "attention.toml")


def attention(op: Attention, rule: Rule | None, machine: Machine, dtype: Format) -> Cost:
    """Cost of `op`, with caches and operands in the formats of `rule`."""
    phase = "decode" if op.queries <= DECODE else "prefill"
    return priced(op, rule, machine, dtype, phase, _constants(phase, chip_of(machine).name))


def _constants(phase: str, machine: str) -> dict[str, float]:
    constants: dict[str, float] = table().get(f"{phase}_on", {}).get(machine) or table()[phase]
    return constants


def priced(
    op: Attention,
    rule: Rule | None,
    machine: Machine,
    dtype: Format,
    phase: str,
    c: dict[str, float],
) -> Cost:
    """Cost of `op` with the constants `c` of its phase."""
    plans = [plan_of(a, b, machine, dtype) for a, b in attention_operands(rule, dtype)]
    chip = plans[0].chip
    per_pair = 2 * sum(
        width / plan.rate for width, plan in zip((op.head_dim, op.value_dim), plans, strict=True)
    )
    launch = c["launch"]
    stored = cache_bytes(op, rule, dtype)
    moved = stored + nbytes(dtype, (op.q_elements,))
    converted = sum(p.convert_w for p in plans) / 2
    if phase == "prefill":
        cores = _prefill(op, per_pair, chip, c)
        # K and V are read as the projection left them and written to the cache.
        memory = (moved + nbytes(dtype, (op.kv_elements,))) / (chip.bandwidth * c["read"])
    else:
        bits = (_bits(plans[0].w) + _bits(plans[1].w)) / 2
        # Another kernel serves caches that are narrower than the queries.
        launch *= c["narrow"] if converted else 1.0
        cores = _decode(op, per_pair, bits, converted, chip, c)
        memory = moved / (chip.bandwidth * c["read"])
    pairs = op.batch * op.heads * op.pairs
    cores = max(cores, pairs * per_pair)
    memory = max(memory, moved / chip.bandwidth)
    both = overlap(cores, memory)
    seconds = Seconds(
        compute=both if cores > memory else cores,
        memory=memory if cores > memory else both,
        launch=launch,
    )
    total = seconds.total
    level = _level(chip, phase, plans)
    low, high = interval(phase, level, op.batch * op.queries)
    slower = min(plans, key=lambda p: (p.choice.native, p.rate)).choice
    return Cost(slower, op.flops, moved, seconds, total * low, total * high, level)


def _level(chip: Chip, phase: str, plans: Sequence[Plan]) -> Calibration:
    """Points have operands and caches of 16 and 8 bits."""
    seen = chip.name in table().get(f"{phase}_on", {}) and all(_bits(p.w) >= 8 for p in plans)
    return "fitted" if seen and not chip.what_if else "transferred"


def _prefill(op: Attention, per_pair: float, chip: Chip, c: dict[str, float]) -> float:
    pair = chip.cores * (per_pair / c["busy"] + c["softmax"] * SPECIAL / chip.vector)
    fill = c["fill"] * REFERENCE_CLOCK / chip.clock
    best = math.inf
    for block in QUERY_BLOCKS:
        if block > QUERY_BLOCKS[0] and block >= 2 * op.queries:
            continue
        blocks = -(-op.queries // block)
        # Of the block on the diagonal all keys are multiplied, half of them for nothing.
        keys = min(op.pairs / op.queries + block / 2, op.keys)
        waves = op.batch * op.heads * blocks / chip.cores
        # Blocks differ in length, so that later ones fill the gaps of earlier ones.
        waves = math.ceil(waves) if waves < 4 else waves + 0.5
        best = min(best, waves * (block * keys * pair + fill))
    return best


def _decode(
    op: Attention, per_pair: float, bits: float, converted: float, chip: Chip, c: dict[str, float]
) -> float:
    """Seconds of the cores; bits: per element of K and V; converted: operations per element."""
    shared = op.heads // op.kv_heads
    units, resident = op.batch * op.kv_heads, RESIDENT
    if shared > MOST_SHARED and not op.value_in_key:
        # Every head reads its keys for itself, in blocks that fill a core each.
        units, shared, resident = units * shared, 1, 1
    rows = 16 * -(-op.queries * shared // 16)
    key_bytes = bits / 8 * (op.head_dim + (0 if op.value_in_key else op.value_dim))
    core_bandwidth = c["share"] * chip.bandwidth / chip.cores
    key = max(rows * chip.cores * per_pair / c["busy"], key_bytes / core_bandwidth)
    key = max(key, converted * (op.head_dim + op.value_dim) * chip.cores / chip.vector)
    fill = c["fill"] * REFERENCE_CLOCK / chip.clock
    keys = min(op.keys, op.window) if op.window else op.keys
    best, parts, extra = math.inf, 1, 0.0
    while True:
        waves = units * parts / chip.cores
        length = 64 * math.ceil(keys / parts / 64)
        streamed = length * key * max(waves, 1.0)
        best = min(best, streamed + fill * math.ceil(waves / resident) + extra)
        if units * parts >= 2 * chip.cores or keys <= LEAST_PART * parts:
            return best
        parts *= 2
        extra = c["split"]


def _bits(operand: Operand) -> float:
    return operand.storage_bits if isinstance(operand, Format) else operand.element.bits
