"""Scalar formats: casts and code points, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, partial

import torch
from torch import Tensor

from lowprec import exact, kernels
from lowprec.eval import hard_inputs
from lowprec.eval.conformance.comparison import INTEGERS, Comparison, Step, compare
from lowprec.kernels.word import holds
from lowprec.spec.format import Format, IntFormat
from lowprec.spec.projection import ROUNDINGS, SATURATIONS, Projection

DETERMINISTIC = [
    Projection(rounding=rounding, saturation=saturation)
    for rounding in ROUNDINGS
    if rounding != "stochastic"
    for saturation in SATURATIONS
]
# Formats of more bits have too many values for the oracle to be asked at every edge.
SMALL_BITS = 10


def scalar_steps(fmt: Format, scale: bool = False) -> Iterator[Step]:
    """scale: the format is met as a scale only, always projected by nearest-even, SatFinite."""
    if fmt.bits <= exact.TABLE_BITS:
        yield partial(_codes, fmt)
    for projection in DETERMINISTIC[:1] if scale else DETERMINISTIC:
        every = not scale and projection == DETERMINISTIC[0]
        yield partial(_projection, fmt, _inputs(fmt, every), projection)
    if scale:
        return
    dtype = dtype_for(fmt)
    few = torch.cat([hard_inputs.edges(fmt, dtype, 12), hard_inputs.random_bits(20, dtype)])
    for random in (0, 85, 255):
        yield partial(_projection, fmt, few, Projection(rounding="stochastic", bits=8), random)


def dtype_for(fmt: Format) -> torch.dtype:
    """The dtype whose tensors the format is tested on: float32 unless that does not hold it."""
    return torch.float32 if holds(torch.float32, fmt) else torch.float64


@cache
def _inputs(fmt: Format, every: bool) -> Tensor:
    dtype, small = dtype_for(fmt), fmt.bits <= SMALL_BITS
    parts = [
        hard_inputs.edges(fmt, dtype, 1 << SMALL_BITS if small else 48),
        hard_inputs.random_bits(4096 if small else 256, dtype),
        hard_inputs.every_bfloat16().to(dtype)[:: 1 if small or every else 64],
    ]
    return torch.cat(parts)


def _codes(fmt: Format) -> Comparison:
    """decode is the value table, and encode gives the code back: of NaN the one projections give,
    and not for the code that symmetric=true leaves out."""
    table = [float(v) for v in exact.value_table(fmt)]
    codes, dtype = torch.arange(len(table)), dtype_for(fmt)
    expected = torch.tensor(table, dtype=dtype)
    values = kernels.decode(codes, fmt, dtype)
    found = compare(f"{fmt.name}: decode", values, expected, codes)
    held = torch.ones(len(table), dtype=torch.bool)
    if isinstance(fmt, IntFormat):
        held = expected >= float(fmt.min_exact)
    nan = exact.code_of(math.nan, fmt) if fmt.has_nan else 0
    back = kernels.encode(expected[held], fmt, saturation="OvfInf").long()
    return found + compare(
        f"{fmt.name}: encode", back, torch.where(expected.isnan(), nan, codes)[held], expected[held]
    )


def _projection(
    fmt: Format, x: Tensor, projection: Projection, random: int | None = None
) -> Comparison:
    bits = None if random is None else torch.full(x.shape, random)
    found = kernels.cast(x, fmt, projection.rounding, projection.saturation, projection.bits, bits)
    title = f"{fmt.name}: cast {projection.spell()}"
    return compare(title, found, project(x, fmt, projection, random), x)


def project(x: Tensor, fmt: Format, projection: Projection, random: int | None = None) -> Tensor:
    """`exact.project` of every element, with the same random bits for all.

    The oracle is asked at so many places that its answers to the rest follow: for one sign it is
    monotonic, so that between two places of one answer there is no other.
    """

    def answer(value: Tensor) -> float:
        return float(exact.project(value.item(), fmt, projection, random))

    bits = x.flatten().view(INTEGERS[x.dtype])
    if bool((bits[1:] > bits[:-1]).all()):  # in order already, which is long work
        unique, where = bits, slice(None)
    else:
        unique, where = bits.unique(return_inverse=True)  # +0 to Inf to NaN, -0 to -Inf to NaN
    inputs, answers = unique.view(x.dtype), torch.full(unique.shape, math.nan, dtype=torch.float64)
    finite = inputs.isfinite() & (inputs != 0)
    for at in (~finite & ~inputs.isnan()).nonzero().flatten():
        answers[at] = answer(inputs[at])
    for minus in (False, True):
        part = (finite & (inputs.signbit() == minus)).nonzero().flatten()
        if len(part):
            _fill(int(part[0]), int(part[-1]), inputs, answers, answer)
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
