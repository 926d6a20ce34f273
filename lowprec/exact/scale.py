"""The scale rules of `lowprec.spec.Quantizer`, and float32 arithmetic on exact values."""

from __future__ import annotations

import math
from fractions import Fraction

from lowprec.errors import LowprecError
from lowprec.exact.round import project
from lowprec.exact.values import Value, finite, negative
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import FloatFormat, Format, IntFormat, floor_log2, pow2
from lowprec.spec.projection import Projection
from lowprec.spec.quantizer import Quantizer

FLOAT32 = FloatFormat(
    name="float32", kind="float", bits=32, precision=24, bias=127, infinity=True, nan="ieee"
)
IEEE = Projection(rounding="nearest-even", saturation="OvfInf")
ONTO_SCALE = Projection(rounding="nearest-even", saturation="SatFinite")


def multiply(a: Value, b: Value) -> Value:
    """RN(a * b): the float32 product as IEEE 754 has it, signs and special values included."""
    if a != a or b != b or (not finite(a) and b == 0) or (a == 0 and not finite(b)):
        return math.nan
    minus = negative(a) != negative(b)
    if not finite(a) or not finite(b):
        return -math.inf if minus else math.inf
    return _rounded(abs(Fraction(a)) * abs(Fraction(b)), minus)


def divide(a: Value, b: Value) -> Value:
    """RN(a / b): the float32 quotient as IEEE 754 has it, signs and special values included."""
    if a != a or b != b or (a == 0 and b == 0) or not (finite(a) or finite(b)):
        return math.nan
    minus = negative(a) != negative(b)
    if b == 0 or not finite(a):
        return -math.inf if minus else math.inf
    return _rounded(abs(Fraction(a)) / abs(Fraction(b)) if finite(b) else Fraction(0), minus)


def _rounded(magnitude: Fraction, minus: bool) -> Value:
    if not magnitude:
        return -0.0 if minus else Fraction(0)
    return project(-magnitude if minus else magnitude, FLOAT32, IEEE)


def block_format(quantizer: Quantizer) -> BlockFormat:
    """The block format of a quantizer that has scales; LowprecError for a plain cast."""
    if not isinstance(quantizer.format, BlockFormat):
        raise LowprecError(f"{quantizer.spell()}: a scalar format has no scale")
    return quantizer.format


def tensor_scale(amax: Value, quantizer: Quantizer) -> Value | None:
    """t, from the largest magnitude of the tensor (NaN if that is not finite), or None."""
    fmt = block_format(quantizer)
    if fmt.outer is None:
        return None
    if not finite(amax):
        return math.nan
    largest = multiply(fmt.element.max_exact, fmt.scale.max_exact)
    return project(divide(amax, largest), fmt.outer.scale, ONTO_SCALE)


def block_scale(amax: Value, quantizer: Quantizer, tensor: Value | None = None) -> Value:
    """s, from the largest magnitude of the block (NaN if that is not finite) and t."""
    fmt = block_format(quantizer)
    if not finite(amax) or tensor != tensor:
        return math.nan
    if quantizer.rule == "amax":
        scale = divide(amax, fmt.element.max_exact)
        if tensor is not None:
            scale = divide(scale, tensor) if tensor else Fraction(0)
        return project(scale, fmt.scale, ONTO_SCALE)
    assert isinstance(fmt.scale, FloatFormat)  # Quantizer sees to it.
    smallest, largest = fmt.scale.min_positive_exact, fmt.scale.max_exact
    exponent = _exponent(Fraction(amax), quantizer.rule, fmt.element)
    if exponent is None:
        return smallest
    return largest if exponent == math.inf else min(max(pow2(int(exponent)), smallest), largest)


def whole_scale(scale: Value, tensor: Value | None) -> Value:
    """S = RN(s * t), or s where there is no tensor scale."""
    return scale if tensor is None else multiply(scale, tensor)


def _exponent(amax: Fraction, rule: str, element: Format) -> float | None:
    """The exponent of a power-of-two scale; None for a scale of 0, Inf beyond float32."""
    if rule == "rceil":
        scale = divide(amax, element.max_exact)
        if not finite(scale):
            return math.inf
        return _ceil_log2(Fraction(scale)) if scale else None
    if not amax:
        return None
    if rule == "ceil":
        return _ceil_log2(amax) - element.emax
    if rule == "even":
        amax = _half_up(amax, _precision(element))
    return floor_log2(amax) - element.emax + (rule == "floor2x")


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
