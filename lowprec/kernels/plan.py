"""Quantizers as the numbers that the CPU core takes, or None where it does not cover them."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

from lowprec.kernels.block import numbers_of
from lowprec.kernels.core import CCode, CGrid, CRule, Pair
from lowprec.kernels.element import Projector, projector
from lowprec.kernels.grid import UNBOUNDED, Grid
from lowprec.kernels.scale import ScaleRule
from lowprec.kernels.word import FLOAT32, holds
from lowprec.spec.block import Block, BlockFormat
from lowprec.spec.format import FloatFormat, Format, IntFormat, pow2
from lowprec.spec.quantizer import POWER_OF_TWO_RULES, Quantizer


@dataclass(frozen=True)
class Plan:
    """A quantizer as the core takes it; block, rule and outer (t as the scale of one large block,
    whose M is the divisor) are None for a plain cast. given: t, where the quantizer fixes it."""

    format: Format | BlockFormat
    grid: CGrid
    code: CCode | None
    has_nan: bool
    block: Block | None = None
    rule: CRule | None = None
    outer: CRule | None = None
    given: float | None = None

    @cached_property
    def is_random(self) -> bool:
        return self.grid.random != 0

    @cached_property
    def addresses(self) -> tuple[int, int, int]:
        """Of grid, rule and code, 0 for None; good as long as the plan is."""
        parts = (self.grid, self.rule, self.code)
        return tuple(0 if part is None else ctypes.addressof(part) for part in parts)


@lru_cache(maxsize=1024)
def plan_of(quantizer: Quantizer) -> Plan | None:
    fmt = quantizer.format
    element = fmt.element if isinstance(fmt, BlockFormat) else fmt
    if not holds(torch.float32, element):
        return None
    grid = _grid(projector(element, quantizer.projection, FLOAT32))
    if grid is None:
        return None
    code = _code(element)
    if not isinstance(fmt, BlockFormat):
        return Plan(fmt, grid, code, fmt.has_nan)
    if not _is_simple(quantizer, fmt):
        return None
    numbers = numbers_of(quantizer).rule
    rule, given = _rule(numbers), _given(quantizer, numbers)
    outer = _outer_rule(numbers) if given is None else None
    if rule is None or (outer is None and given is None) != (fmt.outer is None):
        return None
    return Plan(fmt, grid, code, element.has_nan, fmt.block, rule, outer, given)


def _is_simple(quantizer: Quantizer, fmt: BlockFormat) -> bool:
    """One scale for one-dimensional blocks, with one for the tensor at most."""
    flat = isinstance(fmt.block, str) or len(fmt.block) == 1
    outer = fmt.outer is None or fmt.outer.block == "tensor"
    simple = flat and outer and fmt.is_only_scaled
    # A fixed outer scale leaves the block's to the rule amax.
    given = quantizer.rule == "fixed" and fmt.outer is not None
    return simple and (given or quantizer.rule in (*POWER_OF_TWO_RULES, "amax"))


def _given(quantizer: Quantizer, rule: ScaleRule) -> float | None:
    if quantizer.fixed is None or rule.onto_outer is None:
        return None
    return float(rule.onto_outer(torch.tensor(quantizer.fixed, dtype=rule.word.dtype)))


@lru_cache(maxsize=1024)
def _grid(element: Projector) -> CGrid | None:
    g = element.numbers
    if not isinstance(g, Grid) or g.word is not FLOAT32:
        return None
    # Below its smallest value stochastic rounding is in units of 2^-31.
    random = g.rounding == "stochastic" and (g.random_bits or 32) < 32 and g.quantum <= 126
    if not random and g.rounding != "nearest-even":
        return None
    subnormals = g.has_zero and (g.least_significand, g.least_exponent) == (1, g.quantum)
    unbounded = g.precision == UNBOUNDED
    shift = 0 if unbounded else FLOAT32.trailing + 1 - g.precision
    # An integer's values all lie where the addition of `magic` rounds them.
    fixed = g.quantum + (FLOAT32.trailing if unbounded else g.precision - 1)
    if not subnormals or shift > FLOAT32.trailing - 1 or not (-126 <= fixed <= 127):
        return None
    if not -126 <= g.quantum + FLOAT32.trailing <= 127 or (
        unbounded and max(g.ends.bound) >= FLOAT32.pattern(pow2(fixed))
    ):
        return None
    if random and g.quantum < -126:
        return None
    saturates = (unbounded or shift > 0) and _saturates(g, shift)
    return CGrid(
        float(pow2(g.quantum + FLOAT32.trailing)),
        FLOAT32.pattern(pow2(fixed)),
        shift,
        (1 << shift >> 1) - 1 if shift else 0,
        1 if shift else 0,
        -(1 << shift),
        *(Pair(*pair) for pair in (g.ends.bound, g.ends.overflow, g.ends.infinity, g.ends.zero)),
        saturates,
        saturates and g.ends.zero[1] != 0,
        (0xFFFFFFFF << (32 - (g.random_bits or 0))) & 0xFFFFFFFF if random else 0,
        float(pow2(-g.quantum)) if random else 0.0,
        float(pow2(g.quantum)) if random else 0.0,
        -0.0 if g.ends.zero[1] else 0.0,
    )


def _saturates(g: Grid, shift: int) -> bool:
    """Whether all that overflows goes to a bound, 2^shift times which is finite, and -0 exists only
    where both signs are alike."""
    ends = g.ends
    limits = (ends.bound[0], ends.bound[1] | g.word.sign if ends.bound[1] else 0)
    alike = ends.bound[0] == ends.bound[1] and ends.zero == (0, g.word.sign)
    plain = ends.overflow == ends.infinity == limits and (alike or ends.zero == (0, 0))
    exponent = max(ends.bound) >> g.word.trailing
    return plain and exponent - g.word.bias + shift < g.word.bias


def _code(fmt: Format) -> CCode | None:
    """How code points follow from values, of a format of up to 8 bits."""
    if fmt.bits > 8 or not isinstance(fmt, (FloatFormat, IntFormat)):
        return None
    is_float = isinstance(fmt, FloatFormat)
    signed = is_float and fmt.signed
    return CCode(
        (1 << fmt.bits) - 1,
        not is_float,
        1 << (fmt.bits - 1) if signed else 0,
        (fmt.infinity_code or 0) if is_float else 0,
        (fmt.nan_code or 0) if is_float else 0,
    )


def _rule(rule: ScaleRule) -> CRule | None:
    onto = CGrid() if rule.power_of_two else _grid(rule.onto_scale)
    largest = ctypes.c_float(rule.largest)
    lowest, highest = rule.exponents
    exact = not rule.divides or largest.value == rule.largest
    # The inverses of powers of two must be numbers of float32.
    if onto is None or not exact or lowest < -127 or highest > 127:
        return None
    return CRule(
        rule.power_of_two, rule.divides, largest, rule.carry, rule.emax, lowest, highest,
        rule.onto_outer is not None, onto,
    )  # fmt: skip


def _outer_rule(rule: ScaleRule) -> CRule | None:
    onto = rule.onto_outer and _grid(rule.onto_outer)
    if onto is None or math.isinf(rule.outer_divisor):
        return None
    return CRule(False, True, rule.outer_divisor, 0, 0, 0, 0, False, onto)
