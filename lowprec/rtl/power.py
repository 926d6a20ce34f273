"""Scales that are powers of two: the rules that choose their exponents, and inner scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amaranth.hdl import C, Cat, Module, Mux, Value

from lowprec.exact.scale import largest_value
from lowprec.exact.values import code_of
from lowprec.rtl.real import BIAS, EXPONENT, PRECISION, Real, constant, named
from lowprec.rtl.scales import ONE, largest_of, precision_of_element
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import FloatFormat, floor_log2
from lowprec.spec.quantizer import Quantizer


def power_scale(m: Module, largest: Real, quantizer: Quantizer) -> tuple[Value, Real]:
    """The code of s and its value by a power-of-two rule."""
    assert isinstance(quantizer.format, BlockFormat)
    fmt = quantizer.format.scale
    assert isinstance(fmt, FloatFormat)
    low, high = floor_log2(fmt.min_positive_exact), floor_log2(fmt.max_exact)
    exp = named(m, _exponent(largest, quantizer), "power", EXPONENT)
    clamped = Mux(largest.zero | (exp < low), low, Mux(exp > high, high, exp))
    exp = named(m, clamped, "exp", EXPONENT)
    # A code per binade: consecutive ones.
    code = exp - low + code_of(fmt.min_positive_exact, fmt)
    no = C(0, 1)
    return named(m, code, "code", fmt.bits), Real(no, exp, C(ONE, PRECISION), no, no, no)


def _exponent(a: Real, quantizer: Quantizer) -> Value:
    assert isinstance(quantizer.format, BlockFormat)
    largest = largest_value(quantizer)
    emax, trailing = floor_log2(largest), a.sig[:-1]
    match quantizer.rule:
        case "floor2x":
            return a.exp - emax + 1
        case "ceil":
            return a.exp - emax + trailing.any()
        case "even":
            bits = precision_of_element(quantizer.format.element)
            return a.exp - emax + a.sig[PRECISION - 1 - bits : -1].all()
        case "rceil":
            top = int(constant(largest).sig.value)
            # Where A / M is a subnormal of float32, what lies next to 2^-127 rounds to it.
            lowest = a.exp - emax <= -BIAS
            return a.exp - emax + (a.sig > Mux(lowest, top + 1, top))
    return a.exp - emax


def inner_scales(
    m: Module,
    fmt: BlockFormat,
    maxima: Sequence[Value],
    real: Callable[[Value, str], Real],
    scale: Real,
) -> tuple[list[Value], dict[str, Value]]:
    """The exponent of S for every part, and the codes of each level's scales.

    maxima: largest magnitudes of the finest parts, as codes; real: a code's number.
    """
    lanes = len(maxima) * int(fmt.inner[-1].block[0]) if fmt.inner else 1
    exps, codes = [scale.exp], {}
    for at, level in enumerate(fmt.inner):
        count = lanes // int(level.block[0])
        size, repeat = len(maxima) // count, count // len(exps)
        below = fmt.element.emax + sum(lower.scale.emax for lower in fmt.inner[at + 1 :])
        low, high = floor_log2(level.scale.min_exact), level.scale.emax
        found, fields = [], []
        for k in range(count):
            name = f"inner{at}_{k}"
            a = real(largest_of(m, maxima[k * size : (k + 1) * size], name), name)
            above = exps[k // repeat]
            exp = a.exp - above - (a.sig < scale.sig) - below
            exp = named(m, exp, f"{name}_floor", EXPONENT)
            least = a.zero | scale.zero | (exp < low)
            u = named(m, Mux(least, low, Mux(exp > high, high, exp)), f"{name}_u", EXPONENT)
            found.append(named(m, above + u, f"{name}_sum", EXPONENT))
            fields.append(named(m, u - low, f"{name}_code", level.scale.bits))
        exps, codes[f"inner{at}"] = found, Cat(*fields)
    return exps, codes
