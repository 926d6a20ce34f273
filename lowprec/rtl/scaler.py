"""The scale of a block in hardware: its largest magnitude, the scale rule, and inner scales."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace

from amaranth.hdl import C, Cat, Module, Mux, Shape, Signal, Value

from lowprec.errors import LowprecError
from lowprec.exact.scale import ONTO_SCALE, largest_value
from lowprec.exact.values import code_of, finite, value_table
from lowprec.rtl.part import Part, Ports
from lowprec.rtl.project import projected
from lowprec.rtl.real import (
    BIAS,
    EXPONENT,
    PRECISION,
    Real,
    constant,
    float32,
    named,
    product,
    quotient,
    unpacked,
)
from lowprec.spec import load_format
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import FloatFormat, Format, IntFormat, floor_log2
from lowprec.spec.quantizer import GIVEN_RULES, POWER_OF_TWO_RULES, Quantizer

# What a lane needs of S: (1 or sig) * 2^exp, or one of these.
SCALED: Ports = {"scale_exp": EXPONENT, "scale_sig": PRECISION, "scale_zero": 1, "scale_nan": 1}
TABLE_BITS = 8
ONE = 1 << (PRECISION - 1)


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


@dataclass(frozen=True)
class Scaler(Part):
    """The scale of `lanes` numbers, as its code and as the lanes need it."""

    source: FloatFormat
    quantizer: Quantizer
    lanes: int

    @property
    def format(self) -> BlockFormat:
        assert isinstance(self.quantizer.format, BlockFormat)
        return self.quantizer.format

    @property
    def own(self) -> bool:
        """Whether it computes the scale, which else is an input."""
        given = self.quantizer.rule in GIVEN_RULES and self.format.outer is None
        return row(self.format) is not None and not given

    @property
    def name(self) -> str:
        return f"scale_{self.quantizer.rule}"

    @property
    def about(self) -> str:
        what = f"the rule {self.quantizer.rule}" if self.own else "its code"
        return f"Scale of {self.lanes} numbers by {what}, {self.format.scale.name}."

    @property
    def parts(self) -> int:
        """Parts of the block that have a scale of their own."""
        return self.lanes // int(self.format.inner[-1].block[0]) if self.format.inner else 1

    def given(self) -> Ports:
        fmt = self.format
        ports: dict[str, int | Shape] = {} if self.own else {"scale": fmt.scale.bits}
        return {**ports, **({"outer": fmt.outer.scale.bits} if fmt.outer else {})}

    def codes(self) -> Ports:
        """Outputs of the whole converter."""
        own: dict[str, int | Shape] = {}
        if self.own:
            own["scales"] = self.format.scale.bits
        for i, level in enumerate(self.format.inner):
            own[f"inner{i}"] = level.scale.bits * (self.lanes // int(level.block[0]))
        return own

    def ports_about(self) -> list[str]:
        fmt = self.format
        lines = [] if self.own else [f"scale: code of {fmt.scale.name}"]
        lines += [f"outer: code of {fmt.outer.scale.name}, not Inf"] if fmt.outer else []
        lines += [f"scales: code of {fmt.scale.name}"] if self.own else []
        for i, level in enumerate(fmt.inner):
            lines.append(f"inner{i}: codes of {level.scale.name}, one per {level.block[0]}")
        return lines

    def exp_of(self, found: SimpleNamespace, lane: int) -> Value:
        exp: Value = getattr(found, f"exp{lane // (self.lanes // self.parts)}")
        return exp

    def inputs(self) -> Ports:
        return {"x": self.source.bits * self.lanes, **self.given()}

    def outputs(self) -> Ports:
        exps = {f"exp{i}": EXPONENT for i in range(self.parts)}
        rest = {k: v for k, v in SCALED.items() if k != "scale_exp"}
        return {**exps, **rest, **self.codes()}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        fmt = self.format
        maxima = self._maxima(m, i.x) if self.own or fmt.inner else []
        largest = self._real(m, _largest(m, maxima, "block"), "block") if maxima else None
        outer = decoded(m, i.outer, fmt.outer.scale, "outer") if fmt.outer else None
        if self.own and largest is not None:
            code, scale = self._scale(m, largest, outer)
            bad = largest.inf | largest.nan | (C(0, 1) if outer is None else outer.nan)
        else:
            code, scale = i.scale, decoded(m, i.scale, fmt.scale, "scale")
            bad = scale.nan
        if outer is not None:
            scale = _times(m, scale, outer)
            bad = bad | outer.nan
        bad = named(m, bad, "nan")
        found: dict[str, Value] = {"scale_sig": scale.sig, "scale_nan": bad}
        found["scale_zero"] = scale.zero | scale.inf
        if self.own:
            nan = code_of(math.nan, fmt.scale) if fmt.scale.has_nan else 0
            found["scales"] = Mux(bad, nan, code)
        exps, inner = self._inner(m, maxima, scale)
        found |= {f"exp{at}": exp for at, exp in enumerate(exps)}
        return found | {k: Mux(bad, 0, v) for k, v in inner.items()}

    def _real(self, m: Module, magnitude: Value, name: str) -> Real:
        return unpacked(m, Cat(magnitude, C(0, 1)), self.source, name)

    def _maxima(self, m: Module, x: Value) -> list[Value]:
        """The largest magnitude of every part of the block."""
        width, size = self.source.bits, self.lanes // self.parts
        lanes = [x[k * width : (k + 1) * width - 1] for k in range(self.lanes)]
        return [
            _largest(m, lanes[k * size : (k + 1) * size], f"part{k}") for k in range(self.parts)
        ]

    def _scale(self, m: Module, largest: Real, outer: Real | None) -> tuple[Value, Real]:
        """The code of s and its value."""
        fmt, rule = self.format.scale, self.quantizer.rule
        if rule in POWER_OF_TWO_RULES:
            assert isinstance(fmt, FloatFormat)
            low, high = floor_log2(fmt.min_positive_exact), floor_log2(fmt.max_exact)
            exp = named(m, self._power(largest), "power", EXPONENT)
            clamped = Mux(largest.zero | (exp < low), low, Mux(exp > high, high, exp))
            exp = named(m, clamped, "exp", EXPONENT)
            # A code per binade: consecutive ones.
            code = exp - low + code_of(fmt.min_positive_exact, fmt)
            no = C(0, 1)
            return named(m, code, "code", fmt.bits), Real(no, exp, C(ONE, PRECISION), no, no, no)
        ratio = _divided(m, largest, constant(largest_value(self.quantizer)), "ratio")
        if outer is not None:
            ratio = _divided(m, self._float32(m, ratio, "first"), outer, "second")
        if fmt == load_format("float32"):
            code = Mux(ratio == _INFINITY, _INFINITY - 1, ratio)
        else:
            r = self._float32(m, ratio, "ratio_real")
            code = projected(m, r, fmt, ONTO_SCALE, None, "scale")
        code = named(m, code, "code", fmt.bits)
        return code, decoded(m, code, fmt, "scale")

    def _float32(self, m: Module, magnitude: Value, name: str) -> Real:
        fmt = load_format("float32")
        assert isinstance(fmt, FloatFormat)
        return unpacked(m, Cat(magnitude, C(0, 1)), fmt, name)

    def _power(self, a: Real) -> Value:
        """The exponent of a power-of-two rule."""
        largest = largest_value(self.quantizer)
        emax, trailing = floor_log2(largest), a.sig[:-1]
        match self.quantizer.rule:
            case "floor2x":
                return a.exp - emax + 1
            case "ceil":
                return a.exp - emax + trailing.any()
            case "even":
                bits = _precision(self.format.element)
                return a.exp - emax + a.sig[PRECISION - 1 - bits : -1].all()
            case "rceil":
                top = int(constant(largest).sig.value)
                # Where A / M is a subnormal of float32, what lies next to 2^-127 rounds to it.
                lowest = a.exp - emax <= -BIAS
                return a.exp - emax + (a.sig > Mux(lowest, top + 1, top))
        return a.exp - emax

    def _inner(
        self, m: Module, maxima: Sequence[Value], scale: Real
    ) -> tuple[list[Value], dict[str, Value]]:
        """The exponent of S for every part, and the codes of each level's scales."""
        exps, codes, fmt = [scale.exp], {}, self.format
        for at, level in enumerate(fmt.inner):
            count = self.lanes // int(level.block[0])
            size, repeat = len(maxima) // count, count // len(exps)
            below = fmt.element.emax + sum(lower.scale.emax for lower in fmt.inner[at + 1 :])
            low, high = floor_log2(level.scale.min_exact), level.scale.emax
            found, fields = [], []
            for k in range(count):
                name = f"inner{at}_{k}"
                part = _largest(m, maxima[k * size : (k + 1) * size], name)
                a, above = self._real(m, part, name), exps[k // repeat]
                exp = a.exp - above - (a.sig < scale.sig) - below
                exp = named(m, exp, f"{name}_floor", EXPONENT)
                least = a.zero | scale.zero | (exp < low)
                u = named(m, Mux(least, low, Mux(exp > high, high, exp)), f"{name}_u", EXPONENT)
                found.append(named(m, above + u, f"{name}_sum", EXPONENT))
                fields.append(named(m, u - low, f"{name}_code", level.scale.bits))
            exps, codes[f"inner{at}"] = found, Cat(*fields)
        return exps, codes


_INFINITY = 0xFF << (PRECISION - 1)


def _largest(m: Module, values: Sequence[Value], name: str) -> Value:
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


def _divided(m: Module, x: Real, y: Real, name: str) -> Value:
    """The magnitude of RN(x / y) in float32; 0 where y is."""
    found = float32(m, quotient(m, x, y, name), name)
    return named(m, Mux(x.zero | y.zero, 0, Mux(x.inf, _INFINITY, found)), f"{name}_divided", 31)


def _times(m: Module, x: Real, y: Real) -> Real:
    """RN(x * y) in float32."""
    found = Mux(x.zero | y.zero, 0, float32(m, product(m, x, y, "whole"), "whole"))
    fmt = load_format("float32")
    assert isinstance(fmt, FloatFormat)
    return unpacked(m, named(m, Cat(found, C(0, 1)), "scale_float32"), fmt, "scale_whole")


def check_scale(fmt: Format) -> None:
    """LowprecError where `decoded` has no hardware."""
    simple = isinstance(fmt, FloatFormat) and fmt.nan == "ieee" and fmt.subnormals
    if fmt.bits > TABLE_BITS and not (simple and fmt.bits <= 32):
        raise LowprecError(f"{fmt.name}: no converter for scales of this format")


def decoded(m: Module, code: Value, fmt: Format, name: str) -> Real:
    """The number of a code point: of small formats by a table. Signs are left out."""
    if fmt.bits > TABLE_BITS:
        assert isinstance(fmt, FloatFormat)  # `check_scale` sees to it.
        return unpacked(m, code, fmt, name)
    exp, sig = Signal(EXPONENT, name=f"{name}_exp"), Signal(PRECISION, name=f"{name}_sig")
    flags = [Signal(name=f"{name}_{flag}") for flag in ("zero", "inf", "nan")]
    with m.Switch(code):
        for at, x in enumerate(value_table(fmt)):
            nan, inf = x != x, x == x and not finite(x)
            number = constant(Fraction(0) if nan or inf else abs(Fraction(x)))
            with m.Case(at):
                m.d.comb += [exp.eq(number.exp), sig.eq(number.sig)]
                flag = (not nan and x == 0, inf, nan)
                m.d.comb += [f.eq(int(b)) for f, b in zip(flags, flag, strict=True)]
    return Real(C(0, 1), exp, sig, *flags)


def _precision(element: Format) -> int:
    if isinstance(element, FloatFormat):
        return element.precision
    assert isinstance(element, IntFormat)  # Quantizer sees to it.
    return element.bits - element.signed
