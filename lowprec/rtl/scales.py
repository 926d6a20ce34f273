"""Scales as numbers: decoded, divided by, multiplied; and which formats have hardware."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from lowprec.errors import LowprecError
from lowprec.exact.values import finite, negative, value_table
from lowprec.rtl.part import Ports
from lowprec.rtl.real import (
    EXPONENT,
    INFINITY,
    PRECISION,
    Real,
    constant,
    float32,
    float32_number,
    named,
    product,
    quotient,
    unpacked,
)
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import FloatFormat, Format, IntFormat
from lowprec.spec.quantizer import GIVEN_RULES, Quantizer

# What a lane needs of S: (1 or sig) * 2^exp, or one of these.
SCALED: Ports = {"scale_exp": EXPONENT, "scale_sig": PRECISION, "scale_zero": 1, "scale_nan": 1}
TABLE_BITS = 8
ONE = 1 << (PRECISION - 1)


def lane_ports(quantizer: Quantizer) -> Ports:
    """What a lane takes of its block."""
    fmt = quantizer.format
    if not isinstance(fmt, BlockFormat):
        return {}
    ports = {**SCALED, **({"scale_sign": 1} if has_sign(quantizer) else {})}
    if fmt.zero_point is not None:
        ports["zero_point"] = fmt.zero_point.bits
    if fmt.offset is not None:
        sized = {"exp": EXPONENT, "sig": PRECISION, "sign": 1, "zero": 1}
        ports |= {f"offset_{what}": size for what, size in sized.items()}
    return ports | ({"is_outlier": 1} if fmt.outlier else {})


def has_sign(quantizer: Quantizer) -> bool:
    """Whether S may be negative."""
    fmt, given = quantizer.format, quantizer.rule in GIVEN_RULES
    assert isinstance(fmt, BlockFormat)
    return quantizer.rule == "signed" or (given and not fmt.outer and fmt.scale.min_exact < 0)


def is_power_of_two(fmt: BlockFormat) -> bool:
    """Whether S is one, so that dividing subtracts exponents."""
    return isinstance(fmt.scale, FloatFormat) and fmt.scale.precision == 1 and fmt.outer is None


def precision_of(fmt: BlockFormat) -> int:
    """Significant bits of S."""
    scale = fmt.scale
    if fmt.outer is None and isinstance(scale, FloatFormat):
        return scale.precision
    return scale.bits if fmt.outer is None and isinstance(scale, IntFormat) else PRECISION


def row(fmt: BlockFormat) -> int | None:
    """Elements of a block that lies in one row, or None."""
    if isinstance(fmt.block, str) or math.prod(fmt.block[:-1]) != 1:
        return None
    return int(fmt.block[-1])


def largest_of(m: Module, values: Sequence[Value], name: str) -> Value:
    """A tree of comparisons."""
    level, row = 0, list(values)
    while len(row) > 1:
        pairs = [row[k : k + 2] for k in range(0, len(row), 2)]
        row = [
            named(m, Mux(p[0] > p[1], p[0], p[1]), f"{name}_max{level}_{k}") if p[1:] else p[0]
            for k, p in enumerate(pairs)
        ]
        level += 1
    return row[0]


def divided(m: Module, x: Real, y: Real, name: str) -> Value:
    """The magnitude of RN(x / y) in float32; 0 where y is."""
    found = float32(m, quotient(m, x, y, name), name)
    return named(m, Mux(x.zero | y.zero, 0, Mux(x.inf, INFINITY, found)), f"{name}_divided", 31)


def times(m: Module, x: Real, y: Real, name: str) -> Real:
    """RN(x * y) in float32 of finite numbers."""
    found = Mux(x.zero | y.zero, 0, float32(m, product(m, x, y, name), name))
    code = named(m, Cat(found, x.sign ^ y.sign), f"{name}_float32_code")
    return float32_number(m, code, f"{name}_times")


def check_scale(fmt: Format) -> None:
    """LowprecError where `decoded` has no hardware."""
    simple = isinstance(fmt, FloatFormat) and fmt.nan == "ieee" and fmt.subnormals
    if fmt.bits > TABLE_BITS and not (simple and fmt.bits <= 32):
        raise LowprecError(f"{fmt.name}: no converter for scales of this format")


def decoded(m: Module, code: Value, fmt: Format, name: str) -> Real:
    """The number of a code point: of small formats by a table."""
    if fmt.bits > TABLE_BITS:
        assert isinstance(fmt, FloatFormat)  # `check_scale` sees to it.
        return unpacked(m, code, fmt, name)
    exp, sig = Signal(EXPONENT, name=f"{name}_exp"), Signal(PRECISION, name=f"{name}_sig")
    flags = [Signal(name=f"{name}_{flag}") for flag in ("sign", "zero", "inf", "nan")]
    with m.Switch(code):
        for at, x in enumerate(value_table(fmt)):
            nan, inf = x != x, x == x and not finite(x)
            number = constant(Fraction(0) if nan or inf else abs(Fraction(x)))
            with m.Case(at):
                m.d.comb += [exp.eq(number.exp), sig.eq(number.sig)]
                flag = (negative(x), not nan and x == 0, inf, nan)
                m.d.comb += [f.eq(int(b)) for f, b in zip(flags, flag, strict=True)]
    return Real(flags[0], exp, sig, *flags[1:])


def precision_of_element(element: Format) -> int:
    if isinstance(element, FloatFormat):
        return element.precision
    assert isinstance(element, IntFormat)  # Quantizer sees to it.
    return element.bits - element.signed
