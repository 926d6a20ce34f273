"""What the CPU core covers, and how its functions are called: formats and rules as C numbers.

Every function answers None where the core does not cover the case: the caller then runs the
definition, which gives the same bits.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import torch
from torch import Tensor

from lowprec.kernels.core import Job, load
from lowprec.kernels.plan import Plan, plan_of
from lowprec.spec.block import Block, BlockFormat
from lowprec.spec.quantizer import Quantizer

# With fewer elements each, more threads cost more than they save.
PER_THREAD = 1 << 19
# A result of so many bytes goes past the caches, which it would only empty; and where it is fresh
# memory, that is better had in large pages.
STREAMED = 1 << 24
HUGE = 1 << 22
# Elements of a vector of the core, and its bytes.
LANES, VECTOR = 8, 32


@dataclass(frozen=True)
class Walk:
    """Blocks of b along the k elements that lie `inner` apart, in `outer` slabs of k * inner."""

    outer: int
    k: int
    inner: int
    b: int

    @cached_property
    def unit(self) -> int:
        """Elements that a thread does not share, and starts at multiples of."""
        return self.b * self.inner if self.outer == 1 else self.k * self.inner

    @cached_property
    def scales(self) -> int:
        """Scales of a unit."""
        return self.inner if self.outer == 1 else -(-self.k // self.b) * self.inner

    @cached_property
    def is_aligned(self) -> bool:
        """Whether all vectors begin at multiples of their size, if the first one does."""
        if self.inner > 1:
            return self.inner % LANES == 0
        return self.b % LANES == 0 and (self.outer == 1 or self.k % LANES == 0)

    def part(self, n: int) -> tuple[int, int, int, int]:
        """The same of n elements, which are whole units or the last of all."""
        if self.outer == 1:
            return 1, n // self.inner, self.inner, self.b
        return n // (self.k * self.inner), self.k, self.inner, self.b


@lru_cache(maxsize=1024)
def walk(shape: torch.Size, axis: int, block: Block | int) -> Walk:
    """The blocks along `axis` of a contiguous tensor that is not empty."""
    n = math.prod(shape)
    if block == "tensor":
        return Walk(1, n, 1, n)
    k, inner = shape[axis], math.prod(shape[axis:][1:])
    b = k if isinstance(block, str) else min(block if isinstance(block, int) else block[-1], k)
    # Whole blocks do not care where rows and slabs end: then all of them are one.
    return Walk(1, n // inner, inner, b) if k % b == 0 else Walk(n // (k * inner), k, inner, b)


@dataclass(frozen=True)
class Prepared:
    """What all calls with a quantizer, a shape and an axis share."""

    plan: Plan
    walk: Walk
    n: int
    scale_shape: tuple[int, ...] | None

    @cached_property
    def needs_largest(self) -> bool:
        """Whether an element depends on the whole tensor."""
        return self.plan.outer is not None or self.plan.block == "tensor"

    @cached_property
    def unit(self) -> int:
        """Elements that a thread does not share, and starts at multiples of."""
        return LANES if self.plan.block in (None, "tensor") else self.walk.unit

    @cached_property
    def is_aligned(self) -> bool:
        return self.plan.block in (None, "tensor") or self.walk.is_aligned

    def run(self, library: ctypes.CDLL, job: Job, n: int, amax: int) -> int:
        """Nonzero where a code stands for a NaN."""
        if self.plan.block is None:
            return library.lp_cast(job, n)
        if self.plan.block == "tensor":
            return library.lp_apply(job, n, amax)
        outer, k, inner, b = self.walk.part(n)
        if inner == 1:
            return library.lp_rows(job, outer, k, b)
        return library.lp_columns(job, outer, k, inner, b)


# By identity: to hash a quantizer takes as long as to quantize a small tensor.
_PREPARED: dict[tuple[int, torch.Size, int], tuple[Quantizer, Prepared | None]] = {}


def prepared(quantizer: Quantizer, shape: torch.Size, axis: int) -> Prepared | None:
    """None for what the core does not cover, and for empty tensors."""
    key = id(quantizer), shape, axis
    known = _PREPARED.get(key)
    if known is None:
        if len(_PREPARED) >= 4096:
            _PREPARED.clear()
        known = _PREPARED[key] = quantizer, _prepared(quantizer, shape, axis)
    return known[1]


def _prepared(quantizer: Quantizer, shape: torch.Size, axis: int) -> Prepared | None:
    plan, n = plan_of(quantizer), math.prod(shape)
    if plan is None or not n:
        return None
    blocked = isinstance(plan.format, BlockFormat)
    scale_shape = plan.format.scale_shape(tuple(shape), axis) if blocked else None
    return Prepared(plan, walk(shape, axis, plan.block or "tensor"), n, scale_shape)


def fake_quantize(
    x: Tensor,
    quantizer: Quantizer,
    axis: int,
    out: Tensor | None = None,
    seed: int | None = None,
) -> Tensor | None:
    """The values of `x` after quantization, into `out` if given, which may be `x`.

    seed: for stochastic rounding, whose random bits are `counter.bits` of it.
    """
    library, p = load()[0], prepared(quantizer, x.shape, axis)
    if p is None or library is None or (seed is None) == p.plan.is_random or not _fits(x, out):
        return None
    y = _empty(library, x.shape, torch.float32) if out is None else out
    _quantize(library, x, p, seed, y=y)
    return y


def quantize(
    x: Tensor, quantizer: Quantizer, axis: int, seed: int | None = None
) -> tuple[Tensor, Tensor | None, Tensor | None] | None:
    """Codes of the elements (uint8, of x's shape), values of the block scales s (float32, of
    `BlockFormat.scale_shape`; None for a scalar format) and of an outer scale t (float32, of rank
    0, or None). Also None where a NaN has no code in a scalar format."""
    library, p = load()[0], prepared(quantizer, x.shape, axis)
    if p is None or library is None or (seed is None) == p.plan.is_random or not _fits(x, None):
        return None
    if p.plan.code is None:
        return None
    codes = _empty(library, x.shape, torch.uint8)
    scales = None
    if p.scale_shape is not None:
        scales = _empty(library, torch.Size(p.scale_shape), torch.float32)
    outer, nan = _quantize(library, x, p, seed, codes=codes, scales=scales)
    if nan and p.plan.block is None and not p.plan.has_nan:
        return None
    return codes, scales, None if outer is None else torch.tensor(outer)


def dequantize(
    codes: Tensor,
    table: Tensor,
    whole: Tensor | None = None,
    axis: int = -1,
    block: Block = "tensor",
    out: Tensor | None = None,
    bits: int = 8,
) -> Tensor | None:
    """``RN(table[code] * S)`` in float32; also None where a code has more than so many bits.

    table: the values of the element's 256 codes, float32 (what lies beyond a narrower format's
    does not matter). whole: S, float32, of `BlockFormat.scale_shape`; None for a scalar format.
    """
    library = load()[0]
    tensors = [t for t in (codes, table, whole, out) if t is not None]
    plain = all(_is_plain(t) for t in tensors) and codes.dtype == torch.uint8
    floats = all(t.dtype == torch.float32 for t in tensors[1:]) and table.shape == (256,)
    if library is None or not plain or not floats or not codes.numel():
        return None
    if not isinstance(block, str) and len(block) > 1:
        return None
    y = _empty(library, codes.shape, torch.float32) if out is None else out
    w, s = walk(codes.shape, axis, block), torch.ones(1) if whole is None else whole
    aligned = y.data_ptr() % VECTOR == 0 and (w.b == w.k or w.is_aligned)
    streams = aligned and y.nbytes >= STREAMED

    def work(start: int, n: int) -> int:
        scale = s.data_ptr() + 4 * (start // w.unit * w.scales)
        return library.lp_decode(
            codes.data_ptr() + start, y.data_ptr() + 4 * start, *w.part(n),
            table.data_ptr(), scale, streams, bits,
        )  # fmt: skip

    # One block for all is no reason for one thread.
    wrong = _in_parts(codes.numel(), LANES if w.b == codes.numel() else w.unit, work)
    return None if any(wrong) else y


def pack(codes: Tensor, bits: int) -> Tensor | None:
    """The `bits` (1 to 8) of each code (uint8) one after the other, lowest first, as bytes:
    element i takes the bits from ``i * bits``. uint8, one-dimensional. Also None where a code has
    more bits."""
    library = load()[0]
    if library is None or codes.dtype != torch.uint8 or not _is_plain(codes) or not 1 <= bits <= 8:
        return None
    packed = _empty(library, torch.Size([-(-codes.numel() * bits // 8)]), torch.uint8)

    def work(start: int, n: int) -> int:
        at = packed.data_ptr() + start * bits // 8
        return library.lp_pack(codes.data_ptr() + start, at, n, bits)

    return None if any(_in_parts(codes.numel(), LANES, work)) else packed


def unpack(packed: Tensor, bits: int, count: int) -> Tensor | None:
    """The inverse of `pack`: `count` codes, uint8, one-dimensional; also None unless there are as
    many bytes and the last one's other bits are zero."""
    library = load()[0]
    if library is None or packed.dtype != torch.uint8 or not _is_plain(packed):
        return None
    if not 1 <= bits <= 8 or packed.numel() != -(-count * bits // 8):
        return None
    if count * bits % 8 and int(packed[-1]) >> count * bits % 8:
        return None
    codes = _empty(library, torch.Size([count]), torch.uint8)

    def work(start: int, n: int) -> int:
        at = packed.data_ptr() + start * bits // 8
        return library.lp_unpack(at, codes.data_ptr() + start, n, bits)

    _in_parts(count, LANES, work)
    return codes


def _is_plain(t: Tensor) -> bool:
    return t.is_cpu and t.is_contiguous() and type(t) in (Tensor, torch.nn.Parameter)


def _fits(x: Tensor, out: Tensor | None) -> bool:
    if x.dtype != torch.float32 or not _is_plain(x) or torch.compiler.is_compiling():
        return False
    if out is None or out is x:
        return True
    if out.dtype != torch.float32 or not _is_plain(out):
        return False
    distance = abs(out.data_ptr() - x.data_ptr())
    return not distance or distance >= x.nbytes


def _empty(library: ctypes.CDLL, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    fresh = torch.empty(shape, dtype=dtype)
    if fresh.nbytes >= HUGE:
        library.lp_huge(fresh.data_ptr(), fresh.nbytes)
    return fresh


def _quantize(
    library: ctypes.CDLL,
    x: Tensor,
    p: Prepared,
    seed: int | None,
    y: Tensor | None = None,
    codes: Tensor | None = None,
    scales: Tensor | None = None,
) -> tuple[float | None, int]:
    """Into `y`, or `codes` and `scales`: the outer scale, and nonzero where a code stands for a
    NaN."""
    plan, w, at = p.plan, p.walk, x.data_ptr()
    amax = _largest(library, at, p.n) if p.needs_largest else 0
    outer = library.lp_scale(amax, plan.outer) if plan.outer else None
    to = y.data_ptr() if y is not None else 0
    code_at = codes.data_ptr() if codes is not None else 0
    scale_at = scales.data_ptr() if scales is not None else 0
    streams = 4 * p.n >= STREAMED and to != at and to % VECTOR == 0 and p.is_aligned

    def work(start: int, count: int) -> int:
        job = Job(
            at + 4 * start,
            to and to + 4 * start,
            code_at and code_at + start,
            scale_at and scale_at + 4 * (start // w.unit * w.scales),
            start, seed or 0, outer or 0.0, streams, *plan.addresses,
        )  # fmt: skip
        return p.run(library, job, count, amax)

    return outer, max(_in_parts(p.n, p.unit, work))


def _largest(library: ctypes.CDLL, at: int, n: int) -> int:
    """The pattern of the largest magnitude; of NaN, were there one."""
    return max(_in_parts(n, LANES, lambda start, n: library.lp_largest(at + 4 * start, n)))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="lowprec")


def _in_parts(n: int, unit: int, work: Callable[[int, int], int]) -> list[int]:
    """``work(start, elements)`` for parts of whole `unit`s (the last may be ragged), in as many
    threads as torch uses and the size deserves."""
    if n < 2 * PER_THREAD:
        return [work(0, n)]
    threads = min(torch.get_num_threads(), n // PER_THREAD, -(-n // unit))
    if threads == 1:
        return [work(0, n)]
    step = -(-n // unit // threads) * unit
    return list(_pool(threads).map(lambda i: work(i, min(step, n - i)), range(0, n, step)))
