"""Functions of kernels: numerics on the bits of float32, as `lowprec.kernels` defines them.

What differs between formats comes in as constants (numbers.py), so that a kernel is compiled per
format and holds no branch for another one.
"""

from __future__ import annotations

import triton
import triton.language as tl

SIGN = tl.constexpr(-(1 << 31))
MAGNITUDE = tl.constexpr((1 << 31) - 1)
IMPLICIT = tl.constexpr(1 << 23)
INFINITY = tl.constexpr(0xFF << 23)
NAN = tl.constexpr(0x1FF << 22)


@triton.jit
def bits_of(x):
    return x.to(tl.int32, bitcast=True)


@triton.jit
def float_of(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def floor_log2(pattern):
    """Of the magnitudes with these patterns; garbage for 0. A subnormal's pattern is an integer,
    which converts exactly to a float with an exponent field."""
    subnormal = pattern < IMPLICIT
    field = tl.where(subnormal, bits_of(pattern.to(tl.float32)), pattern) >> 23
    return field - 127 - tl.where(subnormal, 149, 0)


@triton.jit
def pow2(exponent):
    """2^exponent from -149 to 127, from its bits."""
    subnormal = 1 << tl.minimum(tl.maximum(exponent + 149, 0), 23)
    return float_of(tl.where(exponent >= -126, (exponent + 127) << 23, subnormal))


@triton.jit
def end(minus, pair: tl.constexpr):
    return tl.where(minus, pair[1], pair[0])


@triton.jit
def project(x, random, g: tl.constexpr):
    """The projection of float32 numbers; `random` counts in stochastic rounding alone."""
    bits = bits_of(x)
    pattern = bits & MAGNITUDE
    minus = bits < 0
    if g.magic != 0.0:
        low = bits_of((float_of(pattern) + g.magic) - g.magic)
        high = (pattern + g.half_unit + ((pattern >> g.shift) & 1)) & g.kept
        rounded = tl.where(pattern < g.fixed, low, high)
    else:
        rounded = _rounded(pattern, minus, random, g)
    result = tl.where(rounded > end(minus, g.bound), end(minus, g.overflow), rounded | bits & SIGN)
    result = tl.where((rounded == 0) | (pattern == 0), end(minus, g.zero), result)
    result = tl.where(pattern == INFINITY, end(minus, g.infinity), result)
    return float_of(tl.where(pattern > INFINITY, NAN, result))


@triton.jit
def _rounded(pattern, minus, random, g: tl.constexpr):
    """Patterns of the rounded magnitudes, by any rounding."""
    exponent = floor_log2(pattern)
    ulp = tl.maximum(exponent, -126) - 23
    step = tl.maximum(exponent - (g.precision - 1), g.quantum) - ulp
    shift = tl.minimum(tl.maximum(step, 0), 23)
    significand = pattern & (IMPLICIT - 1) | tl.where(pattern >= IMPLICIT, IMPLICIT, 0)
    unit = (shift * 0 + 1) << shift
    discarded = significand & (unit - 1)

    below = pattern < g.least
    odd = significand >> shift
    if g.has_code_bias:
        odd = exponent + g.code_bias
    is_odd = ((odd & 1) != 0) & (pattern >= g.least)
    inexact = tl.where(below, pattern > 0, discarded > 0)
    above = tl.where(below, pattern > g.half, discarded > unit - discarded)
    tie = tl.where(below, (pattern == g.half) & g.half_is_tie, discarded == unit - discarded)

    if g.rounding == "nearest-even":
        away = above | tie & is_odd
    elif g.rounding == "nearest-away":
        away = above | tie & inexact
    elif g.rounding == "toward-zero":
        away = inexact & (pattern < 0)
    elif g.rounding == "up":
        away = inexact & (minus == 0)
    elif g.rounding == "down":
        away = inexact & minus
    elif g.rounding == "to-odd":
        away = inexact & (is_odd == 0)
    else:
        away = _stochastic(discarded, shift, significand, ulp, below, random, g)
    least: tl.constexpr = 0 if g.has_zero else g.least
    toward_zero = tl.where(below, least, pattern - discarded)
    farther = tl.where(below, g.least, pattern - discarded + unit)
    return tl.where(away, farther, toward_zero)


@triton.jit
def _shifted(x, by):
    """floor(x * 2^by) of int64."""
    left = x << tl.minimum(tl.maximum(by, 0), 62)
    return tl.where(by >= 0, left, x >> tl.minimum(tl.maximum(-by, 0), 62))


@triton.jit
def _stochastic(discarded, shift, significand, ulp, below, random, g: tl.constexpr):
    """floor(fraction * 2^n) + random >= 2^n."""
    n: tl.constexpr = g.random_bits
    fraction = _shifted(discarded.to(tl.int64), n - shift.to(tl.int64))
    by = tl.where(below, ulp.to(tl.int64) + (n - g.least_exponent), 0)
    lowest = _shifted(significand.to(tl.int64), by) // g.least_significand
    return tl.where(below, lowest, fraction) + random >= (1 << n)


@triton.jit
def encode(value, c: tl.constexpr):
    """Code points, int32, of values of a format; NaN is 0 where it has none."""
    bits = bits_of(value)
    pattern = bits & MAGNITUDE
    integer = pattern & (IMPLICIT - 1) | tl.where(pattern >= IMPLICIT, IMPLICIT, 0)
    ulp = tl.maximum(pattern >> 23, 1) - 150
    if c.is_integer:
        by = ulp - c.step
        left = integer << tl.minimum(tl.maximum(by, 0), 31)
        code = tl.where(by >= 0, left, integer >> tl.minimum(tl.maximum(-by, 0), 31))
        code = tl.where(bits < 0, -code, code)
    else:
        binade = tl.maximum(floor_log2(pattern), c.emin) - c.emin
        by = ulp - (binade + c.step)
        left = integer << tl.minimum(tl.maximum(by, 0), 31)
        code = tl.where(by >= 0, left, integer >> tl.minimum(tl.maximum(-by, 0), 31))
        code = code + (binade << (c.precision - 1))
        if not c.subnormals:
            code = code - (1 << (c.precision - 1))
        code = tl.where(pattern == 0, 0, code)
        code = tl.where(pattern == INFINITY, c.max_code + 1, code)
        if c.signed:
            code = tl.where(bits < 0, code | -(1 << (c.bits - 1)), code)
    code = tl.where(pattern > INFINITY, c.nan, code)
    if c.bits < 32:
        code = code & ((1 << c.bits) - 1)
    return code


@triton.jit
def decode(code, c: tl.constexpr):
    """Values, float32, of code points, int32."""
    if c.is_integer:
        integer = code
        if c.signed:
            integer = (code << (32 - c.bits)) >> (32 - c.bits)
        return integer.to(tl.float32) * pow2(integer * 0 + c.step)
    magnitude_bits: tl.constexpr = c.bits - 1 if c.signed else c.bits
    mask: tl.constexpr = (1 << magnitude_bits) - 1
    magnitude = code & mask
    implicit: tl.constexpr = 1 << (c.precision - 1)
    field = magnitude >> (c.precision - 1)
    significand = magnitude & (implicit - 1)
    if c.subnormals:
        significand += tl.where(field > 0, implicit, 0)
        field = tl.maximum(field, 1)
    elif c.zero:
        significand += tl.where(magnitude > 0, implicit, 0)
    else:
        significand += implicit
    value = significand.to(tl.float32) * pow2(field - (c.bias + c.precision - 1))
    pattern = bits_of(value)
    if c.has_nan or c.infinity:
        pattern = tl.where(magnitude > c.max_code, NAN, pattern)
    if c.infinity:
        pattern = tl.where(magnitude == c.max_code + 1, INFINITY, pattern)
    if c.signed:
        pattern = tl.where(code != magnitude, pattern | SIGN, pattern)
        if c.nan_is_minus_zero:
            pattern = tl.where((code != magnitude) & (magnitude == 0), NAN, pattern)
    return float_of(pattern)


@triton.jit
def block_scale(amax, outer, r: tl.constexpr, has_outer: tl.constexpr):
    """s, from the patterns of the blocks' largest magnitudes; `outer` is t, where there is one."""
    number = float_of(amax)
    if r.divides:
        number = tl.div_rn(number, number * 0 + r.largest)
    if r.power_of_two:
        scale = _power_of_two(bits_of(number), r)
    else:
        if has_outer:
            number = tl.where(outer == 0, 0.0, tl.div_rn(number, number * 0 + outer))
        scale = project(number, 0, r.onto)
    return float_of(tl.where(amax >= INFINITY, NAN, bits_of(scale)))


@triton.jit
def _power_of_two(pattern, r: tl.constexpr):
    normalised = tl.where(pattern < IMPLICIT, bits_of(pattern.to(tl.float32)), pattern)
    trailing = normalised & (IMPLICIT - 1)
    exponent = floor_log2(pattern) + ((trailing + r.carry) >> 23) - r.emax
    exponent = tl.where(pattern == 0, r.lowest, exponent)
    return pow2(tl.minimum(tl.maximum(exponent, r.lowest), r.highest))


@triton.jit
def units_of(x, whole, inverse, has_inverse: tl.constexpr):
    """RN(x / S), with the sign of x * S where S is zero."""
    if has_inverse:
        return x * inverse
    return tl.where(whole == 0, x * whole, tl.div_rn(x, whole + x * 0))
