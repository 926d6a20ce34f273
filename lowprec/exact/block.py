"""Block quantization of small tensors, exactly as `lowprec.spec.Quantizer` says."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from lowprec.errors import LowprecError
from lowprec.exact.arith import FLOAT32, FLOAT64, Arithmetic
from lowprec.exact.round import project
from lowprec.exact.scale import (
    Outer,
    block_format,
    candidates,
    inner_scale,
    largest_magnitude,
    offset_of,
    outer_scales,
    whole_scale,
)
from lowprec.exact.values import Value, code_of, exact, finite, to_float
from lowprec.spec.block import Block as Granularity
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import Format
from lowprec.spec.quantizer import Quantizer


@dataclass(frozen=True)
class Block:
    """One quantized block. `values` are numbers of the arithmetic as Python floats.

    inner: the scales u of every inner level's parts. offset: z or o. outlier: the index of the
    element in the outlier's format. Where the scale is NaN so is every value, and the codes are
    the element's NaN, or 0 where it has none.
    """

    scale: Value
    outer: Outer
    codes: tuple[int, ...]
    values: tuple[float, ...]
    inner: tuple[tuple[Value, ...], ...] = ()
    offset: Value | None = None
    outlier: int | None = None


def quantize_block(
    values: Sequence[float],
    quantizer: Quantizer,
    outer: Outer | None = None,
    random: Sequence[int] | None = None,
    given: Value | None = None,
    arithmetic: Arithmetic = FLOAT32,
    places: Sequence[int] | None = None,
) -> Block:
    """Scales and elements of one block of numbers.

    outer: what `outer_scales` gives for the outer block; left out, the block is all there is.
    random: one integer per value for stochastic rounding. given: the scale under the rule static.
    places: where the values stand in a whole block, row by row, if not one after the other.
    """
    given_here = None if block_format(quantizer).outer is not None else given
    if outer is None:
        outer = outer_scales([values], quantizer, given, arithmetic)
    bits = [None] * len(values) if random is None else random
    scales = candidates(values, quantizer, outer, given_here, arithmetic)
    blocks = [_with_scale(values, s, quantizer, outer, bits, arithmetic) for s in scales]
    errors = [_error(values, block, places) for block in blocks] if len(blocks) > 1 else [0.0]
    best = 0
    for i, error in enumerate(errors):
        best = i if error < errors[best] else best
    return blocks[best]


def _with_scale(
    values: Sequence[float],
    scale: Value,
    quantizer: Quantizer,
    outer: Outer,
    random: Sequence[int | None],
    a: Arithmetic,
) -> Block:
    fmt = block_format(quantizer)
    whole = whole_scale(scale, outer.scale, a)
    wholes, inner = _inner(values, fmt, whole, a)
    offset = None
    if fmt.zero_point is not None or fmt.offset is not None:
        offset = offset_of(values, quantizer, whole, outer, a)
    if whole != whole:
        code = _nan_code(fmt.element)
        return Block(
            scale, outer, (code,) * len(values), (math.nan,) * len(values), inner, offset, None
        )
    zero = offset if fmt.zero_point is not None else None
    shift = None if fmt.offset is None or offset is None else whole_scale(offset, outer.offset, a)
    outlier = _outlier(values, fmt, whole, a)
    codes, results = [], []
    for i, (x, s, r) in enumerate(zip(values, wholes, random, strict=True)):
        element = fmt.outlier.element if fmt.outlier and i == outlier else fmt.element
        unit = exact(x) if shift is None else a.add(exact(x), shift)
        unit = a.divide(unit, s) if s else a.multiply(unit, s)
        unit = unit if zero is None else a.add(unit, zero)
        y = project(unit, element, quantizer.projection, r)
        codes.append(code_of(y, element) if y == y or element.has_nan else 0)
        y = y if zero is None or y != y else Fraction(y) - Fraction(zero)
        y = a.multiply(y, s)
        results.append(to_float(y if shift is None else a.subtract(y, shift)))
    return Block(scale, outer, tuple(codes), tuple(results), inner, offset, outlier)


def _nan_code(element: Format) -> int:
    return code_of(math.nan, element) if element.has_nan else 0


def _inner(
    values: Sequence[float], fmt: BlockFormat, whole: Value, a: Arithmetic
) -> tuple[list[Value], tuple[tuple[Value, ...], ...]]:
    """S at every value, and the scales of each inner level."""
    wholes, levels = [whole] * len(values), []
    for level, inner in enumerate(fmt.inner):
        size = int(inner.block[0])
        found = []
        for start in range(0, len(values), size):
            part = slice(start, start + size)
            u = inner_scale(values[part], fmt, level, wholes[start], a)
            found.append(u)
            wholes[part] = [a.multiply(wholes[start], u)] * len(values[part])
        levels.append(tuple(found))
    return wholes, tuple(levels)


def _outlier(values: Sequence[float], fmt: BlockFormat, whole: Value, a: Arithmetic) -> int | None:
    """The index of the first value of magnitude A, if the block has an outlier."""
    if fmt.outlier is None or not whole:
        return None
    amax = largest_magnitude(values)
    ratio = a.divide(amax, whole)
    if finite(ratio) and ratio < fmt.outlier.element.min_positive_exact:
        return None
    return next(i for i, x in enumerate(values) if abs(exact(x)) == amax)


def _error(values: Sequence[float], block: Block, places: Sequence[int] | None) -> float:
    """E: the sum of squared errors, every step rounded to float64; NaN is no less than anything."""
    places = range(len(values)) if places is None else places
    terms: list[Value] = [Fraction(0)] * (1 << max(places[-1], 0).bit_length())
    for at, x, y in zip(places, values, block.values, strict=True):
        difference = FLOAT64.subtract(exact(x), exact(y))
        terms[at] = FLOAT64.multiply(difference, difference)
    while len(terms) > 1:
        half = len(terms) // 2
        pairs = zip(terms[:half], terms[half:], strict=True)
        terms = [FLOAT64.add(a, b) if b else a for a, b in pairs]
    return float(terms[0])


def fake_quantize(
    values: Sequence[float],
    shape: tuple[int, ...],
    quantizer: Quantizer,
    axis: int = -1,
    random: Sequence[int] | None = None,
    scale: Sequence[float] | None = None,
    arithmetic: Arithmetic = FLOAT32,
) -> list[float]:
    """The quantized values of a tensor of `shape` given flat in row-major order, likewise flat.

    scale: under the rule static the outermost scales, flat.
    """
    if len(values) != math.prod(shape):
        raise LowprecError(f"{len(values)} values do not fill the shape {shape}")
    bits = [None] * len(values) if random is None else random
    fmt = quantizer.format
    if not isinstance(fmt, BlockFormat):
        pairs = zip(values, bits, strict=True)
        return [to_float(project(exact(x), fmt, quantizer.projection, r)) for x, r in pairs]
    result = [math.nan] * len(values)
    for members, _, block in quantize_blocks(
        values, shape, quantizer, axis, random, scale, arithmetic
    ):
        for i, y in zip(members, block.values, strict=True):
            result[i] = y
    return result


def quantize_blocks(
    values: Sequence[float],
    shape: tuple[int, ...],
    quantizer: Quantizer,
    axis: int = -1,
    random: Sequence[int] | None = None,
    scale: Sequence[float] | None = None,
    arithmetic: Arithmetic = FLOAT32,
) -> Iterator[tuple[list[int], list[int], Block]]:
    """Every block of a tensor: the flat indices of its members, their places, the block itself."""
    fmt = block_format(quantizer)
    axis = axis % len(shape) if shape else 0
    blocks = _blocks(shape, _block_sizes(shape, fmt, fmt.block, axis))
    coarse = fmt.outer.block if fmt.outer else fmt.block
    groups = _blocks(shape, _block_sizes(shape, fmt, coarse, axis))
    owner = {i: g for g, (members, _) in enumerate(groups) for i in members}
    for g in range(len(groups)):
        own = [(m, p) for m, p in blocks if owner[m[0]] == g]
        given = None if scale is None else exact(scale[g])
        outer = outer_scales([[values[i] for i in m] for m, _ in own], quantizer, given, arithmetic)
        for members, places in own:
            block = quantize_block(
                [values[i] for i in members],
                quantizer,
                outer,
                None if random is None else [random[i] for i in members],
                given,
                arithmetic,
                places,
            )
            yield members, places, block


def _blocks(shape: tuple[int, ...], sizes: list[int]) -> list[tuple[list[int], list[int]]]:
    """Of every block the flat indices of its members and their places in a whole block."""
    blocks: defaultdict[tuple[int, ...], tuple[list[int], list[int]]] = defaultdict(
        lambda: ([], [])
    )
    for flat, index in enumerate(product(*map(range, shape))):
        members, places = blocks[tuple(i // n for i, n in zip(index, sizes, strict=True))]
        members.append(flat)
        place = 0
        for i, n in zip(index, sizes, strict=True):
            place = place * n + i % n
        places.append(place)
    return [blocks[key] for key in sorted(blocks)]


def _block_sizes(
    shape: tuple[int, ...], fmt: BlockFormat, block: Granularity, axis: int
) -> list[int]:
    if block == "tensor":
        return list(shape)
    sizes = [1] * len(shape)
    if block == "channel":
        sizes[axis] = shape[axis]
        return sizes
    sizes[axis] = int(block[-1])
    if len(block) == 2:
        if len(shape) < 2:
            raise LowprecError(f"{fmt.name}: tiles {block} need a tensor of rank 2 or more")
        others = [a for a in range(len(shape)) if a != axis]
        sizes[others[-1]] = int(block[0])
    return sizes
