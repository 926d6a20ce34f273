"""The range of a block in hardware: its least and largest value, zero points and offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from amaranth.hdl import C, Cat, Module, Value

from lowprec.exact.scale import ONTO_SCALE
from lowprec.rtl.project import projected
from lowprec.rtl.real import Real, added, constant, float32_number, named, unpacked
from lowprec.rtl.scales import decoded, divided, largest_of, times
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import FloatFormat


@dataclass(frozen=True)
class Range:
    """lo and hi of a block, and whether a value of it is NaN or Inf."""

    low: Real
    high: Real
    special: Value

    def span(self, m: Module) -> Real:
        """RN(hi - lo)."""
        return added(m, self.high, negated(self.low), "span")


def negated(x: Real) -> Real:
    return replace(x, sign=~x.sign)


def block_range(m: Module, lanes: Sequence[Value], source: FloatFormat, fmt: BlockFormat) -> Range:
    """Of lanes as codes: with 0 among them, for a zero point, or below, for an unsigned offset."""
    keys = [_key(m, x, f"key{k}") for k, x in enumerate(lanes)]
    zero = C(1 << (source.bits - 1), source.bits)
    both = fmt.zero_point is not None
    below = both or (fmt.offset is not None and fmt.offset.min_exact == 0)
    high = largest_of(m, [*keys, zero] if both else keys, "high")
    low = ~largest_of(m, [~k for k in ([*keys, zero] if below else keys)], "low")
    trailing = source.precision - 1
    special = Cat(*[x[trailing:-1].all() for x in lanes]).any()
    return Range(
        unpacked(m, _code(low), source, "lo"),
        unpacked(m, _code(high), source, "hi"),
        named(m, special, "special"),
    )


def _key(m: Module, code: Value, name: str) -> Value:
    """Codes of floats as integers that rise with the values."""
    flip = code[-1].replicate(len(code) - 1)
    return named(m, Cat(code[:-1] ^ flip, ~code[-1]), name, len(code))


def _code(key: Value) -> Value:
    flip = (~key[-1]).replicate(len(key) - 1)
    return Cat(key[:-1] ^ flip, ~key[-1])


def zero_point(m: Module, low: Real, scale: Real, fmt: BlockFormat) -> Value:
    """The code of z."""
    assert fmt.zero_point is not None
    steps = float32_number(m, Cat(divided(m, low, scale, "steps"), ~low.sign), "steps_real")
    lowest = fmt.element.min_exact
    least = replace(constant(abs(Fraction(lowest))), sign=C(int(lowest < 0), 1))
    total = added(m, least, steps, "zero")
    return projected(m, total, fmt.zero_point, ONTO_SCALE, None, "zero_point")


def offset(m: Module, low: Real, outer: Real | None, fmt: BlockFormat) -> tuple[Value, Real]:
    """The code of o, and O."""
    assert fmt.offset is not None
    minus = replace(low, sign=~low.sign & ~low.zero)
    if outer is not None:
        code = Cat(divided(m, minus, outer, "offset_ratio"), minus.sign)
        minus = float32_number(m, code, "offset_real")
    code = projected(m, minus, fmt.offset, ONTO_SCALE, None, "offset")
    value = decoded(m, code, fmt.offset, "offset_value")
    return code, value if outer is None else times(m, value, outer, "offset_whole")
