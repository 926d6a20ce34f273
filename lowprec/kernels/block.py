"""Block quantization in torch: the definition, for every device, shape and axis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import scale as rules
from lowprec.kernels.blocking import Layout, largest, members, smallest, spread
from lowprec.kernels.element import Projector, projector
from lowprec.kernels.scale import InnerRule, ScaleRule, rule_of
from lowprec.kernels.shared import Shared, outlier_mask, values_of, whole_and_shift
from lowprec.kernels.word import FLOAT32, FLOAT64, Word, holds, word_of
from lowprec.spec.block import BlockFormat
from lowprec.spec.quantizer import GIVEN_RULES, SEARCHING_RULES, Quantizer


@dataclass(frozen=True)
class BlockNumbers:
    """A block quantizer as numbers."""

    rule: ScaleRule
    element: Projector
    outlier: Projector | None
    inner: tuple[InnerRule, ...]
    lowest: float  # element
    least: float  # positive value of the outlier's format
    has_signed_offset: bool


@dataclass(frozen=True)
class Scaled:
    """Elements before and after their projection (in a dtype that holds them) and what they share;
    `values` are in x's dtype."""

    units: Tensor
    elements: Tensor
    shared: Shared
    values: Tensor

    def flatten(self, axis: int) -> Scaled:
        """Without the dimension `axis` that each block had for itself."""

        def squeeze(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.squeeze(axis)

        old = self.shared
        shared = Shared(
            old.scale.squeeze(axis),
            old.outer,
            offset=squeeze(old.offset),
            outer_offset=old.outer_offset,
            outlier=squeeze(old.outlier),
        )
        parts = (x.flatten(axis - 1, axis) for x in (self.units, self.elements, self.values))
        units, elements, values = parts
        return Scaled(units, elements, shared, values)


@lru_cache(maxsize=1024)
def numbers_of(quantizer: Quantizer, word: Word = FLOAT32) -> BlockNumbers:
    """LowprecError where no dtype holds the elements, or the word not the scales."""
    fmt, projection = quantizer.format, quantizer.projection
    assert isinstance(fmt, BlockFormat)
    outlier = fmt.outlier.element if fmt.outlier else None
    held = all(holds(word.dtype, f) for f in (fmt.element, outlier) if f)
    wide = word if held else FLOAT64
    return BlockNumbers(
        rule_of(quantizer, word),
        projector(fmt.element, projection, wide),
        projector(outlier, projection, wide) if outlier else None,
        rules.inner_rules(fmt),
        float(fmt.element.min_exact),
        float(outlier.min_positive_exact) if outlier else 0.0,
        fmt.offset is not None and fmt.offset.min_exact < 0,
    )


def scaled(
    x: Tensor,
    quantizer: Quantizer,
    axis: int,
    random: Tensor | None = None,
    given: Tensor | None = None,
    numbers: BlockNumbers | None = None,
) -> Scaled:
    """Scales and elements of `x` (float32 or float64): `Quantizer`'s docstring in its own order.

    given: under the rule static the outermost scales, of the shape of `Shared.outer` or `.scale`.
    numbers: those of the quantizer, unless others of its structure are to take their place.
    """
    fmt = quantizer.format
    assert isinstance(fmt, BlockFormat)
    numbers, layout = numbers or numbers_of(quantizer, word_of(x.dtype)), Layout(fmt, x.shape, axis)
    if not x.numel():
        return _empty(x, layout, numbers)
    if given is None and layout.is_cut_evenly:
        # Blocks as a dimension of their own: what they share need not be spread out in memory.
        axis, size = layout.axis, int(fmt.block[0])
        x = x.unflatten(axis, (-1, size))
        random = None if random is None else random.unflatten(axis, (-1, size))
        found = _scaled(x, quantizer, Layout(fmt, x.shape, axis, cut=True), random, None, numbers)
        return found.flatten(axis)
    return _scaled(x, quantizer, layout, random, given, numbers)


def _scaled(
    x: Tensor,
    quantizer: Quantizer,
    layout: Layout,
    random: Tensor | None,
    given: Tensor | None,
    numbers: BlockNumbers,
) -> Scaled:
    word = numbers.rule.word
    pattern = x.view(word.int_dtype) & word.magnitude
    amax = largest(pattern, layout.sizes)
    low, high = _bounds(x, layout, numbers.has_signed_offset)
    outer, outer_offset = _outer(amax, low, high, quantizer, numbers.rule, layout, given)
    scales = _candidates(x, amax, low, high, outer, quantizer, numbers.rule, layout, given)
    shared = [Shared(s, outer, outer_offset=outer_offset) for s in scales]
    best = shared[0]
    if quantizer.rule in SEARCHING_RULES:
        best = _least_error(x, shared, numbers, layout, random)
    best = _finer(x, pattern, amax, low, best, numbers, layout)
    return _projected(x, best, numbers, layout, random)


def _empty(x: Tensor, layout: Layout, numbers: BlockNumbers) -> Scaled:
    fmt = layout.fmt
    ones, fill = x.new_ones(layout.blocks), None
    if fmt.outer is not None:
        fill = x.new_zeros(
            () if layout.is_whole else fmt.scale_shape(tuple(x.shape), layout.axis, fmt.outer.block)
        )
    inner = tuple(
        x.new_ones(fmt.scale_shape(tuple(x.shape), layout.axis, level.block)) for level in fmt.inner
    )
    has_offset = fmt.zero_point is not None or fmt.offset is not None
    shared = Shared(
        ones, fill, inner, ones * 0 if has_offset else None,
        fill if fmt.offset is not None else None, ones.long() if fmt.outlier else None,
    )  # fmt: skip
    return Scaled(x, x.to(numbers.element.word.dtype), shared, x)


def _bounds(
    x: Tensor, layout: Layout, has_signed_offset: bool
) -> tuple[Tensor | None, Tensor | None]:
    """lo and hi of every block, for formats that have a use for them."""
    fmt = layout.fmt
    if fmt.zero_point is None and fmt.offset is None:
        return None, None
    low, high = smallest(x, layout.sizes), largest(x, layout.sizes)
    if fmt.zero_point is not None:
        return low.clamp(max=0), high.clamp(min=0)
    return (low if has_signed_offset else low.clamp(max=0)), high


def _outer(
    amax: Tensor,
    low: Tensor | None,
    high: Tensor | None,
    quantizer: Quantizer,
    rule: ScaleRule,
    layout: Layout,
    given: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """t and t_o."""
    if layout.fmt.outer is None:
        return None, None
    largest_of = layout.over_outer(amax)
    if quantizer.rule in GIVEN_RULES:
        assert rule.onto_outer is not None
        return rule.onto_outer(_given(quantizer, largest_of, given, rule.word)), None
    if low is None or high is None:
        return rules.outer_scale(largest_of, rule), None
    scale = rules.outer_scale(largest_of, rule, layout.over_outer((high - low).abs()))
    if layout.fmt.offset is None:
        return scale, None
    return scale, rules.outer_offset(largest_of, layout.over_outer(0 - low), rule)


def _given(quantizer: Quantizer, like: Tensor, given: Tensor | None, word: Word) -> Tensor:
    if quantizer.fixed is not None:
        return torch.full_like(like, quantizer.fixed, dtype=torch.float64).to(word.dtype)
    if given is None or given.shape != like.shape:
        found = "none" if given is None else f"one of shape {tuple(given.shape)}"
        raise LowprecError(
            f"{quantizer.spell()}: expected scale= of shape {tuple(like.shape)}, got {found}"
        )
    return given.to(word.dtype)


def _candidates(
    x: Tensor,
    amax: Tensor,
    low: Tensor | None,
    high: Tensor | None,
    outer: Tensor | None,
    quantizer: Quantizer,
    rule: ScaleRule,
    layout: Layout,
    given: Tensor | None,
) -> list[Tensor]:
    if quantizer.rule in GIVEN_RULES and outer is None:
        return [rule.onto_scale(_given(quantizer, amax, given, rule.word))]
    number = None
    if quantizer.rule == "signed":
        number = -_first_largest(x, amax, layout)[1]
    if low is not None and high is not None:
        number = (high - low).abs()
    return rules.block_scales(
        amax, rule, None if outer is None else layout.at_blocks(outer), number
    )


def _first_largest(x: Tensor, amax: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """The place of each block's first number of magnitude A, and that number."""
    word = word_of(x.dtype)
    numbers = members(x, layout.sizes)
    same = (numbers.view(word.int_dtype) & word.magnitude) == amax[..., None]
    index = same.to(torch.int32).argmax(-1, keepdim=True)
    return index[..., 0], numbers.gather(-1, index)[..., 0]


def _least_error(
    x: Tensor,
    candidates: list[Shared],
    numbers: BlockNumbers,
    layout: Layout,
    random: Tensor | None,
) -> Shared:
    """Of every block the scale of the least E, of equals the first."""
    best, least = candidates[0].scale, None
    for shared in candidates:
        values = _projected(x, shared, numbers, layout, random).values
        difference = x.double() - values.double()
        error = _tree_sum(members(difference * difference, layout.sizes))
        if least is not None:
            better = error < least
            best, error = torch.where(better, shared.scale, best), torch.where(better, error, least)
        least = error
    return Shared(best, candidates[0].outer)


def _tree_sum(x: Tensor) -> Tensor:
    """The sum along the last dimension in the order of E."""
    n = 1 << (x.shape[-1] - 1).bit_length()
    x = torch.nn.functional.pad(x, [0, n - x.shape[-1]])
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def _finer(
    x: Tensor,
    pattern: Tensor,
    amax: Tensor,
    low: Tensor | None,
    shared: Shared,
    numbers: BlockNumbers,
    layout: Layout,
) -> Shared:
    """`shared` with inner scales, offsets and the outlier."""
    fmt, word = layout.fmt, numbers.rule.word
    outer = None if shared.outer is None else layout.at_blocks(shared.outer)
    whole = rules.whole_scale(shared.scale, outer)
    offset, outlier, inner = None, None, []
    if low is not None and numbers.rule.onto_offset is not None:
        offset = numbers.rule.onto_offset(_offset(low, whole, shared, layout, numbers.lowest))
        offset = torch.where(whole.isnan(), torch.nan, offset)
    if fmt.outlier is not None:
        index, _ = _first_largest(x, amax, layout)
        ratio = amax.view(word.dtype) / whole
        none = (whole == 0) | whole.isnan() | (ratio < numbers.least)
        outlier = torch.where(none, (1 << fmt.outlier.index_bits) - 1, index)
    above, sizes = whole, layout.sizes
    for level in range(len(fmt.inner)):
        parts = layout.inner_sizes(level)
        shape = torch.Size(fmt.scale_shape(tuple(x.shape), layout.axis, fmt.inner[level].block))
        ratio = tuple(size // part for size, part in zip(sizes, parts, strict=True))
        above = spread(above, ratio, shape)
        u = rules.inner_scale(largest(pattern, parts), above, numbers.inner[level], word)
        above, sizes = above * u, parts
        inner.append(u)
    return Shared(shared.scale, shared.outer, tuple(inner), offset, shared.outer_offset, outlier)


def _offset(low: Tensor, whole: Tensor, shared: Shared, layout: Layout, lowest: float) -> Tensor:
    """What z or o is the projection of."""
    fmt = layout.fmt
    if fmt.zero_point is not None:
        scaled_low = torch.where(whole == 0, low * whole, low / whole)
        return lowest - scaled_low
    if shared.outer_offset is None:
        return 0 - low
    return rules.over(0 - low, layout.at_blocks(shared.outer_offset))


def _projected(
    x: Tensor, shared: Shared, numbers: BlockNumbers, layout: Layout, random: Tensor | None
) -> Scaled:
    whole, shift = whole_and_shift(shared, layout)
    fmt, dtype = layout.fmt, numbers.element.word.dtype
    units = x if shift is None else x + shift
    if numbers.rule.has_inverse:
        units = units * spread(1 / shared.scale, layout.sizes, x.shape)
    else:
        units = torch.where(whole == 0, units * whole, units / whole)
    if fmt.zero_point is not None and shared.offset is not None:
        units = units + spread(shared.offset, layout.sizes, x.shape)
    elements = numbers.element(units.to(dtype), random)
    if shared.outlier is not None and numbers.outlier is not None:
        there = outlier_mask(shared.outlier, layout, x.device)
        elements = torch.where(there, numbers.outlier(units.to(dtype), random), elements)
    return Scaled(units, elements, shared, values_of(elements, shared, layout, whole, shift))
