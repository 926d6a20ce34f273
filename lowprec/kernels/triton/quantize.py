"""Quantization: one kernel that reads a tensor once and writes its values, or codes and scales."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import scale as rules
from lowprec.kernels.block import numbers_of
from lowprec.kernels.codec import codes_dtype, codes_of, store_codes
from lowprec.kernels.triton.language import (
    MAGNITUDE,
    bits_of,
    block_scale,
    encode,
    project,
    units_of,
)
from lowprec.kernels.triton.launch import EXACT, on_device
from lowprec.kernels.triton.numbers import MAX_BLOCK, TILE, Numbers, numbers
from lowprec.kernels.word import FLOAT32
from lowprec.spec.block import BlockFormat
from lowprec.spec.quantizer import Quantizer

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@triton.jit
def quantize_kernel(
    x,
    out,
    scales,
    given,
    outer,
    random,
    rows,
    columns,
    n: tl.constexpr,
    block: tl.constexpr,
    wide: tl.constexpr,
    blocks: tl.constexpr,
    writes_codes: tl.constexpr,
):
    """x, out, random: (rows, columns), contiguous; scales: (rows, blocks of a row).

    A program takes `blocks` blocks of `block` elements, in `wide` lanes, a power of two. given,
    outer: one number each, where the numbers `n` say so.
    """
    in_row = tl.cdiv(columns, block)
    at = tl.program_id(0) * blocks + tl.arange(0, blocks)
    row, first = (at // in_row)[:, None].to(tl.int64), ((at % in_row) * block)[:, None]
    lane = tl.arange(0, wide)[None, :]
    column = first + lane
    there = (row < rows) & (lane < block) & (column < columns)
    place = row * columns + column

    number = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
    bits = 0
    if n.element.rounding == "stochastic":
        bits = tl.load(random + place, mask=there, other=0)
    units = number
    if n.rule is not None:
        t = 1.0
        if n.has_outer:
            t = tl.load(outer)
        if n.is_whole:
            scale = tl.load(given) + first * 0.0
        else:
            amax = tl.max(bits_of(number) & MAGNITUDE, axis=1)
            scale = block_scale(amax, t, n.rule, n.has_outer)[:, None]
        whole = scale * t if n.has_outer else scale
        inverse = tl.div_rn(scale * 0 + 1.0, scale) if n.rule.has_inverse else scale
        units = units_of(number, whole, inverse, n.rule.has_inverse)
    element = project(units, bits, n.element)

    if writes_codes:
        code = encode(element, n.element_code)
        tl.store(out + place, code.to(out.dtype.element_ty), mask=there)
        if n.rule is not None and not n.is_whole:
            code = encode(scale, n.scale_code).to(scales.dtype.element_ty)
            tl.store(scales + at[:, None], code, mask=row < rows)
    else:
        value = element * whole if n.rule is not None else element
        tl.store(out + place, value.to(out.dtype.element_ty), mask=there)


@dataclass(frozen=True)
class Quantized:
    """values: of x's shape and dtype, or code points. scales: code points, of
    `BlockFormat.scale_shape`, or None. outer: t, of rank 0, or None."""

    values: Tensor
    scales: Tensor | None
    outer: Tensor | None


def run(
    x: Tensor, quantizer: Quantizer, axis: int, random: Tensor | None, codes: bool
) -> Quantized:
    """`x` (float32, bfloat16 or float16; blocks along `axis`) by the kernel."""
    n, fmt = numbers(quantizer), quantizer.format
    if x.dtype not in FLOATS:
        raise LowprecError(f"triton: tensor of {x.dtype}: expected float32, bfloat16 or float16")
    if not x.dim():
        found = run(x[None], quantizer, -1, random if random is None else random[None], codes)
        scales = found.scales
        if scales is not None and isinstance(fmt, BlockFormat):
            scales = scales.reshape(fmt.scale_shape(()))
        return Quantized(found.values[0], scales, found.outer)
    moved = x.movedim(axis, -1).contiguous()
    length = moved.shape[-1]
    is_flat = n.rule is None or n.is_whole
    block = TILE if is_flat else n.block or length
    if block > MAX_BLOCK:
        raise LowprecError(f"triton: a block of {block} numbers; expected at most {MAX_BLOCK}")
    shape = (1, x.numel()) if is_flat else (x.numel() // length, length)
    element = fmt.element if isinstance(fmt, BlockFormat) else fmt
    out = torch.empty_like(moved, dtype=codes_dtype(element) if codes else x.dtype)
    given, outer = _whole_scales(moved, quantizer, n)
    scales = None
    if codes and isinstance(fmt, BlockFormat) and not n.is_whole:
        counts = (*moved.shape[:-1], -(-length // block))
        scales = torch.empty(counts, dtype=codes_dtype(fmt.scale), device=x.device)
    bits = None if random is None else random.movedim(axis, -1).contiguous()
    wide = triton.next_power_of_2(min(block, x.numel()))
    per_program = max(TILE // wide, 1)
    count = shape[0] * -(-shape[1] // block)
    with on_device(x):
        quantize_kernel[(-(-count // per_program),)](
            moved, out, scales, given, outer, bits, *shape,
            n=n, block=block, wide=wide, blocks=per_program, writes_codes=codes, **EXACT,
        )  # fmt: skip
    back = out.movedim(-1, axis).contiguous()
    return Quantized(back, _scale_codes(scales, given, fmt, axis, x), outer)


def _whole_scales(
    x: Tensor, quantizer: Quantizer, n: Numbers
) -> tuple[Tensor | None, Tensor | None]:
    """The scale for the whole tensor, and t: numbers of rank 0."""
    if not n.is_whole and not n.has_outer:
        return None, None
    rule = numbers_of(quantizer).rule
    amax = x.abs().amax().float().view(FLOAT32.int_dtype)
    outer = rules.outer_scale(amax, rule) if n.has_outer else None
    given = rules.block_scales(amax, rule, outer)[0] if n.is_whole else None
    return given, outer


def _scale_codes(
    scales: Tensor | None, given: Tensor | None, fmt: object, axis: int, x: Tensor
) -> Tensor | None:
    if not isinstance(fmt, BlockFormat):
        return None
    if scales is not None:
        return scales.movedim(-1, axis).contiguous()
    if given is None:
        return None
    codes = store_codes(codes_of(given, fmt.scale), fmt.scale)
    return codes.reshape(fmt.scale_shape(tuple(x.shape), axis))
