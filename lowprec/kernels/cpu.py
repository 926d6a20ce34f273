"""What the CPU core covers, and how its functions are called: formats and rules as C numbers.

Every function answers None where the core does not cover the case: the caller then runs the
definition, which gives the same bits.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.compiler import is_compiling

from lowprec.kernels.core import load
from lowprec.kernels.threads import pool
from lowprec.kernels.walk import LANES, Prepared, prepared, walk
from lowprec.spec.block import Block
from lowprec.spec.quantizer import Quantizer

# With fewer elements each, more threads cost more than they save.
PER_THREAD = 1 << 19
# A result of so many bytes goes past the caches, which it would only empty; and where it is fresh
# memory, that is better had in large pages.
STREAMED = 1 << 24
HUGE = 1 << 22
# Tensors whose memory is what they hold.
_PLAIN = frozenset((Tensor, torch.nn.Parameter))
# Bytes of a vector of the core.
VECTOR = 32
# Codes that are packed while they are in the second-level cache.
CODES = 1 << 18


def fake_quantize(
    x: Tensor,
    quantizer: Quantizer,
    axis: int,
    out: Tensor | None = None,
    seed: int | None = None,
    amax: int | None = None,
) -> Tensor | None:
    """The values of `x` after quantization, into `out` if given, which may be `x`.

    seed: for stochastic rounding, whose random bits are `counter.bits` of it. amax: what `largest`
    said of `x`, which saves looking; where it is no longer so, that is noticed.
    """
    return computed(x, prepared(quantizer, x.shape, axis), out, seed, amax)


def computed(
    x: Tensor,
    p: Prepared | None,
    out: Tensor | None = None,
    seed: int | None = None,
    amax: int | None = None,
) -> Tensor | None:
    """`fake_quantize` of what `prepared` answers for the shape of `x`."""
    library = load()[0]
    if p is None or library is None or (seed is None) == p.plan.is_random or not _fits(x, out):
        return None
    y = _empty(library, x.shape, torch.float32) if out is None else out
    if amax is None or out is not None or not _by_known(library, x, p, seed, y, amax):
        _quantize(library, x, p, seed, y=y)
    return y


def _by_known(
    library: ctypes.CDLL, x: Tensor, p: Prepared, seed: int | None, y: Tensor, amax: int
) -> bool:
    """Whether `amax` is the largest magnitude that was met on the way."""
    met: list[ctypes.c_int32] = []
    _quantize(library, x, p, seed, y=y, amax=amax, met=met)
    return max(each.value for each in met) == amax


def covers(x: Tensor, quantizer: Quantizer, axis: int) -> bool:
    """Whether `fake_quantize` computes this here, which takes less than decoding kept codes."""
    p = prepared(quantizer, x.shape, axis)
    return load()[0] is not None and p is not None and not p.plan.is_random and _fits(x, None)


def needs_largest(x: Tensor, quantizer: Quantizer, axis: int) -> bool:
    """Whether `fake_quantize` looks for the largest magnitude of `x` before that of any block."""
    p = prepared(quantizer, x.shape, axis)
    return p is not None and p.needs_largest and p.plan.block != "tensor"


def largest(x: Tensor) -> int:
    """The largest magnitude of a contiguous float32 tensor as bits; of NaN, were there one."""
    library = load()[0]
    assert library is not None
    return _largest(library, x.data_ptr(), x.numel())


def quantize(
    x: Tensor, quantizer: Quantizer, axis: int, seed: int | None = None, packed: bool = False
) -> tuple[Tensor, Tensor | None, Tensor | None] | None:
    """Codes of the elements (uint8, of x's shape; packed: what `pack` makes of them), values of the
    block scales s (float32, of `BlockFormat.scale_shape`; None for a scalar format) and of an outer
    scale t (float32, of rank 0, or None). Also None where a NaN has no code in a scalar format."""
    library, p = load()[0], prepared(quantizer, x.shape, axis)
    if p is None or library is None or (seed is None) == p.plan.is_random or not _fits(x, None):
        return None
    if p.plan.code is None:
        return None
    bits = p.plan.code.mask.bit_length() if packed else 8
    shape = torch.Size([-(-p.n * bits // 8)]) if packed else x.shape
    codes = _empty(library, shape, torch.uint8)
    scales = None
    if p.scale_shape is not None:
        scales = _empty(library, torch.Size(p.scale_shape), torch.float32)
    outer, nan = _quantize(library, x, p, seed, codes=codes, scales=scales, bits=bits)
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
    return type(t) in _PLAIN and t.is_cpu and t.is_contiguous()


def _fits(x: Tensor, out: Tensor | None) -> bool:
    if x.dtype is not torch.float32 or not _is_plain(x) or is_compiling():
        return False
    if out is None or out is x:
        return True
    if out.dtype is not torch.float32 or not _is_plain(out):
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
    bits: int = 8,
    amax: int | None = None,
    met: list[ctypes.c_int32] | None = None,
) -> tuple[float | None, int]:
    """Into `y`, or `codes`, of so many bits each, and `scales`: the outer scale, and nonzero where
    a code stands for a NaN. met: gets the largest magnitude of every part's blocks."""
    plan, w, at = p.plan, p.walk, x.data_ptr()
    if amax is None:
        amax = _largest(library, at, p.n) if p.needs_largest else 0
    outer = library.lp_scale(amax, plan.outer) if plan.outer else plan.given
    to = y.data_ptr() if y is not None else 0
    code_at = codes.data_ptr() if codes is not None else 0
    scale_at = scales.data_ptr() if scales is not None else 0
    streams = 4 * p.n >= STREAMED and to != at and to % VECTOR == 0 and p.is_aligned

    def work(start: int, count: int, kept: int = 0) -> int:
        largest = 0
        if met is not None:
            met.append(own := ctypes.c_int32())
            largest = ctypes.addressof(own)
        return library.lp_quantize(
            p.address,
            at + 4 * start,
            to and to + 4 * start,
            kept or (code_at and code_at + start),
            scale_at and scale_at + 4 * (start // w.unit * w.scales),
            start, count, seed or 0, amax, outer or 0.0, streams, largest,
        )  # fmt: skip

    if bits == 8:
        return outer, max(_in_parts(p.n, p.unit, work))
    unit = math.lcm(p.unit, 8)  # of whole bytes
    step = max(CODES // unit, 1) * unit

    def work_and_pack(start: int, count: int) -> int:
        kept, nan = torch.empty(min(step, count), dtype=torch.uint8), 0
        for i in range(start, start + count, step):
            n = min(step, start + count - i)
            nan |= work(i, n, kept.data_ptr())
            library.lp_pack(kept.data_ptr(), code_at + i * bits // 8, n, bits)
        return nan

    return outer, max(_in_parts(p.n, unit, work_and_pack))


def _largest(library: ctypes.CDLL, at: int, n: int) -> int:
    """The pattern of the largest magnitude; of NaN, were there one."""
    return max(_in_parts(n, LANES, lambda start, n: library.lp_largest(at + 4 * start, n)))


def _in_parts(n: int, unit: int, work: Callable[[int, int], int]) -> list[int]:
    """``work(start, elements)`` for parts of whole `unit`s (the last may be ragged), in as many
    threads as torch uses and the size deserves."""
    if n < 2 * PER_THREAD:
        return [work(0, n)]
    threads = min(torch.get_num_threads(), n // PER_THREAD, -(-n // unit))
    if threads == 1:
        return [work(0, n)]
    step = -(-n // unit // threads) * unit
    return list(pool(threads).map(lambda i: work(i, min(step, n - i)), range(0, n, step)))
