"""Projection onto float and integer formats: integer arithmetic on the bits of floats.

The definition of the numerics in torch; it serves every device and torch.compile, and the CPU
core is tested to give the same bits. A rounded magnitude comes from its pattern: clearing the low
s bits rounds toward zero at s bits, adding 2^s goes one step away from zero, and the carry into
the exponent field is the change of binade. Overflow is decided after rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lowprec.kernels.grid import Ends, Grid, Nearest
from lowprec.kernels.word import Word, floor_log2_of


def project(x: Tensor, grid: Grid, random: Tensor | None = None) -> Tensor:
    """The projection of each element of `x` (of the grid's dtype), in that dtype.

    random: for stochastic rounding, integers of `grid.random_bits` bits, of the shape of `x`.
    """
    word = grid.word
    bits = x.view(word.int_dtype)
    pattern, minus = bits & word.magnitude, bits < 0
    if grid.nearest is not None:
        return finish(_nearest(pattern, grid.nearest, word), pattern, bits, grid.ends, word)
    exponent = floor_log2_of(pattern, word)

    # The trailing bits to discard: none if the dtype is coarser than the format.
    ulp = exponent.clamp(min=word.emin) - word.trailing
    step = (exponent - (grid.precision - 1)).clamp(min=grid.quantum) - ulp
    shift = step.clamp(0, word.trailing)
    implicit = 1 << word.trailing
    significand = (
        pattern & (implicit - 1) | (pattern >= implicit).to(word.int_dtype) << word.trailing
    )
    unit = torch.ones_like(shift) << shift
    discarded = significand & (unit - 1)

    below = pattern < grid.least
    odd = significand >> shift
    if grid.code_bias is not None:
        odd = exponent + grid.code_bias
    odd = (odd & 1).bool() & ~below
    inexact = torch.where(below, pattern > 0, discarded > 0)

    match grid.rounding:
        case "nearest-even" | "nearest-away":
            above = torch.where(below, pattern > grid.half, discarded > unit - discarded)
            tie = torch.where(below, _is_half(pattern, grid), discarded == unit - discarded)
            away = above | tie & (odd if grid.rounding == "nearest-even" else inexact)
        case "toward-zero":
            away = torch.zeros_like(inexact)
        case "up":
            away = inexact & ~minus
        case "down":
            away = inexact & minus
        case "to-odd":
            away = inexact & ~odd
        case "stochastic":
            assert random is not None
            away = _stochastic(discarded, shift, significand, ulp, below, grid, random)
        case other:
            raise AssertionError(other)

    toward_zero = torch.where(below, 0 if grid.has_zero else grid.least, pattern - discarded)
    farther = torch.where(below, grid.least, pattern - discarded + unit)
    rounded = torch.where(away, farther, toward_zero)
    return finish(rounded, pattern, bits, grid.ends, word)


def _nearest(pattern: Tensor, by: Nearest, word: Word) -> Tensor:
    low = ((pattern.view(word.dtype) + by.magic) - by.magic).view(word.int_dtype)
    high = (pattern + by.half + ((pattern >> by.shift) & 1)) & by.kept
    return torch.where(pattern < by.fixed, low, high)


def _is_half(pattern: Tensor, grid: Grid) -> Tensor:
    return (pattern == grid.half) & grid.half_is_tie


def _stochastic(
    discarded: Tensor,
    shift: Tensor,
    significand: Tensor,
    ulp: Tensor,
    below: Tensor,
    grid: Grid,
    random: Tensor,
) -> Tensor:
    """floor(fraction * 2^n) + random >= 2^n, all in int64."""
    n = grid.random_bits
    assert n is not None
    fraction = _shifted(discarded.long(), n - shift.long())
    exponent = ulp.long() + (n - grid.least_exponent)
    lowest = _shifted(significand.long(), torch.where(below, exponent, 0)) // grid.least_significand
    return torch.where(below, lowest, fraction) + random.long() >= 1 << n


def _shifted(x: Tensor, by: Tensor) -> Tensor:
    """floor(x * 2^by)."""
    return torch.where(by >= 0, x << by.clamp(0, 62), x >> (-by).clamp(0, 62))


def finish(rounded: Tensor, pattern: Tensor, bits: Tensor, ends: Ends, word: Word) -> Tensor:
    """Signs and ends: the float of a rounded magnitude, given the pattern and all bits of its x."""
    sign = bits & word.sign
    if ends.clamps:
        result = rounded.clamp(max=ends.bound[0]) | sign
        return torch.where(pattern > word.infinity, word.nan, result).view(word.dtype)
    minus = bits >> (word.trailing + word.exponent_bits)  # all ones, or zero

    def end(pair: tuple[int, int]) -> Tensor:
        positive, negative = pair
        return (minus & (positive ^ negative)) ^ positive

    result = torch.where(rounded > end(ends.bound), end(ends.overflow), rounded | sign)
    result = torch.where((rounded == 0) | (pattern == 0), end(ends.zero), result)
    result = torch.where(pattern == word.infinity, end(ends.infinity), result)
    return torch.where(pattern > word.infinity, word.nan, result).view(word.dtype)
