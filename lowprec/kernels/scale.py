"""The scale rules of `lowprec.spec.Quantizer`, on what blocks have largest and smallest."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from lowprec.kernels.arith import quotient
from lowprec.kernels.element import Projector, projector
from lowprec.kernels.word import Word, floor_log2_of, require
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import FloatFormat, Format, IntFormat, floor_log2, pow2
from lowprec.spec.projection import Projection
from lowprec.spec.quantizer import POWER_OF_TWO_RULES, Quantizer

# What scales are projected with, whatever the elements are.
ONTO_SCALE = Projection(rounding="nearest-even", saturation="SatFinite")


@dataclass(frozen=True)
class ScaleRule:
    """A rule for one block format, as numbers.

    largest: what A (minmax: hi - lo; signed: -v) is divided by, as a float64. Powers of two: the
    exponent is that of A (rceil: of RN(A / M)) after adding `carry` to the trailing significand,
    less `emax`, clamped to `exponents`. Otherwise the scale is RN(A / M), over t where there is
    one, times each of `factors` or over each of `divisors`, through `onto_scale`.
    """

    word: Word
    largest: float
    power_of_two: bool
    divides: bool
    carry: int
    emax: int
    exponents: tuple[int, int]
    has_inverse: bool  # every scale is a power of two whose inverse the word holds
    factors: tuple[float, ...]
    divisors: tuple[float, ...]
    onto_scale: Projector
    onto_outer: Projector | None
    outer_divisor: float  # RN(M * R)
    onto_offset: Projector | None
    outer_offset_divisor: float  # R_o


@dataclass(frozen=True)
class InnerRule:
    """An inner level as numbers: the emax of what lies below it, and the range of its exponents."""

    below: int
    lowest: int
    highest: int


@lru_cache(maxsize=1024)
def rule_of(quantizer: Quantizer, word: Word) -> ScaleRule:
    """A block quantizer's rule as numbers; LowprecError if the word does not hold its scales."""
    fmt, rule = quantizer.format, quantizer.rule
    assert isinstance(fmt, BlockFormat)
    for key, part in fmt.parts.items():
        if "element" not in key:
            require(word.dtype, part)
    outer = fmt.outer.scale if fmt.outer else None
    power_of_two = rule in POWER_OF_TWO_RULES
    carry, exponents = 0, (0, 0)
    if power_of_two:
        carry = _carry(rule, fmt.element, word)
        assert isinstance(fmt.scale, FloatFormat)
        exponents = (floor_log2(fmt.scale.min_positive_exact), fmt.scale.emax)
    largest, emax = _largest(fmt, rule)
    reach = fmt.scale.max_exact
    if rule == "four_over_six":
        reach = pow2(floor_log2(reach / Fraction(3, 2)))
    shared = fmt.zero_point or fmt.offset
    return ScaleRule(
        word=word,
        largest=float(largest),
        power_of_two=power_of_two,
        divides=not power_of_two or rule == "rceil",
        carry=carry,
        emax=0 if rule == "rceil" else emax - (rule == "floor2x"),
        exponents=exponents,
        has_inverse=power_of_two and not fmt.inner and exponents[0] >= -word.bias,
        factors=_factors(fmt.scale) if rule == "mse" else (),
        divisors=(6.0, 4.0) if rule == "four_over_six" else (),
        onto_scale=projector(fmt.scale, ONTO_SCALE, word),
        onto_outer=projector(outer, ONTO_SCALE, word) if outer else None,
        outer_divisor=word.nearest(largest * reach),
        onto_offset=projector(shared, ONTO_SCALE, word) if shared else None,
        outer_offset_divisor=float(fmt.offset.max_exact) if fmt.offset else 1.0,
    )


def _largest(fmt: BlockFormat, rule: str) -> tuple[Fraction, int]:
    """M, and emax."""
    inner = Fraction(1)
    for level in fmt.inner:
        inner *= level.scale.max_exact
    emax = floor_log2(fmt.element.max_exact * inner)
    if rule == "signed":
        return -fmt.element.min_exact * inner, emax
    if rule == "minmax":
        return fmt.element.max_exact - fmt.element.min_exact, emax
    return fmt.element.max_exact * inner, emax


def _carry(rule: str, element: Format, word: Word) -> int:
    """What, added to a pattern, makes its exponent the rule's: none, anything, or half an ulp."""
    if rule in ("floor", "floor2x"):
        return 0
    if rule in ("ceil", "rceil"):
        return (1 << word.trailing) - 1
    if isinstance(element, FloatFormat):
        precision = element.precision
    elif isinstance(element, IntFormat):
        precision = element.bits - element.signed
    else:
        raise TypeError(f"no precision: {element!r}")  # Quantizer sees to it.
    return (1 << word.trailing) >> precision


def _factors(scale: Format) -> tuple[float, ...]:
    if isinstance(scale, FloatFormat) and scale.precision == 1:
        return (2.0, 1.0, 0.5, 0.25)
    return (2.0, *((1 + j / 16) * 2.0**-i for i in range(3) for j in range(15, -1, -1)))


def outer_scale(amax: Tensor, rule: ScaleRule, span: Tensor | None = None) -> Tensor:
    """t, from the patterns of the outer blocks' largest magnitudes, or from their largest spans."""
    assert rule.onto_outer is not None
    number = amax.view(rule.word.dtype) if span is None else span
    return _nan_where_not_finite(rule.onto_outer(quotient(number, rule.outer_divisor)), amax, rule)


def outer_offset(amax: Tensor, lowest: Tensor, rule: ScaleRule) -> Tensor:
    """t_o, from the largest -lo of the outer blocks."""
    assert rule.onto_outer is not None
    scale = rule.onto_outer(quotient(lowest.clamp(min=0), rule.outer_offset_divisor))
    return _nan_where_not_finite(scale, amax, rule)


def block_scales(
    amax: Tensor, rule: ScaleRule, outer: Tensor | None, number: Tensor | None = None
) -> list[Tensor]:
    """The scales s that the rule considers, from the patterns of the blocks' largest magnitudes.

    outer: t at every block. number: what is divided by M where that is not A.
    """
    number = amax.view(rule.word.dtype) if number is None else number
    if rule.power_of_two:
        number = quotient(number, rule.largest) if rule.divides else number
        scale = _power_of_two(number.view(rule.word.int_dtype), rule)
        return [_nan_where_not_finite(scale, amax, rule)]
    ratios = [_ratio(number, d, outer) for d in rule.divisors or (rule.largest,)]
    if rule.factors:
        ratios = [ratios[0] * factor for factor in rule.factors]
    return [_nan_where_not_finite(rule.onto_scale(r), amax, rule) for r in ratios]


def _ratio(number: Tensor, divisor: float, outer: Tensor | None) -> Tensor:
    """RN(number / divisor), over t where there is one; 0 where t is."""
    ratio = quotient(number, divisor)
    return ratio if outer is None else over(ratio, outer)


def over(x: Tensor, scale: Tensor) -> Tensor:
    """RN(x / scale), and 0 where the scale is."""
    return torch.where(scale == 0, 0.0, x / scale)


def _power_of_two(pattern: Tensor, rule: ScaleRule) -> Tensor:
    # With the significand of a subnormal shifted up to the implicit bit, one addition rounds all.
    word = rule.word
    exponent = floor_log2_of(pattern, word)
    trailing = _normalised(pattern, word) & ((1 << word.trailing) - 1)
    exponent = exponent + ((trailing + rule.carry) >> word.trailing) - rule.emax
    exponent = torch.where(pattern == 0, rule.exponents[0], exponent).clamp(*rule.exponents)
    return pow2_of(exponent.to(word.int_dtype), word)


def pow2_of(exponent: Tensor, word: Word) -> Tensor:
    """2^exponent, subnormal or normal, from its bits."""
    normal = (exponent + word.bias) << word.trailing
    subnormal = 1 << (exponent - (word.emin - word.trailing)).clamp(0, word.trailing)
    return torch.where(exponent >= word.emin, normal, subnormal).view(word.dtype)


def _normalised(pattern: Tensor, word: Word) -> Tensor:
    """A pattern of the same significand with its leading one implicit."""
    subnormal = pattern < 1 << word.trailing
    return torch.where(subnormal, pattern.to(word.dtype).view(word.int_dtype), pattern)


def inner_rules(fmt: BlockFormat) -> tuple[InnerRule, ...]:
    found, below = [], fmt.element.emax
    for level in reversed(fmt.inner):
        found.append(InnerRule(below, floor_log2(level.scale.min_exact), level.scale.emax))
        below += level.scale.emax
    return tuple(reversed(found))


def inner_scale(amax: Tensor, whole: Tensor, rule: InnerRule, word: Word) -> Tensor:
    """u of the parts whose largest magnitudes are the patterns `amax`, with S above them."""
    pattern = over(amax.view(word.dtype), whole).view(word.int_dtype)
    exponent = floor_log2_of(pattern, word) - rule.below
    exponent = torch.where(pattern == 0, rule.lowest, exponent).clamp(rule.lowest, rule.highest)
    return torch.where(whole.isnan(), torch.nan, pow2_of(exponent.to(word.int_dtype), word))


def whole_scale(scale: Tensor, outer: Tensor | None) -> Tensor:
    """S = RN(s * t), or s."""
    return scale if outer is None else scale * outer


def _nan_where_not_finite(scale: Tensor, amax: Tensor, rule: ScaleRule) -> Tensor:
    return torch.where(amax >= rule.word.infinity, torch.nan, scale)
