"""Inputs that number formats and their scales are hard to get right on."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from lowprec import exact
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import Format


@cache
def every_bfloat16() -> Tensor:
    """All 65,536, as float32."""
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.bfloat16).float()


@cache
def every_float16() -> Tensor:
    """All 65,536, as float32."""
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.float16).float()


def random_bits(count: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Random patterns: all exponents, Inf and NaN too."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(1 << 63), (1 << 63) - 1, (count,), generator=generator)
    return (bits if dtype == torch.float64 else (bits >> 32).to(torch.int32)).view(dtype)


def edges(fmt: Format, dtype: torch.dtype, most: int) -> Tensor:
    """Values of the format, the middles between them, their neighbours in the dtype, the ends.

    most: of more values than that, runs at the ends, around zero and elsewhere.
    """
    generator = torch.Generator().manual_seed(0)
    if fmt.bits <= 16:
        values = {float(v) for v in exact.value_table(fmt) if math.isfinite(v)}
    else:
        codes = torch.randint(0, 1 << min(fmt.bits, 62), (most,), generator=generator).tolist()
        codes += [c ^ (1 << (fmt.bits - 1)) for c in codes]
        values = {float(v) for v in (exact.value(c, fmt) for c in codes) if math.isfinite(v)}
    ordered = torch.tensor(sorted(values), dtype=torch.float64)
    if (size := len(ordered)) > most:
        zero = int(ordered.abs().argmin())
        starts = [0, size, zero, *torch.randint(0, size, (3,), generator=generator).tolist()]
        near = torch.cat([torch.arange(at - most // 12, at + most // 12) for at in starts])
        ordered = ordered[near.clamp(0, size - 1).unique()]
    limit = 2.0 * max(abs(v) for v in values)
    middles = (ordered[1:] + ordered[:-1]) / 2
    x = torch.cat([ordered, middles, ordered / 2, ordered * 1.25, torch.tensor([limit, -limit])])
    x = x.to(dtype)
    tiny, huge = torch.finfo(dtype).smallest_normal, torch.finfo(dtype).max
    ends = [0.0, tiny, tiny / 2, huge, math.inf, 1.0]
    x = torch.cat([x, torch.tensor(ends, dtype=dtype)])
    up = x.nextafter(torch.full_like(x, math.inf))
    down = x.nextafter(torch.full_like(x, -math.inf))
    x = torch.cat([x, up, down])
    return torch.cat([x, -x, torch.tensor([math.nan], dtype=dtype)])


def bell(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """About normally distributed float32 numbers, sums of four integers over 2^21: the same bits on
    every machine, which torch.randn does not promise."""
    parts = torch.randint(-(1 << 21), 1 << 21, (4, *shape), generator=generator)
    return parts.sum(0).float() * 2.0**-21


def breaking(width: int) -> list[Tensor]:
    """Groups of rows of `width`, of one kind each: what exponents, scales and ends get wrong.

    Normal numbers, numbers one ulp below powers of two, random bits, magnitudes over the whole
    range, subnormals, largest magnitudes at ends of formats, zeros, and NaN and Inf among others.
    """
    generator = torch.Generator().manual_seed(0)
    normal = bell((7, width), generator)
    powers = 2.0 ** torch.arange(-120, 121, 40)[:, None]
    below = torch.full((7, width), 1.0).nextafter(torch.zeros(())) * powers
    bits = torch.randint(-(1 << 31), 1 << 31, (4, width), generator=generator)
    wild = bits.to(torch.int32).view(torch.float32)
    spread = normal * 2.0 ** torch.randint(-149, 120, (7, width), generator=generator)
    tiny = torch.randint(-9, 10, (3, width), generator=generator) * 2.0**-149
    largest = [5.5, 6, 6.0000005, 7, 7.5, 448, 464, 480, 512, 57344, 1e38, 3e38]
    ends = torch.tensor([largest]).T * normal[:1] / normal[:1].abs().max()
    zeros = torch.zeros(2, width)
    zeros[-1] = -0.0
    special = normal[:3].clone()
    special[0, 1], special[1, -1], special[2, 0] = math.nan, math.inf, -math.inf
    return [normal, below * normal.sign(), wild, spread, tiny, ends, zeros, special]


def wide(width: int) -> list[Tensor]:
    """The like in float64: numbers that float32 cannot tell apart or hold."""
    generator = torch.Generator().manual_seed(2)
    x = bell((6, width), generator).double() * (1 + 2.0**-30)
    x[1] *= 2.0 ** torch.randint(-300, 300, (width,), generator=generator)
    x[2] = 1 + torch.arange(width) * 2.0**-50
    x[3] *= 2.0**-1060
    return [x[:1], x[1:2], x[2:3], x[3:4], x[4:]]


def coarsest(fmt: BlockFormat) -> tuple[int, ...] | str:
    """The block of the scale that reaches furthest."""
    return fmt.outer.block if fmt.outer else fmt.block


def width_for(fmt: BlockFormat, most: int) -> int:
    """A row of one coarsest block and a ragged one; `most` for larger blocks."""
    block = coarsest(fmt)
    return 6 if isinstance(block, str) else min(block[-1] + 3, most)
