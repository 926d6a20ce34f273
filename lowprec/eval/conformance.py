"""Kernels against the oracle on one format, bit for bit: what `lowprec check` runs.

NaN equals NaN whatever its bits, and zeros have signs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial

import torch
from pydantic import ValidationError
from torch import Tensor

from lowprec import exact, kernels
from lowprec.eval import hard_inputs
from lowprec.kernels.word import holds
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import FloatFormat, Format, IntFormat
from lowprec.spec.projection import ROUNDINGS, SATURATIONS, Projection
from lowprec.spec.quantizer import GIVEN_RULES, RULES, Quantizer

INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
DETERMINISTIC = [
    Projection(rounding=rounding, saturation=saturation)
    for rounding in ROUNDINGS
    if rounding != "stochastic"
    for saturation in SATURATIONS
]
# Formats of more bits have too many values for the oracle to be asked at every edge.
SMALL_BITS = 10
# Elements that one rule is tried on along one axis; of rules that try several scales, fewer.
ELEMENTS = 900
LARGEST_ROW = 515
LISTED = 5


@dataclass(frozen=True)
class Comparison:
    """compared: answers of the kernels that were held against the oracle's. differing: those that
    differ in a bit. problems: one line for each kind of them."""

    compared: int = 0
    differing: int = 0
    problems: tuple[str, ...] = ()

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(
            self.compared + other.compared,
            self.differing + other.differing,
            self.problems + other.problems,
        )


Step = Callable[[], Comparison]


def conform(
    fmt: Format | BlockFormat, update: Callable[[int, int], None] = lambda _done, _total: None
) -> Comparison:
    """Every comparison of a format. update: told how many of how many steps are done.

    Of a scalar format: all code points up to 16 bits, all 65,536 bfloat16 numbers, random bits,
    values, the middles between them and their neighbours, under every projection; of more than 10
    bits some 50 values and, but for nearest-even, every 64th bfloat16. Of a block format: every
    rule that it takes, on rows built to break it, along both axes; codes and scales; sizes; and its
    scalar parts. Blocks beyond 512 elements are met as short ones only.
    """
    steps = list(block_steps(fmt) if isinstance(fmt, BlockFormat) else scalar_steps(fmt))
    total = Comparison()
    with _one_thread():
        for done, step in enumerate(steps):
            update(done, len(steps))
            total += step()
    update(len(steps), len(steps))
    return total


@contextmanager
def _one_thread() -> Iterator[None]:
    """On small tensors a second thread only waits for the first."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# ---- scalar formats ----


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


def compare(title: str, found: Tensor, expected: Tensor, x: Tensor) -> Comparison:
    """Two tensors of answers to `x`."""
    wrong = differing(found, expected)
    if not (count := int(wrong.sum())):
        return Comparison(found.numel())
    of, got, want = (t.expand_as(wrong)[wrong][:LISTED].tolist() for t in (x, found, expected))
    line = f"{title}: {count} of {found.numel()} differ: of {of} {got}, expected {want}"
    return Comparison(found.numel(), count, (line,))


def differing(found: Tensor, expected: Tensor) -> Tensor:
    """Where two tensors of one dtype differ in a bit."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if not found.is_floating_point():
        return found != expected
    as_int = INTEGERS.get(found.dtype, torch.int16)
    bits = found.contiguous().view(as_int) != expected.contiguous().view(as_int)
    return bits & ~(found.isnan() & expected.isnan())


# ---- block formats ----


def quantizers(fmt: BlockFormat) -> list[Quantizer]:
    """Every rule that the format takes."""
    found = []
    for rule in RULES[1:]:
        with suppress(ValidationError):
            fixed = 0.37 if rule == "fixed" else None
            found.append(Quantizer(format=fmt, rule=rule, fixed=fixed))
    return found


def block_steps(fmt: BlockFormat) -> Iterator[Step]:
    elements = dict.fromkeys([fmt.element, *([fmt.outlier.element] if fmt.outlier else [])])
    for part in dict.fromkeys([*elements, *fmt.parts.values()]):
        yield from scalar_steps(part, scale=part not in elements)
    every = quantizers(fmt)
    for q in every:
        for axis in (-1, 0):
            yield partial(_values, q, axis)
        yield partial(_wide, q)
        yield partial(_stored, q)
        yield partial(_stored_codes, q)
    if not isinstance(fmt.block, str) and len(fmt.block) == 2:
        yield partial(_tiles, every[0])
    for projection in DETERMINISTIC[1:]:
        yield partial(_elements, every[0].model_copy(update={"projection": projection}))


def effort(q: Quantizer) -> int:
    """About how much longer the oracle takes than for a rule that tries one scale."""
    scale = q.format.scale
    if q.rule == "mse":
        return 12 if isinstance(scale, FloatFormat) and scale.precision == 1 else 60
    return 6 if q.rule == "four_over_six" else 1


def _rows(q: Quantizer, axis: int) -> list[Tensor]:
    """Rows of every kind, every second one along one axis, the others along the other; of rules
    that take long the first kinds along one axis, the last along the other."""
    costly = effort(q) > 1
    width = hard_inputs.width_for(q.format, 35 if costly else LARGEST_ROW)
    groups = [g[1 + axis :: 2] if len(g) > 1 else g for g in hard_inputs.breaking(width)]
    most = max(4, ELEMENTS // (width * effort(q)))
    each, more = divmod(most, len(groups))
    groups = [g[: each + (i < more)] for i, g in enumerate(groups[:: 1 if axis else -1])]
    groups = [g for g in groups if len(g)]
    return groups if reaches_across(q.format) else [torch.cat(groups)]


def reaches_across(fmt: BlockFormat) -> bool:
    """Whether rows share a scale, so that one NaN would leave nothing else to see."""
    levels = (fmt.block, fmt.outer.block if fmt.outer else fmt.block)
    return any(b == "tensor" or (not isinstance(b, str) and len(b) > 1) for b in levels)


def static_scale(x: Tensor, q: Quantizer, axis: int = -1) -> Tensor | None:
    """Outermost scales for the rule static, not all of them suitable."""
    if q.rule != "static":
        return None
    fmt, shape = q.format, tuple(x.shape)
    coarse = hard_inputs.coarsest(fmt)
    size = () if fmt.outer and coarse == "tensor" else fmt.scale_shape(shape, axis, coarse)
    return torch.rand(size, generator=torch.Generator().manual_seed(5)) - 0.05


def fake(x: Tensor, q: Quantizer, axis: int = -1) -> Tensor:
    return kernels.fake_quantize(x, q, axis, scale=static_scale(x, q, axis))


def expected(x: Tensor, q: Quantizer, axis: int = -1) -> Tensor:
    """What the oracle says of `fake`."""
    scale = static_scale(x, q, axis)
    values = exact.fake_quantize(
        x.flatten().tolist(),
        tuple(x.shape),
        q,
        axis,
        scale=None if scale is None else scale.flatten().tolist(),
        arithmetic=exact.FLOAT64 if x.dtype == torch.float64 else exact.FLOAT32,
    )
    return torch.tensor(values, dtype=x.dtype).view(x.shape)


def _against_oracle(q: Quantizer, axis: int, groups: list[Tensor]) -> Comparison:
    total = Comparison()
    for rows in groups:
        x = rows if axis == -1 else rows.T
        title = f"{q.spell()} along {axis}"
        total += compare(title, fake(x, q, axis), expected(x, q, axis), x)
    return total


def _values(q: Quantizer, axis: int) -> Comparison:
    return _against_oracle(q, axis, _rows(q, axis))


def _wide(q: Quantizer) -> Comparison:
    return _against_oracle(q, -1, hard_inputs.wide(9 if effort(q) < 12 else 3))


def _tiles(q: Quantizer) -> Comparison:
    """Two tiles in the direction that is not blocked, where `breaking` has but one."""
    size = (min(q.format.block[0], LARGEST_ROW) + 3, 12)
    x = torch.randn(size, generator=torch.Generator().manual_seed(3))
    return sum((_against_oracle(q, axis, [x]) for axis in (-1, 0)), Comparison())


def _elements(q: Quantizer) -> Comparison:
    groups = hard_inputs.breaking(hard_inputs.width_for(q.format, 19))
    few = [g[:1] for g in groups]
    return _against_oracle(q, -1, few if reaches_across(q.format) else [torch.cat(few)])


def _stored(q: Quantizer) -> Comparison:
    """Codes and scales are the oracle's, dequantize gives the values of fake_quantize, and the
    size is the format's to the bit."""
    fmt = q.format
    total = Comparison()
    for axis in (-1, 0):
        for rows in hard_inputs.breaking(hard_inputs.width_for(fmt, LARGEST_ROW)):
            if not (rows.isfinite().all() or _stores_nan(q)):
                continue
            x = rows if axis == -1 else rows.T
            stored = kernels.quantize(x, q, axis, scale=static_scale(x, q, axis))
            title = f"{q.spell()} along {axis}: dequantize"
            total += compare(title, stored.dequantize(), fake(x, q, axis), x)
            size = torch.tensor([stored.nbytes, *stored.scales.shape])
            shape = tuple(x.shape)
            bits = fmt.storage_bits_of(shape, axis)
            wanted = torch.tensor([-(-bits // 8), *fmt.scale_shape(shape, axis)])
            total += compare(f"{q.spell()}: sizes", size, wanted, torch.tensor(0))
    return total


def _stores_nan(q: Quantizer) -> bool:
    """Whether what says NaN has a code for it: the scales, or the element where they are given."""
    scales = [q.format.scale, *(level.scale for level in q.format.inner)]
    return all(f.has_nan for f in ([q.format.element] if q.rule in GIVEN_RULES else scales))


def _stored_codes(q: Quantizer) -> Comparison:
    """Every code of a small tensor, of elements, scales and what else blocks have."""
    fmt = q.format
    width = hard_inputs.width_for(fmt, 35 if effort(q) > 1 else LARGEST_ROW)
    x = torch.cat([g[:1] for g in hard_inputs.breaking(width)[:2]])
    scale, shape = static_scale(x, q), tuple(x.shape)
    stored = kernels.quantize(x, q, scale=scale)
    flat = None if scale is None else scale.flatten().tolist()
    blocks = list(exact.quantize_blocks(x.flatten().tolist(), shape, q, scale=flat))
    found, wanted = [], []
    for at, (members, _, block) in enumerate(blocks):
        found += stored.codes.flatten()[members].tolist()
        wanted += block.codes
        found.append(int(stored.scales.flatten()[at]))
        wanted.append(exact.code_of(block.scale, fmt.scale))
        if stored.offset is not None:
            found.append(int(stored.offset.flatten()[at]))
            wanted.append(exact.code_of(block.offset, fmt.zero_point or fmt.offset))
        if fmt.outlier is not None:
            none = (1 << fmt.outlier.index_bits) - 1
            found.append(int(stored.outlier.flatten()[at]))
            wanted.append(none if block.outlier is None else block.outlier)
    # The parts of an inner level follow one another as their blocks do.
    for i, level in enumerate(fmt.inner):
        found += stored.inner[i].flatten().tolist()
        wanted += [exact.code_of(u, level.scale) for _, _, b in blocks for u in b.inner[i]]
    if fmt.outer is not None:
        rows, columns = fmt.block_sizes(shape, block=fmt.outer.block)
        outer = {(m[0] // width // rows, m[0] % width // columns): b.outer for m, _, b in blocks}
        found += stored.outer_scale.double().flatten().tolist()
        wanted += [float(each.scale) for each in outer.values()]
        if fmt.offset is not None:
            found += stored.outer_offset.double().flatten().tolist()
            wanted += [float(each.offset) for each in outer.values()]
    pair = [torch.tensor(t, dtype=torch.float64) for t in (found, wanted)]
    return compare(f"{q.spell()}: codes", *pair, torch.tensor(0))
