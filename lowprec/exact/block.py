"""Block quantization of small tensors, exactly as `lowprec.spec.Quantizer` says."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from lowprec.errors import LowprecError
from lowprec.exact.round import project
from lowprec.exact.scale import (
    block_format,
    block_scale,
    divide,
    multiply,
    tensor_scale,
    whole_scale,
)
from lowprec.exact.values import Value, code_of, exact, finite, to_float
from lowprec.spec.block import BlockFormat
from lowprec.spec.quantizer import Quantizer


@dataclass(frozen=True)
class Block:
    """One quantized block. `values` are ``RN(element * S)``, float32 numbers as Python floats.

    Where the scale is NaN so is every value, and the codes are the element's NaN, or 0 where it
    has none.
    """

    scale: Value
    tensor_scale: Value | None
    codes: tuple[int, ...]
    values: tuple[float, ...]


def largest_magnitude(values: Sequence[float]) -> Value:
    """A: the largest magnitude, 0 of no values; NaN where a value is NaN or Inf."""
    numbers = [exact(v) for v in values]
    if not all(map(finite, numbers)):
        return math.nan
    return max((abs(Fraction(v)) for v in numbers), default=Fraction(0))


def quantize_block(
    values: Sequence[float],
    quantizer: Quantizer,
    tensor_amax: Value | None = None,
    random: Sequence[int] | None = None,
) -> Block:
    """Scale and elements of one block of float32 numbers.

    tensor_amax: the largest magnitude of the tensor (NaN where it has NaN or Inf), for formats
    with a tensor scale; left out, the block is all there is. random: one integer per value for
    stochastic rounding.
    """
    element = block_format(quantizer).element
    amax = largest_magnitude(values)
    tensor = tensor_scale(amax if tensor_amax is None else tensor_amax, quantizer)
    scale = block_scale(amax, quantizer, tensor)
    whole = whole_scale(scale, tensor)
    if whole != whole:
        code = code_of(math.nan, element) if element.has_nan else 0
        return Block(scale, tensor, (code,) * len(values), (math.nan,) * len(values))
    bits = [None] * len(values) if random is None else random
    elements = [
        project(_scaled(exact(x), whole), element, quantizer.projection, r)
        for x, r in zip(values, bits, strict=True)
    ]
    return Block(
        scale,
        tensor,
        tuple(code_of(y, element) for y in elements),
        tuple(to_float(multiply(y, whole)) for y in elements),
    )


def _scaled(x: Value, whole: Value) -> Value:
    """RN(x / S), and zero with the sign of x where S is 0."""
    return divide(x, whole) if whole else multiply(x, whole)


def fake_quantize(
    values: Sequence[float],
    shape: tuple[int, ...],
    quantizer: Quantizer,
    axis: int = -1,
    random: Sequence[int] | None = None,
) -> list[float]:
    """The quantized values of a tensor of `shape` given flat in row-major order, likewise flat."""
    if len(values) != math.prod(shape):
        raise LowprecError(f"{len(values)} values do not fill the shape {shape}")
    bits = [None] * len(values) if random is None else random
    fmt = quantizer.format
    if not isinstance(fmt, BlockFormat):
        pairs = zip(values, bits, strict=True)
        return [to_float(project(x, fmt, quantizer.projection, r)) for x, r in pairs]
    tensor_amax = largest_magnitude(values)
    result = [math.nan] * len(values)
    for members in _blocks(shape, fmt, axis):
        block = quantize_block(
            [values[i] for i in members],
            quantizer,
            tensor_amax,
            None if random is None else [random[i] for i in members],
        )
        for i, y in zip(members, block.values, strict=True):
            result[i] = y
    return result


def _blocks(shape: tuple[int, ...], fmt: BlockFormat, axis: int) -> list[list[int]]:
    """The flat indices of every block's members."""
    sizes = _block_sizes(shape, fmt, axis % len(shape) if shape else 0)
    blocks: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for flat, index in enumerate(product(*map(range, shape))):
        blocks[tuple(i // size for i, size in zip(index, sizes, strict=True))].append(flat)
    return list(blocks.values())


def _block_sizes(shape: tuple[int, ...], fmt: BlockFormat, axis: int) -> list[int]:
    if fmt.block == "tensor":
        return list(shape)
    sizes = [1] * len(shape)
    if fmt.block == "channel":
        sizes[axis] = shape[axis]
        return sizes
    sizes[axis] = fmt.block[-1]
    if len(fmt.block) == 2:
        if len(shape) < 2:
            raise LowprecError(f"{fmt.name}: tiles {fmt.block} need a tensor of rank 2 or more")
        others = [a for a in range(len(shape)) if a != axis]
        sizes[others[-1]] = fmt.block[0]
    return sizes
