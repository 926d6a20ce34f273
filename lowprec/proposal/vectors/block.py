"""Vectors of block quantization: hard blocks, their scales, codes and dequantized values.

A row is one tensor of shape (rows, columns), row-major, blocked along its columns; under an outer
scale it is one outer block, so that a row stands on its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from random import Random

from lowprec.exact import FLOAT32, Block, code_of, exact, quantize_blocks, value
from lowprec.exact.scale import largest_value
from lowprec.exact.values import Value
from lowprec.proposal.vectors.inputs import near
from lowprec.proposal.vectors.model import Head, Level, Row, VectorSet, Words, table
from lowprec.spec import BlockFormat, Format, Quantizer
from lowprec.spec.format import pow2
from lowprec.spec.quantizer import SEARCHING_RULES

# Numbers that the tensors of a set hold together, by level; hard ones always.
NUMBERS = {"smoke": 1 << 9, "standard": 1 << 13, "full": 1 << 16}
# The longest row of a block, shorter where many scales are tried for each.
LONGEST = {"smoke": 32, "standard": 256, "full": 256}
SEARCHED = 8
# Scales of the rule static: float32 numbers.
GIVEN = (1.0, 2.0**-7, 97 * 2.0**-8, 96.0)
F32 = FLOAT32.format
Tensor = tuple[str, list[int]]


def quantize_set(quantizer: Quantizer, target: str, level: Level) -> VectorSet:
    """Hard tensors, and random ones until the level's numbers are used up."""
    fmt = quantizer.format
    assert isinstance(fmt, BlockFormat)
    longest = SEARCHED if quantizer.rule in SEARCHING_RULES else LONGEST[level]
    shape, random = shape_of(fmt, longest), Random(4)
    rows: list[Row] = []
    for i, (why, codes) in enumerate(_tensors(quantizer, shape, level)):
        short = (shape[0], shape[1] - max(shape[1] // 3, 1)) if why == "short-block" else shape
        rows.append((why, _row(quantizer, short, codes[: math.prod(short)], random, i)))
    return table("quantize", target, "block", level, quantizer.to_json(), _heads(quantizer), rows)


def shape_of(fmt: BlockFormat, longest: int) -> tuple[int, int]:
    """A small tensor: a block, or two under an outer scale; short where it would be too long."""
    tile = not isinstance(fmt.block, str) and len(fmt.block) == 2
    own = 24 if isinstance(fmt.block, str) else fmt.block[-1]
    columns = min(own, longest // 2 if tile else longest)
    rows = 3 if tile or fmt.block == "tensor" else 1
    if fmt.outer is None or columns < own:
        return rows, columns
    outer = fmt.outer.block
    return (2 if outer == "tensor" and not tile else rows), 2 * columns


def _heads(quantizer: Quantizer) -> list[Head]:
    """The columns that the format has."""
    fmt = quantizer.format
    assert isinstance(fmt, BlockFormat)
    heads: list[Head] = [
        ("shape", "in", 32, "integer", True),
        ("x", "in", 32, F32.name, True),
    ]
    if quantizer.projection.bits is not None:
        heads.append(("random", "in", quantizer.projection.bits, "integer", True))
    if quantizer.rule == "static":
        heads.append(("given", "in", 32, F32.name, False))
    if fmt.outer is not None:
        heads.append(_head("outer", fmt.outer.scale, many=False))
        if fmt.offset is not None:
            heads.append(_head("outer_offset", fmt.outer.scale, many=False))
    heads.append(_head("scale", fmt.scale))
    heads += [_head(_inner(i), inner.scale) for i, inner in enumerate(fmt.inner)]
    offset = fmt.zero_point or fmt.offset
    if offset is not None:
        heads.append(_head("zero_point" if fmt.zero_point else "offset", offset))
    if fmt.outlier is not None:
        heads.append(("outlier", "out", fmt.outlier.index_bits, "integer", True))
    return [*heads, _head("code", fmt.element), ("value", "out", 32, F32.name, True)]


def _head(name: str, fmt: Format, many: bool = True) -> Head:
    return (name, "out", fmt.bits, fmt.name, many)


def _inner(level: int) -> str:
    """Columns are named by letters alone: inner_a is the coarsest inner level."""
    return f"inner_{chr(ord('a') + level)}"


def _row(
    quantizer: Quantizer, shape: tuple[int, int], codes: list[int], source: Random, i: int
) -> tuple[int | Words, ...]:
    bits = quantizer.projection.bits
    random = None if bits is None else [source.getrandbits(bits) for _ in codes]
    given = GIVEN[i % len(GIVEN)] if quantizer.rule == "static" else None
    row: list[int | Words] = [tuple(shape), tuple(codes)]
    row += [] if random is None else [tuple(random)]
    row += [] if given is None else [code_of(exact(given), F32)]
    return (*row, *answer(quantizer, shape, codes, random, given))


def answer(
    quantizer: Quantizer,
    shape: tuple[int, int],
    codes: Sequence[int],
    random: Sequence[int] | None = None,
    given: float | None = None,
) -> tuple[int | Words, ...]:
    """The cells of a row that are asked, in the columns' order."""
    fmt = quantizer.format
    assert isinstance(fmt, BlockFormat)
    numbers = [float(value(code, F32)) for code in codes]
    # Without an outer scale every block has the given scale.
    count = math.prod(fmt.scale_shape(shape)) if fmt.outer is None else 1
    scales = None if given is None else [given] * count
    found = list(quantize_blocks(numbers, shape, quantizer, -1, random, scales))
    elements, values = [0] * len(codes), [0] * len(codes)
    for members, _, block in found:
        for at, code, y in zip(members, block.codes, block.values, strict=True):
            elements[at], values[at] = code, code_of(exact(y), F32)
    return (*_scales(fmt, [b for _, _, b in found]), tuple(elements), tuple(values))


def _scales(fmt: BlockFormat, blocks: list[Block]) -> Iterator[int | tuple[int, ...]]:
    """The cells between the inputs and the elements, as `_heads` names them."""
    if fmt.outer is not None:
        yield code_or_zero(blocks[0].outer.scale, fmt.outer.scale)
        if fmt.offset is not None:
            yield code_or_zero(blocks[0].outer.offset, fmt.outer.scale)
    yield tuple(code_or_zero(block.scale, fmt.scale) for block in blocks)
    for i, inner in enumerate(fmt.inner):
        yield tuple(code_or_zero(u, inner.scale) for block in blocks for u in block.inner[i])
    offset = fmt.zero_point or fmt.offset
    if offset is not None:
        yield tuple(code_or_zero(block.offset, offset) for block in blocks)
    if fmt.outlier is not None:
        none = (1 << fmt.outlier.index_bits) - 1
        yield tuple(none if block.outlier is None else block.outlier for block in blocks)


def code_or_zero(x: Value | None, fmt: Format) -> int:
    """The code point of a scale; 0 for NaN in a format without one."""
    assert x is not None
    return 0 if x != x and not fmt.has_nan else code_of(x, fmt)


def _tensors(quantizer: Quantizer, shape: tuple[int, int], level: Level) -> Iterator[Tensor]:
    size = math.prod(shape)
    hard = [tensor for tensor in _hard(quantizer, size) if len(tensor[1]) == size]
    yield from hard
    random = Random(5)
    for i in range(max(NUMBERS[level] // size - len(hard), 6)):
        why = ("normal", "wide", "short-block")[i % 3]
        yield why, _drawn(random, size, spread=16.0 if why == "wide" else 0.0)


def _drawn(random: Random, size: int, spread: float = 0.0, center: float = 0.0) -> list[int]:
    """Normal numbers times 2 to the power of numbers within `spread` of `center`."""
    return [
        _bits(random.gauss(0, 1) * 2.0 ** (center + random.uniform(-spread, spread)))
        for _ in range(size)
    ]


def _bits(x: float) -> int:
    """The float32 next to `x`."""
    return near(exact(x), F32)[-2][1] if x else 0  # type: ignore[arg-type]


def _hard(quantizer: Quantizer, size: int) -> Iterator[Tensor]:
    random, sign = Random(6), 1 << 31
    base = _drawn(random, size)
    first = _drawn(random, size, center=-2)
    yield "zeros", [0] * size
    yield "signed-zeros", [sign * (i % 2) for i in range(size)]
    yield "one-number", [0] * (size - 1) + [_bits(3.7)]
    yield "negative-only", [code | sign for code in base]
    yield "positive-only", [code & ~sign for code in base]
    for special in (F32.infinity_code, sign | (F32.infinity_code or 0), F32.nan_code):
        yield "special", [*base[:-1], special or 0]
    yield "subnormals", [sign * (i % 3 == 0) | 1 + i for i in range(size)]
    yield "smallest", [1] * size
    yield "largest", [F32.max_code | sign * (i % 2) for i in range(size)]
    yield "tiny", _drawn(random, size, center=-133)
    yield "huge", _drawn(random, size, center=124)
    yield "one-huge", [F32.max_code, *base[1:]]
    yield "one-tiny-block", [1 + (code & 7) for code in base[: size // 2]] + base[size // 2 :]
    yield "one-zero-block", [0] * (size // 2) + base[size // 2 :]
    yield "steep", _drawn(random, size, spread=40)
    top = _bits(5.25)
    yield "equal-maxima", [top | sign, top, *base[2:]] if size > 2 else [top] * size
    # Where rules that round the exponent of the scale turn: at powers of two, at the largest
    # value times one, and at the next power of two as elements of few bits see it.
    m = largest_value(quantizer)
    for turn in (m, pow2(3), pow2(3) * 7 / 4, pow2(3) * 15 / 8, m * 33 / 32):
        for where, code in near(turn, F32):
            yield f"{where}-turn", [code, *(min(c & ~sign, code) | c & sign for c in first[1:])]
    # Multiples of an eighth: with a scale of a power of two they are ties of most elements.
    k = float(m)
    yield "ties", [_bits(k), *(_bits(k * ((i * 5) % 64 - 32) / 64) for i in range(1, size))]
    yield (
        "near-ties",
        [_bits(k), *(_bits(k * ((i * 5) % 64 - 32) / 64) + 1 for i in range(1, size))],
    )
