"""What `lowprec.exact` answers for whole tensors, and inputs that are hard to get right."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from lowprec import exact, list_formats
from lowprec import format as load_format
from lowprec.spec import Format, Projection
from lowprec.spec.projection import ROUNDINGS, SATURATIONS

FORMATS = [load_format(name) for name in list_formats()]
SCALARS = [fmt for fmt in FORMATS if isinstance(fmt, Format)]
BLOCKS = [fmt for fmt in FORMATS if not isinstance(fmt, Format)]
DETERMINISTIC = [
    Projection(rounding=rounding, saturation=saturation)
    for rounding in ROUNDINGS
    if rounding != "stochastic"
    for saturation in SATURATIONS
]
INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}


def dtype_for(fmt: Format) -> torch.dtype:
    """The dtype whose tensors the format is tested on: float32 unless that does not hold it."""
    from lowprec.kernels.word import holds

    return torch.float32 if holds(torch.float32, fmt) else torch.float64


def project(x: Tensor, fmt: Format, projection: Projection, random: int | None = None) -> Tensor:
    """`exact.project` of every element, with the same random bits for all.

    The oracle is asked at so many places that its answers to the rest follow: for one sign it is
    monotonic, so that between two places of one answer there is no other.
    """

    def answer(value: Tensor) -> float:
        return float(exact.project(value.item(), fmt, projection, random))

    bits = x.flatten().view(INTEGERS[x.dtype])
    unique, where = bits.unique(return_inverse=True)  # +0 to Inf to NaN, -0 to -Inf to NaN
    inputs, answers = unique.view(x.dtype), torch.full(unique.shape, math.nan, dtype=torch.float64)
    finite = inputs.isfinite() & (inputs != 0)
    for at in (~finite & ~inputs.isnan()).nonzero().flatten():
        answers[at] = answer(inputs[at])
    for minus in (False, True):
        part = (finite & (inputs.signbit() == minus)).nonzero().flatten().tolist()
        if part:
            _fill(part[0], part[-1], inputs, answers, answer)
    return answers[where].to(x.dtype).view(x.shape)


def _fill(
    first: int, last: int, inputs: Tensor, answers: Tensor, answer: Callable[[Tensor], float]
) -> None:
    answers[first], answers[last] = answer(inputs[first]), answer(inputs[last])
    pending = [(first, last)]
    while pending:
        low, high = pending.pop()
        if high - low < 2:
            continue
        if exact.identical(answers[low].item(), answers[high].item()):
            answers[low + 1 : high] = answers[low]
            continue
        middle = (low + high) // 2
        answers[middle] = answer(inputs[middle])
        pending += [(low, middle), (middle, high)]


def assert_same_bits(found: Tensor, expected: Tensor, x: Tensor | None = None) -> None:
    """Equal in every bit, any NaN equal to any other."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    both_nan = found.isnan() & expected.isnan()
    as_int = INTEGERS.get(found.dtype, torch.int16)
    wrong = (found.contiguous().view(as_int) != expected.contiguous().view(as_int)) & ~both_nan
    if wrong.any():
        at = [found[wrong][:5].tolist(), expected[wrong][:5].tolist()]
        of = "" if x is None else f" of {[v.hex() for v in x.expand_as(found)[wrong][:5].tolist()]}"
        raise AssertionError(f"{int(wrong.sum())} wrong: {at[0]}, expected {at[1]}{of}")


@cache
def every_bfloat16() -> Tensor:
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.bfloat16).float()


@cache
def every_float16() -> Tensor:
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.float16).float()


def random_bits(count: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Random patterns: all exponents, Inf and NaN too."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(1 << 63), (1 << 63) - 1, (count,), generator=generator)
    return (bits if dtype == torch.float64 else (bits >> 32).to(torch.int32)).view(dtype)


def edges(fmt: Format, dtype: torch.dtype, most: int) -> Tensor:
    """Values of the format, the middles between them, their neighbours in the dtype, the ends."""
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
