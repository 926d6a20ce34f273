"""What the CPU core covers, and how its functions are called: formats and rules as C numbers."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch import Tensor

from lowprec.kernels.block import numbers_of
from lowprec.kernels.core import CGrid, CRule, Pair, load
from lowprec.kernels.element import Projector, projector
from lowprec.kernels.grid import UNBOUNDED, Grid
from lowprec.kernels.scale import ScaleRule
from lowprec.kernels.word import FLOAT32, holds
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import pow2
from lowprec.spec.quantizer import POWER_OF_TWO_RULES, Quantizer

# With fewer elements each, more threads cost more than they save.
PER_THREAD = 1 << 19


@dataclass(frozen=True)
class Plan:
    """A quantizer as the core takes it; rules and block are None for a plain cast."""

    grid: CGrid
    rule: CRule | None
    tensor_rule: CRule | None
    block: int | str | None


def fake_quantize(
    x: Tensor, quantizer: Quantizer, axis: int, out: Tensor | None = None
) -> Tensor | None:
    """The values of `x` after quantization, into `out` if given, which may be `x`.

    None where the core does not cover the case: the caller then runs the definition.
    """
    plan = _plan(quantizer)
    if plan is None or not _fits(x, out) or load()[0] is None:
        return None
    y = torch.empty_like(x) if out is None else out
    if plan.rule is None:
        _in_parts(x, y, 1, lambda lib, a, b, n: lib.lp_cast(a, b, n, plan.grid))
    elif plan.block == "tensor":
        _whole_tensor(x, y, plan.rule, plan.grid)
    else:
        _blocks(x, y, axis, plan, _with_tensor_scale(x, plan))
    return y


def _fits(x: Tensor, out: Tensor | None) -> bool:
    tensors = [x] if out is None else [x, out]
    plain = all(
        t.dtype == torch.float32 and t.device.type == "cpu" and t.is_contiguous()
        and type(t) in (Tensor, torch.nn.Parameter) for t in tensors
    )  # fmt: skip
    if not plain or not x.numel() or torch.compiler.is_compiling():
        return False
    apart = out is None or abs(out.data_ptr() - x.data_ptr()) >= x.nbytes
    return apart or (out is not None and out.data_ptr() == x.data_ptr())


@lru_cache(maxsize=1024)
def _plan(quantizer: Quantizer) -> Plan | None:
    fmt = quantizer.format
    if not isinstance(fmt, BlockFormat):
        covered = holds(torch.float32, fmt)
        grid = _grid(projector(fmt, quantizer.projection, FLOAT32)) if covered else None
        return None if grid is None else Plan(grid, None, None, None)
    if not _is_plain(quantizer, fmt):
        return None
    numbers = numbers_of(quantizer)
    grid, rule = _grid(numbers.element), _rule(numbers.rule)
    tensor_rule = _tensor_rule(numbers.rule)
    flat = isinstance(fmt.block, str) or len(fmt.block) == 1
    if grid is None or rule is None or not flat or (tensor_rule is None) != (fmt.outer is None):
        return None
    return Plan(grid, rule, tensor_rule, fmt.block if isinstance(fmt.block, str) else fmt.block[0])


def _is_plain(quantizer: Quantizer, fmt: BlockFormat) -> bool:
    """Whether a scale per block, and at most one per tensor, is all that there is."""
    refined = fmt.inner or fmt.zero_point or fmt.offset or fmt.outlier
    levels = fmt.outer is None or fmt.outer.block == "tensor"
    return levels and not refined and quantizer.rule in (*POWER_OF_TWO_RULES, "amax")


@lru_cache(maxsize=1024)
def _grid(element: Projector) -> CGrid | None:
    """The C form of a projection, or None where the core does not cover it."""
    g = element.numbers
    if not isinstance(g, Grid) or g.word is not FLOAT32 or g.rounding != "nearest-even":
        return None
    subnormals = g.has_zero and (g.least_significand, g.least_exponent) == (1, g.quantum)
    unbounded = g.precision == UNBOUNDED
    shift = 0 if unbounded else FLOAT32.trailing + 1 - g.precision
    # An integer's values all lie where the addition of `magic` rounds them.
    fixed = g.quantum + (FLOAT32.trailing if unbounded else g.precision - 1)
    if not subnormals or shift > FLOAT32.trailing - 1 or not (-126 <= fixed <= 127):
        return None
    if not -126 <= g.quantum + FLOAT32.trailing <= 127 or (
        unbounded and max(g.ends.bound) >= FLOAT32.pattern(pow2(fixed))
    ):
        return None
    ends = [Pair(*(bits & 0xFFFFFFFF for bits in pair)) for pair in (
        g.ends.bound, g.ends.overflow, g.ends.infinity, g.ends.zero
    )]  # fmt: skip
    return CGrid(
        float(pow2(g.quantum + FLOAT32.trailing)),
        FLOAT32.pattern(pow2(fixed)),
        shift,
        (1 << shift >> 1) - 1 if shift else 0,
        1 if shift else 0,
        0xFFFFFFFF & -(1 << shift),
        *ends,
        (unbounded or shift > 0) and _saturates(g, shift),
        2.0**shift,
    )


def _saturates(g: Grid, shift: int) -> bool:
    """Whether whatever overflows goes to the bound, and 2^shift times it stays finite."""
    ends = g.ends
    limits = (ends.bound[0], ends.bound[1] | g.word.sign if ends.bound[1] else 0)
    plain = ends.overflow == ends.infinity == limits and ends.zero in ((0, 0), (0, g.word.sign))
    exponent = max(ends.bound) >> g.word.trailing
    return plain and exponent - g.word.bias + shift < g.word.bias


def _rule(rule: ScaleRule) -> CRule | None:
    """The C form of a scale rule, without its tensor scale; None where the core has none."""
    onto = CGrid() if rule.power_of_two else _grid(rule.onto_scale)
    largest = ctypes.c_float(rule.largest)
    lowest, highest = rule.exponents
    exact = not rule.divides or largest.value == rule.largest
    if onto is None or not exact or lowest < FLOAT32.emin - FLOAT32.trailing or highest > 127:
        return None
    return CRule(
        rule.power_of_two, rule.divides, largest, rule.carry, rule.emax, lowest, highest,
        rule.onto_outer is not None, 0.0, onto,
    )  # fmt: skip


def _tensor_rule(rule: ScaleRule) -> CRule | None:
    """t as the scale of one large block, whose M is the divisor."""
    onto = rule.onto_outer and _grid(rule.onto_outer)
    if onto is None or math.isinf(rule.outer_divisor):
        return None
    return CRule(False, True, rule.outer_divisor, 0, 0, 0, 0, False, 0.0, onto)


def _with_tensor_scale(x: Tensor, plan: Plan) -> CRule:
    assert plan.rule is not None
    if plan.tensor_rule is None:
        return plan.rule
    library = load()[0]
    assert library is not None
    rule = CRule.from_buffer_copy(plan.rule)
    rule.tensor_scale = library.lp_scale(_largest(x), plan.tensor_rule)
    return rule


def _largest(x: Tensor) -> int:
    """The pattern of the largest magnitude; of NaN, were there one."""
    found: list[int] = []
    _in_parts(x, x, 1, lambda lib, a, _, n: found.append(lib.lp_largest(a, n)))
    return max(found)


def _whole_tensor(x: Tensor, y: Tensor, rule: CRule, grid: CGrid) -> None:
    amax = _largest(x)
    _in_parts(x, y, 1, lambda lib, a, b, n: lib.lp_apply(a, b, n, amax, rule, grid))


def _blocks(x: Tensor, y: Tensor, axis: int, plan: Plan, rule: CRule) -> None:
    k, grid = x.shape[axis], plan.grid
    block = k if plan.block == "channel" else min(int(plan.block or 0), k)
    inner = math.prod(x.shape[axis:][1:])
    if inner == 1:
        # Whole blocks do not care where rows end: then all of them are one row.
        whole = k % block == 0
        _in_parts(
            x, y, block if whole else k,
            lambda lib, a, b, n: lib.lp_rows(
                a, b, 1 if whole else n // k, n if whole else k, block, rule, grid
            ),
        )  # fmt: skip
    elif x.numel() == k * inner:
        _in_parts(
            x, y, block * inner,
            lambda lib, a, b, n: lib.lp_columns(a, b, 1, n // inner, inner, block, rule, grid),
        )  # fmt: skip
    else:
        slab = k * inner
        _in_parts(
            x, y, slab,
            lambda lib, a, b, n: lib.lp_columns(a, b, n // slab, k, inner, block, rule, grid),
        )  # fmt: skip


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="lowprec")


def _in_parts(
    x: Tensor, y: Tensor, unit: int, work: Callable[[ctypes.CDLL, int, int, int], None]
) -> None:
    """``work(library, x's address, y's address, elements)`` for parts of whole `unit`s (the last
    may be ragged), in as many threads as torch uses and the size deserves."""
    library = load()[0]
    assert library is not None
    n, a, b = x.numel(), x.data_ptr(), y.data_ptr()
    units = -(-n // unit)
    threads = max(1, min(torch.get_num_threads(), n // PER_THREAD, units))
    if threads == 1:
        work(library, a, b, n)
        return
    step = -(-units // threads) * unit
    starts = range(0, n, step)
    parts = [(library, a + 4 * i, b + 4 * i, min(step, n - i)) for i in starts]
    list(_pool(threads).map(lambda part: work(*part), parts))
