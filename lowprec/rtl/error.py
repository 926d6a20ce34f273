"""The errors of a rule that tries several scales: E of a block, as float64 has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from amaranth.hdl import C, Cat, Module, Mux, Value

from lowprec.rtl.part import Part, Ports
from lowprec.rtl.real import (
    EXPONENT,
    Real,
    added,
    float32,
    float32_number,
    named,
    product,
    rounded,
    unpacked,
)
from lowprec.rtl.scales import SCALED, decoded
from lowprec.spec.format import FloatFormat, Format

# float64: the fields of E, which is positive and normal, zero, Inf or NaN.
BITS, PRECISION, BIAS = 64, 53, 1023
SPECIAL = 2 * BIAS + 1


@dataclass(frozen=True)
class ConvertError(Part):
    """RN64((x - y)^2) of a number and of the element it becomes."""

    source: FloatFormat
    element: Format

    @property
    def name(self) -> str:
        return "convert_error"

    @property
    def about(self) -> str:
        return f"(x - y)^2 of {self.source.name} x and y = {self.element.name} * scale, in float64."

    def inputs(self) -> Ports:
        return {"x": self.source.bits, "code": self.element.bits, **SCALED}

    def outputs(self) -> Ports:
        return {"error": BITS}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        no = C(0, 1)
        x = unpacked(m, i.x, self.source, "x")
        element = decoded(m, i.code, self.element, "element")
        scale = Real(no, i.scale_exp, i.scale_sig, i.scale_zero, no, no)
        size = Mux(element.zero | i.scale_zero, 0, float32(m, product(m, scale, element, "y"), "y"))
        y = float32_number(m, Cat(size, ~element.sign), "minus_y")
        apart = added(m, x, y, "apart", PRECISION, BIAS)
        exp, sig = rounded(m, product(m, apart, apart, "square"), "square")
        square = Real(no, exp, sig, apart.zero, y.inf | element.inf, i.scale_nan | element.nan)
        return {"error": _code(m, square)}


@dataclass(frozen=True)
class ConvertAdd(Part):
    """The sum of two errors."""

    @property
    def name(self) -> str:
        return "convert_add_errors"

    @property
    def about(self) -> str:
        return "The sum of two errors, positive numbers of float64, rounded to nearest even."

    def inputs(self) -> Ports:
        return {"first": BITS, "second": BITS}

    def outputs(self) -> Ports:
        return {"total": BITS}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        first, second = _number(m, i.first, "first"), _number(m, i.second, "second")
        return {"total": _code(m, added(m, first, second, "sum", PRECISION, BIAS))}


@dataclass(frozen=True)
class ConvertBetter(Part):
    """Whether a candidate's error is less than the least so far; the first one's always is."""

    bits: int

    @property
    def name(self) -> str:
        return "convert_better"

    @property
    def about(self) -> str:
        return "Whether this candidate is the best so far: the first, or of a smaller error."

    def inputs(self) -> Ports:
        return {"error": BITS, "least": BITS, "candidate": self.bits}

    def outputs(self) -> Ports:
        return {"better": 1}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        # Codes of positive floats rise with their values, and NaN's is the largest.
        return {"better": (i.candidate == 0) | (i.error < i.least)}


def _number(m: Module, code: Value, name: str) -> Real:
    field, trailing, no = code[PRECISION - 1 : -1], code[: PRECISION - 1], C(0, 1)
    exp = named(m, field - BIAS, f"{name}_exp", EXPONENT)
    special = field == SPECIAL
    nan = special & trailing.any()
    return Real(no, exp, Cat(trailing, C(1, 1)), field == 0, special & ~nan, nan)


def _code(m: Module, x: Real) -> Value:
    field = named(m, x.exp + BIAS, "field", 11)
    finite = Mux(x.zero, 0, Cat(x.sig[:-1], field))
    code = Mux(x.inf, SPECIAL << (PRECISION - 1), finite)
    nan = (SPECIAL << (PRECISION - 1)) | 1 << (PRECISION - 2)
    return Cat(Mux(x.nan, nan, code)[: BITS - 1], C(0, 1))
