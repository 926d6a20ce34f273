"""Projection in hardware: a Real onto a format, as `lowprec.spec.Projection` says."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from math import isfinite

from amaranth.hdl import C, Cat, Module, Mux, Signal, Value

from lowprec.errors import LowprecError
from lowprec.exact.round import project
from lowprec.exact.values import code_of
from lowprec.rtl.real import EXPONENT, PRECISION, Real, named, shifted_right
from lowprec.spec.format import CodebookFormat, FloatFormat, Format, IntFormat, floor_log2, pow2
from lowprec.spec.projection import Projection


def check_projection(fmt: Format, how: Projection) -> None:
    """LowprecError where `projected` has no hardware."""
    if isinstance(fmt, FloatFormat) and fmt.zero and not fmt.subnormals:
        raise LowprecError(f"{fmt.name}: no converter for a zero without subnormals around it")
    if isinstance(fmt, CodebookFormat) and how.rounding == "stochastic":
        raise LowprecError(f"{fmt.name}: no converter that rounds a codebook stochastically")


def projected(
    m: Module, x: Real, fmt: Format, how: Projection, random: Value | None, name: str
) -> Value:
    """The code point; that of NaN is 0 where the format has none."""
    match fmt:
        case FloatFormat():
            finite = _float(m, x, fmt, how, random, name)
        case IntFormat():
            finite = _int(m, x, fmt, how, random, name)
        case CodebookFormat():
            finite = _table(m, x, fmt, how, name)
        case _:
            raise TypeError(f"no scalar format: {fmt!r}")
    ends = [(x.zero, 0.0), (x.inf, float("inf"))]
    code = finite
    for flag, value in ends:
        plus, minus = code_for(value, fmt, how), code_for(-value, fmt, how)
        code = Mux(flag, Mux(x.sign, minus, plus), code)
    nan = code_of(float("nan"), fmt) if fmt.has_nan else 0
    return named(m, Mux(x.nan, nan, code), f"{name}_code", fmt.bits)


def code_for(value: float, fmt: Format, how: Projection) -> int:
    """The code of 0, -0, Inf or -Inf."""
    y = project(value, fmt, how, None if how.bits is None else 0)
    return code_of(y, fmt) if y == y or fmt.has_nan else 0


def _up(
    how: Projection, kept: Value, rest: Value, lost: Value, sign: Value, random: Value | None
) -> Value:
    """Whether a magnitude goes up. rest: the bits below `kept`, the highest of them a half."""
    some = rest.any() | lost
    match how.rounding:
        case "nearest-even":
            return rest[-1] & (rest[:-1].any() | lost | kept)
        case "nearest-away":
            return rest[-1]
        case "toward-zero":
            return C(0, 1)
        case "up":
            return some & ~sign
        case "down":
            return some & sign
        case "to-odd":
            return some & ~kept
    assert random is not None
    return (rest + random)[len(rest)]


def _overflowed(fmt: Format, how: Projection, sign: Value) -> Value:
    """The code of what rounds beyond the range, from the oracle's answer far beyond it."""
    bits = None if how.bits is None else 0
    far = (fmt.max_exact + abs(fmt.min_exact)) * pow2(2 * fmt.bits + 8)

    def code(x: Fraction) -> int:
        y = project(x, fmt, how, bits)
        return code_of(y, fmt) if y == y or fmt.has_nan else 0

    return Mux(sign, code(-far), code(far))


def _float(
    m: Module, x: Real, fmt: FloatFormat, how: Projection, random: Value | None, name: str
) -> Value:
    p, guard = fmt.precision, how.bits or 1
    above = named(m, x.exp - fmt.emin, f"{name}_above", EXPONENT)
    kept = p + guard
    sig = Cat(C(0, max(kept - PRECISION, 0)), x.sig)
    low, top = sig[: len(sig) - kept], sig[len(sig) - kept :]
    if fmt.subnormals:
        most = kept
        shift = Mux(above < -most, most, Mux(above < 0, -above, 0))
        shift = named(m, shift, f"{name}_shift", most.bit_length())
        top, lost = shifted_right(m, top, shift, name)
        lost = lost | low.any()
        binade = named(m, Mux(above > 0, above, 0), f"{name}_binade", EXPONENT)
        base = (binade << (p - 1)) + top[guard:]
    else:
        lost = low.any()
        binade = named(m, Mux(above >= 0, above, 0), f"{name}_binade", EXPONENT)
        # All that lies below the smallest value becomes it.
        base = (binade << (p - 1)) + Mux(above >= 0, top[guard:-1], 0)
    kept_code = named(m, base, f"{name}_kept", fmt.bits + 12)
    up = _up(how, kept_code[0], top[:guard], lost, x.sign, random)
    up = up if fmt.subnormals else up & (above >= 0)
    code = named(m, kept_code + up, f"{name}_magnitude", fmt.bits + 12)
    beyond = code > fmt.max_code
    sign = x.sign
    if fmt.signed:
        finite = Cat(code[: fmt.bits - 1], sign)
        if not fmt.has_negative_zero:
            finite = Mux(code == 0, 0, finite)
    else:
        finite = code[: fmt.bits]
        # Below zero there is nothing but what rounds to it.
        beyond = beyond | sign & ((code != 0) if fmt.zero else C(1, 1))
    return Mux(beyond, _overflowed(fmt, how, sign), finite)


def _int(
    m: Module, x: Real, fmt: IntFormat, how: Projection, random: Value | None, name: str
) -> Value:
    whole, guard = fmt.bits - fmt.signed + 1, how.bits or 1
    # The highest bit kept has the weight 2^(whole - 1).
    below = named(m, (whole - 1 + fmt.exponent) - x.exp, f"{name}_below", EXPONENT)
    kept = whole + guard
    sig = Cat(C(0, max(kept - PRECISION, 0)), x.sig)
    low, top = sig[: len(sig) - kept], sig[len(sig) - kept :]
    shift = Mux(below > kept, kept, Mux(below > 0, below, 0))
    top, lost = shifted_right(m, top, named(m, shift, f"{name}_shift", kept.bit_length()), name)
    units = top[guard:]
    up = _up(how, units[0], top[:guard], lost | low.any(), x.sign, random)
    magnitude = named(m, units + up, f"{name}_magnitude", whole + 1)
    most = Mux(x.sign, -fmt.min_integer, fmt.max_integer)
    beyond = (below < 0) | (magnitude > most)
    code = Mux(x.sign, -magnitude, magnitude)[: fmt.bits]
    return Mux(beyond, _overflowed(fmt, how, x.sign), code)


def _table(m: Module, x: Real, fmt: CodebookFormat, how: Projection, name: str) -> Value:
    """By comparing with the least number of each code: a search of as many steps as bits."""
    # Below this, 2^-30 of the smallest magnitude, nothing changes any more.
    lowest = floor_log2(min(abs(Fraction(v)) for v in fmt.values if v and isfinite(v))) - 30
    key = Cat(x.sig[:-1], named(m, x.exp - lowest, f"{name}_place", 12)[:11])
    tiny = x.exp < lowest
    key = named(m, Mux(tiny, 0, key), f"{name}_key")
    codes = []
    for minus in (False, True):
        encoded = partial(_encoded, minus=minus, fmt=fmt, how=how, lowest=lowest)
        steps = thresholds(encoded, len(key))
        codes.append(_search(m, key, steps, fmt.bits, f"{name}_{'minus' if minus else 'plus'}"))
    return Mux(x.sign, codes[1], codes[0])


def _encoded(key: int, minus: bool, fmt: Format, how: Projection, lowest: int) -> int:
    exp, trailing = divmod(key, 1 << (PRECISION - 1))
    sig = trailing + (1 << (PRECISION - 1))
    x = sig * pow2(exp + lowest - (PRECISION - 1))
    y = project(-x if minus else x, fmt, how)
    return code_of(y, fmt) if y == y or fmt.has_nan else 0


def thresholds(code: Callable[[int], int], bits: int) -> list[tuple[int, int]]:
    """The keys from which each code on holds, rising, of a function that has no code twice."""
    found = [(0, code(0))]

    def split(low: int, first: int, high: int, last: int) -> None:
        if first == last:
            return
        if high - low == 1:
            found.append((high, last))
            return
        middle = (low + high) // 2
        at = code(middle)
        split(low, first, middle, at)
        split(middle, at, high, last)

    end = (1 << bits) - 1
    split(0, found[0][1], end, code(end))
    return found


def _search(m: Module, key: Value, steps: list[tuple[int, int]], bits: int, name: str) -> Value:
    """The code of the last step that the key reaches."""
    size = max((len(steps) - 1).bit_length(), 1)
    rank: Value = C(0, 0)
    for bit in reversed(range(size)):
        least = Signal(len(key), name=f"{name}_least{bit}")
        reached = Signal(name=f"{name}_bit{bit}")
        with m.Switch(rank):
            for prefix in range(1 << (size - 1 - bit)):
                at = (2 * prefix + 1) << bit
                with m.Case(prefix) if len(rank) else m.Default():
                    if at < len(steps):
                        m.d.comb += [least.eq(steps[at][0]), reached.eq(key >= least)]
        rank = Cat(reached, rank)
    code = Signal(bits, name=f"{name}_code")
    with m.Switch(rank):
        for at, (_, found) in enumerate(steps):
            with m.Case(at):
                m.d.comb += code.eq(found)
    return code
