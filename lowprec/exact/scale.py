"""The scale rules of `lowprec.spec.Quantizer`, in exact values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from lowprec.errors import LowprecError
from lowprec.exact.arith import FLOAT32, Arithmetic
from lowprec.exact.round import project
from lowprec.exact.values import Value, exact, finite
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import FloatFormat, Format, IntFormat, floor_log2, pow2
from lowprec.spec.projection import Projection
from lowprec.spec.quantizer import GIVEN_RULES, POWER_OF_TWO_RULES, Quantizer

ONTO_SCALE = Projection(rounding="nearest-even", saturation="SatFinite")


@dataclass(frozen=True)
class Outer:
    """t, and t_o where there are offsets: None where the format has no outer scale."""

    scale: Value | None = None
    offset: Value | None = None


def block_format(quantizer: Quantizer) -> BlockFormat:
    """The block format of a quantizer that has scales; LowprecError for a plain cast."""
    if not isinstance(quantizer.format, BlockFormat):
        raise LowprecError(f"{quantizer.spell()}: a scalar format has no scale")
    return quantizer.format


def onto(x: Value, fmt: Format) -> Value:
    """P: the projection onto the format of a scale."""
    return project(x, fmt, ONTO_SCALE)


def largest_magnitude(values: Sequence[float]) -> Value:
    """A: the largest magnitude, 0 of no values; NaN where a value is NaN or Inf."""
    numbers = [exact(v) for v in values]
    if not all(map(finite, numbers)):
        return math.nan
    return max((abs(Fraction(v)) for v in numbers), default=Fraction(0))


def bounds(values: Sequence[float], fmt: BlockFormat) -> tuple[Fraction, Fraction]:
    """lo and hi of finite values."""
    numbers = [Fraction(v) for v in values]
    low, high = min(numbers, default=Fraction(0)), max(numbers, default=Fraction(0))
    if fmt.zero_point is not None:
        return min(low, Fraction(0)), max(high, Fraction(0))
    assert fmt.offset is not None
    return (low if fmt.offset.min_exact < 0 else min(low, Fraction(0))), high


def largest_value(quantizer: Quantizer) -> Fraction:
    """M."""
    fmt = block_format(quantizer)
    element = -fmt.element.min_exact if quantizer.rule == "signed" else fmt.element.max_exact
    return element * math.prod(level.scale.max_exact for level in fmt.inner)


def outer_scales(
    blocks: Sequence[Sequence[float]],
    quantizer: Quantizer,
    given: Value | None = None,
    a: Arithmetic = FLOAT32,
) -> Outer:
    """t and t_o of the blocks that make up an outer block; NaN where one of them is not finite."""
    fmt = block_format(quantizer)
    if fmt.outer is None:
        return Outer()
    scale_format = fmt.outer.scale
    if quantizer.rule in GIVEN_RULES:
        return Outer(onto(_given(quantizer, given), scale_format))
    amax = largest_magnitude([x for block in blocks for x in block])
    if not finite(amax):
        return Outer(math.nan, None if fmt.offset is None else math.nan)
    reach = fmt.scale.max_exact
    if quantizer.rule == "four_over_six":
        reach = pow2(floor_log2(reach / Fraction(3, 2)))
    if quantizer.rule != "minmax":
        largest = a.multiply(largest_value(quantizer), reach)
        return Outer(onto(a.divide(amax, largest), scale_format))
    spans = [bounds(block, fmt) for block in blocks]
    widest = max((a.subtract(high, low) for low, high in spans), default=Fraction(0))
    largest = a.multiply(fmt.element.max_exact - fmt.element.min_exact, reach)
    scale = onto(a.divide(widest, largest), scale_format)
    if fmt.offset is None:
        return Outer(scale)
    lowest = max((max(-low, Fraction(0)) for low, _ in spans), default=Fraction(0))
    return Outer(scale, onto(a.divide(lowest, fmt.offset.max_exact), scale_format))


def _given(quantizer: Quantizer, given: Value | None) -> Value:
    number = quantizer.fixed if quantizer.rule == "fixed" else given
    if number is None:
        raise LowprecError(f"{quantizer.spell()}: needs a scale")
    return exact(number)


def candidates(
    values: Sequence[float],
    quantizer: Quantizer,
    outer: Outer | None = None,
    given: Value | None = None,
    a: Arithmetic = FLOAT32,
) -> list[Value]:
    """The scales s that a rule considers for one block: of all but the searching rules one."""
    fmt, rule = block_format(quantizer), quantizer.rule
    t = None if outer is None else outer.scale
    if rule in GIVEN_RULES and fmt.outer is None:
        return [onto(_given(quantizer, given), fmt.scale)]
    amax = largest_magnitude(values)
    if not finite(amax) or t != t:
        return [math.nan]
    if rule in POWER_OF_TWO_RULES:
        return [_power_of_two(Fraction(amax), quantizer, a)]

    def ratio(x: Value, largest: Fraction) -> Value:
        r = a.divide(x, largest)
        return r if t is None else a.divide(r, t) if t else Fraction(0)

    match rule:
        case "signed":
            first = next((exact(v) for v in values if abs(exact(v)) == amax), Fraction(0))
            return [onto(ratio(first, -largest_value(quantizer)), fmt.scale)]
        case "minmax":
            low, high = bounds(values, fmt)
            span = fmt.element.max_exact - fmt.element.min_exact
            return [onto(ratio(a.subtract(high, low), span), fmt.scale)]
        case "four_over_six":
            return [onto(ratio(amax, Fraction(m)), fmt.scale) for m in (6, 4)]
        case "mse":
            r = ratio(amax, largest_value(quantizer))
            return [onto(a.multiply(f, r), fmt.scale) for f in factors(fmt.scale)]
    return [onto(ratio(amax, largest_value(quantizer)), fmt.scale)]


def factors(scale: Format) -> list[Fraction]:
    """What the rule mse multiplies r by."""
    powers_alone = isinstance(scale, FloatFormat) and scale.precision == 1
    steps = [0] if powers_alone else range(15, -1, -1)
    return [Fraction(2)] + [Fraction(16 + j, 16) * pow2(i) for i in (0, -1, -2) for j in steps]


def whole_scale(scale: Value, outer: Value | None, a: Arithmetic = FLOAT32) -> Value:
    """S = RN(s * t), or s where there is no outer scale."""
    return scale if outer is None else a.multiply(scale, outer)


def offset_of(
    values: Sequence[float], quantizer: Quantizer, whole: Value, outer: Outer, a: Arithmetic
) -> Value:
    """z or o of a block whose S is `whole`."""
    fmt = block_format(quantizer)
    if whole != whole:
        return math.nan
    low, _ = bounds(values, fmt)
    if fmt.zero_point is not None:
        scaled = a.divide(low, whole) if whole else a.multiply(low, whole)
        return onto(a.subtract(fmt.element.min_exact, scaled), fmt.zero_point)
    assert fmt.offset is not None
    offset = a.subtract(Fraction(0), low)
    if outer.offset is not None:
        offset = a.divide(offset, outer.offset) if outer.offset else Fraction(0)
    return onto(offset, fmt.offset)


def inner_scale(
    values: Sequence[float], fmt: BlockFormat, level: int, whole: Value, a: Arithmetic
) -> Value:
    """u of a part of a block, with S = `whole` above it."""
    scale = fmt.inner[level].scale
    below = [lower.scale.emax for lower in fmt.inner[level + 1 :]]
    if whole != whole:
        return math.nan
    amax = largest_magnitude(values)
    ratio = a.divide(amax, whole) if whole else Fraction(0)
    if not ratio:
        return scale.min_exact
    if not finite(ratio):
        return scale.max_exact
    exponent = floor_log2(Fraction(ratio)) - (fmt.element.emax + sum(below))
    return min(max(pow2(exponent), scale.min_exact), scale.max_exact)


def _power_of_two(amax: Fraction, quantizer: Quantizer, a: Arithmetic) -> Value:
    fmt = block_format(quantizer)
    assert isinstance(fmt.scale, FloatFormat)  # Quantizer sees to it.
    smallest, largest = fmt.scale.min_positive_exact, fmt.scale.max_exact
    exponent = _exponent(amax, quantizer, a)
    if exponent is None:
        return smallest
    return largest if exponent == math.inf else min(max(pow2(int(exponent)), smallest), largest)


def _exponent(amax: Fraction, quantizer: Quantizer, a: Arithmetic) -> float | None:
    """The exponent of a power-of-two scale; None for a scale of 0, Inf beyond the arithmetic."""
    largest = largest_value(quantizer)
    if quantizer.rule == "rceil":
        scale = a.divide(amax, largest)
        if not finite(scale):
            return math.inf
        return _ceil_log2(Fraction(scale)) if scale else None
    if not amax:
        return None
    emax = floor_log2(largest)
    match quantizer.rule:
        case "ceil":
            return _ceil_log2(amax) - emax
        case "floor2x":
            return floor_log2(amax) - emax + 1
        case "even":
            amax = _half_up(amax, _precision(block_format(quantizer).element))
    return floor_log2(amax) - emax


def _ceil_log2(x: Fraction) -> int:
    exponent = floor_log2(x)
    return exponent if x == pow2(exponent) else exponent + 1


def _half_up(x: Fraction, precision: int) -> Fraction:
    """`x` > 0 rounded to `precision` significant bits, halves up."""
    ulp = pow2(floor_log2(x) - (precision - 1))
    return math.floor(x / ulp + Fraction(1, 2)) * ulp


def _precision(element: Format) -> int:
    """Significant bits of the element's largest binade: of an integer its magnitude bits."""
    match element:
        case FloatFormat():
            return element.precision
        case IntFormat():
            return element.bits - element.signed
    raise TypeError(f"no precision: {element!r}")  # Quantizer sees to it.
