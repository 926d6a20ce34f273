"""The scale rules of `lowprec.spec.Quantizer`, on the patterns of largest magnitudes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from lowprec.kernels.arith import quotient
from lowprec.kernels.element import Projector, projector
from lowprec.kernels.word import FLOAT32, floor_log2_of, require
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import FloatFormat, Format, IntFormat, floor_log2
from lowprec.spec.projection import Projection
from lowprec.spec.quantizer import POWER_OF_TWO_RULES, Quantizer

# What scales are projected with, whatever the elements are.
ONTO_SCALE = Projection(rounding="nearest-even", saturation="SatFinite")


@dataclass(frozen=True)
class ScaleRule:
    """A rule for one block format, as numbers.

    largest: M as a float64. Powers of two: the exponent is that of A (rceil: of RN(A / M)) after
    adding `carry` to the trailing significand, less `emax`, clamped to `exponents`. Otherwise the
    scale is RN(A / M) (over t, with a tensor scale) through `onto_scale`.
    """

    largest: float
    power_of_two: bool
    divides: bool
    carry: int
    emax: int
    exponents: tuple[int, int]
    onto_scale: Projector | None
    onto_tensor_scale: Projector | None
    tensor_divisor: float  # RN(M * scale.max)


@lru_cache(maxsize=1024)
def rule_of(quantizer: Quantizer) -> ScaleRule:
    """The numbers of a block quantizer's rule; LowprecError if float32 does not hold its scales."""
    fmt, rule = quantizer.format, quantizer.rule
    assert isinstance(fmt, BlockFormat)
    outer = fmt.outer.scale if fmt.outer else None
    for scale in (fmt.scale, outer):
        if scale is not None:
            require(torch.float32, scale)
    power_of_two = rule in POWER_OF_TWO_RULES
    carry, exponents = 0, (0, 0)
    if power_of_two:
        carry = _carry(rule, fmt.element)
        assert isinstance(fmt.scale, FloatFormat)
        exponents = (floor_log2(fmt.scale.min_positive_exact), fmt.scale.emax)
    return ScaleRule(
        largest=float(fmt.element.max_exact),
        power_of_two=power_of_two,
        divides=rule in ("rceil", "amax"),
        carry=carry,
        emax=0 if rule == "rceil" else fmt.element.emax - (rule == "floor2x"),
        exponents=exponents,
        onto_scale=None if power_of_two else projector(fmt.scale, ONTO_SCALE, FLOAT32),
        onto_tensor_scale=(projector(outer, ONTO_SCALE, FLOAT32) if outer else None),
        tensor_divisor=FLOAT32.nearest(fmt.element.max_exact * fmt.scale.max_exact),
    )


def _carry(rule: str, element: Format) -> int:
    """What, added to a pattern, makes its exponent the rule's: none, anything, or half an ulp."""
    if rule in ("floor", "floor2x"):
        return 0
    if rule in ("ceil", "rceil"):
        return (1 << FLOAT32.trailing) - 1
    if isinstance(element, FloatFormat):
        precision = element.precision
    elif isinstance(element, IntFormat):
        precision = element.bits - element.signed
    else:
        raise TypeError(f"no precision: {element!r}")  # Quantizer sees to it.
    return (1 << FLOAT32.trailing) >> precision


def tensor_scale(amax: Tensor, rule: ScaleRule) -> Tensor | None:
    """t, float32, from the pattern of the tensor's largest magnitude; None without one."""
    if rule.onto_tensor_scale is None:
        return None
    return _nan_where_not_finite(
        rule.onto_tensor_scale(quotient(_float(amax), rule.tensor_divisor)), amax
    )


def block_scale(amax: Tensor, rule: ScaleRule, tensor: Tensor | None) -> Tensor:
    """s, float32, from the patterns of the blocks' largest magnitudes, and t."""
    scale = _float(amax)
    if rule.divides:
        scale = quotient(scale, rule.largest)
    if rule.power_of_two:
        return _nan_where_not_finite(_power_of_two(scale.view(torch.int32), rule), amax)
    if tensor is not None:
        scale = torch.where(tensor == 0, 0.0, scale / tensor)
    assert rule.onto_scale is not None
    return _nan_where_not_finite(rule.onto_scale(scale), amax)


def _power_of_two(pattern: Tensor, rule: ScaleRule) -> Tensor:
    # With the significand of a subnormal shifted up to the implicit bit, one addition rounds all.
    exponent = floor_log2_of(pattern, FLOAT32)
    trailing = _normalised(pattern) & ((1 << FLOAT32.trailing) - 1)
    exponent = exponent + ((trailing + rule.carry) >> FLOAT32.trailing) - rule.emax
    exponent = torch.where(pattern == 0, rule.exponents[0], exponent).clamp(*rule.exponents)
    exponent = exponent.to(torch.int32)
    normal = (exponent + FLOAT32.bias) << FLOAT32.trailing
    subnormal = 1 << (exponent - (FLOAT32.emin - FLOAT32.trailing)).clamp(0, FLOAT32.trailing)
    return torch.where(exponent >= FLOAT32.emin, normal, subnormal).view(torch.float32)


def _normalised(pattern: Tensor) -> Tensor:
    """A pattern of the same significand with its leading one implicit."""
    subnormal = pattern < 1 << FLOAT32.trailing
    return torch.where(subnormal, pattern.to(torch.float32).view(torch.int32), pattern)


def whole_scale(scale: Tensor, tensor: Tensor | None) -> Tensor:
    """S = RN(s * t), or s."""
    return scale if tensor is None else scale * tensor


def _float(pattern: Tensor) -> Tensor:
    return pattern.view(torch.float32)


def _nan_where_not_finite(scale: Tensor, amax: Tensor) -> Tensor:
    return torch.where(amax >= FLOAT32.infinity, torch.nan, scale)
