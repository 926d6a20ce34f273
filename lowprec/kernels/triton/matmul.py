"""Block-scaled matmul: one kernel that decodes code points on the way to the matrix unit.

K is taken in steps, each within one block of either operand: acc = fma(dot, s_a * s_w, acc) with
the step's dot product in the unit's float32. Scales that are the same all along K come after the
last step. Where the sums of a step are exact (`sums_are_exact`), the result is bit for bit that of
`lowprec.matmul` under the datapath `datapath_of` gives; elsewhere the unit's own order and
rounding within a step decide the last bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels.triton.language import decode
from lowprec.kernels.triton.launch import EXACT, is_interpreted, on_device
from lowprec.kernels.triton.numbers import CodeNumbers, code_numbers
from lowprec.kernels.triton.quantize import FLOATS
from lowprec.kernels.word import holds
from lowprec.spec.block import BlockFormat
from lowprec.spec.catalogue import load_format
from lowprec.spec.datapath import Aligned, Datapath, Promotion, Scaling
from lowprec.spec.format import FloatFormat, Format, IntFormat, pow2
from lowprec.spec.quantizer import Quantizer

# Elements of K between two additions to the accumulator, at most.
LONGEST_STEP = 128
# Of a tile of y: rows and columns.
TILE_M, TILE_N = 64, 64
_NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}
_TRITON = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


class SideNumbers(NamedTuple):
    """How an operand is read. code: None for float numbers. block: elements of K per scale; 0
    where there is none, or one per row (`per_row`) or for all (`per_tensor`)."""

    code: CodeNumbers | None
    scale: CodeNumbers | None
    block: int
    per_row: bool
    per_tensor: bool
    has_outer: bool


@dataclass(frozen=True)
class Side:
    """An operand's tensors: (rows, K) numbers or code points, code points of scales, t."""

    values: Tensor
    scales: Tensor | None = None
    outer: Tensor | None = None
    quantizer: Quantizer | None = None


@triton.jit
def _values(at, row, column, rows, columns, step, n: tl.constexpr, dtype: tl.constexpr):
    """A tile of an operand in the dtype that the matrix unit takes."""
    there = (row < rows)[:, None] & ((column < columns) & step)[None, :]
    loaded = tl.load(at + row[:, None].to(tl.int64) * columns + column[None, :], there, other=0)
    if n.code is not None:
        value = decode(loaded.to(tl.int32), n.code)
    else:
        value = loaded.to(tl.float32)
    return tl.where(there, value, 0.0).to(dtype)


@triton.jit
def _scale(at, row, rows, k, blocks, n: tl.constexpr):
    """The scales of rows at place k of K."""
    place = row.to(tl.int64) * blocks + k // n.block
    return decode(tl.load(at + place, mask=row < rows, other=0).to(tl.int32), n.scale)


@triton.jit
def _after(y, scales, outer, row, rows, n: tl.constexpr, axis: tl.constexpr):
    """y times what an operand is scaled by all along K, the finer scale first."""
    if n.per_row:
        scale = decode(tl.load(scales + row, mask=row < rows, other=0).to(tl.int32), n.scale)
        y = y * tl.expand_dims(scale, axis)
    if n.per_tensor:
        y = y * decode(tl.load(scales).to(tl.int32), n.scale)
    if n.has_outer:
        y = y * tl.load(outer)
    return y


@triton.jit
def matmul_kernel(
    x,
    x_scales,
    x_outer,
    w,
    w_scales,
    w_outer,
    y,
    M,
    N,
    K,
    a: tl.constexpr,
    b: tl.constexpr,
    step: tl.constexpr,
    wide: tl.constexpr,
    dtype: tl.constexpr,
    tile_m: tl.constexpr,
    tile_n: tl.constexpr,
):
    """y (M, N) = x (M, K) times w (N, K) transposed; `step` elements of K in `wide` lanes."""
    m = tl.program_id(0) * tile_m + tl.arange(0, tile_m)
    n = tl.program_id(1) * tile_n + tl.arange(0, tile_n)
    lane = tl.arange(0, wide)
    total = tl.zeros((tile_m, tile_n), dtype=tl.float32)
    for k in range(0, K, step):
        left = _values(x, m, k + lane, M, K, lane < step, a, dtype)
        right = _values(w, n, k + lane, N, K, lane < step, b, dtype)
        dot = tl.dot(left, tl.trans(right), input_precision="ieee")
        if a.block > 0 and b.block > 0:
            s = _scale(x_scales, m, M, k, tl.cdiv(K, a.block), a)[:, None]
            s = s * _scale(w_scales, n, N, k, tl.cdiv(K, b.block), b)[None, :]
            total = tl.fma(dot, s, total)
        elif a.block > 0:
            s = _scale(x_scales, m, M, k, tl.cdiv(K, a.block), a)[:, None]
            total = tl.fma(dot, s + dot * 0, total)
        elif b.block > 0:
            s = _scale(w_scales, n, N, k, tl.cdiv(K, b.block), b)[None, :]
            total = tl.fma(dot, s + dot * 0, total)
        else:
            total += dot
    total = _after(total, w_scales, w_outer, n, N, b, 0)
    total = _after(total, x_scales, x_outer, m, M, a, 1)
    place = m[:, None].to(tl.int64) * N + n[None, :]
    tl.store(y + place, total.to(y.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])


def run(left: Side, right: Side, dtype: torch.dtype) -> Tensor:
    """(M, N) in `dtype`, of sides of (M, K) and (N, K)."""
    a, b = (_side_numbers(side.quantizer) for side in (left, right))
    (M, K), N = left.values.shape, right.values.shape[0]
    step, y = step_of(a.block, b.block), left.values.new_empty(M, N, dtype=dtype)
    if not y.numel() or not K:
        return y.zero_()
    unit = _unit_dtype(left, right)
    tiles = [
        max(16, min(tile, triton.next_power_of_2(n))) for tile, n in ((TILE_M, M), (TILE_N, N))
    ]
    with on_device(y):
        matmul_kernel[(-(-M // tiles[0]), -(-N // tiles[1]))](
            left.values.contiguous(), left.scales, left.outer,
            right.values.contiguous(), right.scales, right.outer, y, M, N, K,
            a=a, b=b, step=step, wide=max(16, triton.next_power_of_2(step)),
            dtype=_TRITON[unit], tile_m=tiles[0], tile_n=tiles[1], **EXACT,
        )  # fmt: skip
    return y


def _side_numbers(quantizer: Quantizer | None) -> SideNumbers:
    if quantizer is None:
        return SideNumbers(None, None, 0, False, False, False)
    fmt = quantizer.format
    if not isinstance(fmt, BlockFormat):
        return SideNumbers(code_numbers(fmt), None, 0, False, False, False)
    block = 0 if isinstance(fmt.block, str) else int(fmt.block[0])
    return SideNumbers(
        code_numbers(fmt.element), code_numbers(fmt.scale), block, fmt.block == "channel",
        fmt.block == "tensor", fmt.outer is not None,
    )  # fmt: skip


def step_of(a: int, b: int) -> int:
    """Elements of K per step: the smaller block, cut into equal parts where it is long."""
    blocks = [block for block in (a, b) if block]
    if not blocks:
        return 64
    if max(blocks) % min(blocks):
        raise LowprecError(
            f"triton: matmul: blocks of {a} and {b}: expected one to divide the other"
        )
    least = min(blocks)
    return next(n for n in range(min(least, LONGEST_STEP), 0, -1) if least % n == 0)


def _unit_dtype(left: Side, right: Side) -> torch.dtype:
    """The first dtype that holds the elements of both sides."""
    formats = [element_of(side.quantizer, side.values.dtype) for side in (left, right)]
    # Triton's interpreter takes the bits of bfloat16 numbers for integers.
    known = [d for d in _TRITON if d != torch.bfloat16 or not is_interpreted()]
    return next(d for d in known if all(holds(d, fmt) for fmt in formats))


def element_of(quantizer: Quantizer | None, dtype: torch.dtype) -> Format:
    """The format of an operand's elements, of numbers of `dtype` without a quantizer."""
    if quantizer is not None:
        fmt = quantizer.format
        return fmt.element if isinstance(fmt, BlockFormat) else fmt
    if dtype not in FLOATS:
        raise LowprecError(f"triton: matmul: operand of {dtype}: expected a float")
    found = load_format(_NAMES[dtype])
    assert isinstance(found, Format)
    return found


def datapath_of(
    a: Quantizer | None, w: Quantizer | None, dtype: torch.dtype = torch.float32
) -> Datapath:
    """What the kernel computes, as a datapath: exact sums of a step, each rounded to float32, and
    float32 multiply-adds. dtype: of an operand that is not quantized."""
    numbers = [_side_numbers(q) for q in (a, w)]
    scales = {
        q.format.scale.name: q.format.scale
        for q, n in zip((a, w), numbers, strict=True)
        if n.block and q is not None and isinstance(q.format, BlockFormat)
    }
    step, float32 = step_of(*(n.block for n in numbers)), load_format("float32")
    inputs = {fmt.name: fmt for fmt in (element_of(q, dtype) for q in (a, w))}
    return Datapath(
        name="triton_matmul",
        inputs=tuple(inputs.values()),
        accumulator=float32,
        addition=Aligned(kind="aligned"),
        step=step,
        promotion=Promotion(interval=step, format=float32),
        scaling=Scaling(formats=tuple(scales.values()), block=step, position="outside")
        if scales
        else None,
    )


def sums_are_exact(path: Datapath) -> bool:
    """Whether every sum of a step's products is a float32 number, in whatever order."""
    largest = max(max(abs(fmt.max_exact), abs(fmt.min_exact)) for fmt in path.inputs)
    unit = min(_unit(fmt) for fmt in path.inputs)
    return largest * largest * (path.step or 1) <= unit * unit * pow2(24) and unit >= pow2(-74)


def _unit(fmt: Format) -> object:
    """What all values of a format are multiples of."""
    if isinstance(fmt, IntFormat):
        return pow2(fmt.exponent)
    assert isinstance(fmt, FloatFormat)
    return pow2(fmt.emin - (fmt.precision - 1))
