"""Unpacking: code points to numbers, from the fields of a format or by a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace

from amaranth.hdl import C, Cat, Module, Mux, Signal, Value

from lowprec.errors import LowprecError
from lowprec.exact.addition import exponent_of
from lowprec.exact.values import Value as Exact
from lowprec.exact.values import code_of, finite, negative, value_table
from lowprec.rtl.numbers import Fields
from lowprec.rtl.part import Part, Ports
from lowprec.spec.format import FloatFormat, Format, IntFormat, floor_log2, pow2

TABLE_BITS = 8


@dataclass(frozen=True)
class Unpack(Part):
    """Code points of `format`."""

    format: Format
    fields: Fields

    @property
    def name(self) -> str:
        return f"unpack_{self.format.name}".replace(".", "_").replace("-", "_")

    def inputs(self) -> Ports:
        return {"code": self.format.bits}

    def outputs(self) -> Ports:
        return {"sign": 1, "t": self.fields.bits, "e": self.fields.e_bits, "nan": 1, "inf": 1}

    @property
    def _value(self) -> str:
        f = self.fields
        return f"value = (-1)^sign * t * 2^(e {f.unit:+d})"


@dataclass(frozen=True)
class UnpackFloat(Unpack):
    """From sign, exponent field and trailing significand; subnormals keep the lowest exponent."""

    format: FloatFormat

    @property
    def about(self) -> str:
        f = self.format
        parts = "sign 1, " if f.signed else ""
        small = "subnormals" if f.subnormals else "no subnormals"
        ends = f"nan {f.nan}, {'infinity' if f.infinity else 'no infinity'}"
        return (
            f"{f.name}: {parts}exponent {f.exponent_bits} (bias {f.bias}), trailing significand "
            f"{f.precision - 1} bits; {small}; {ends}.\n{self._value}"
        )

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        f, size = self.format, self.format.bits - self.format.signed
        magnitude = i.code[:size]
        trailing, field = magnitude[: f.precision - 1], Signal(f.exponent_bits, name="field")
        m.d.comb += field.eq(magnitude[f.precision - 1 :])
        hidden = Signal(name="hidden")
        m.d.comb += hidden.eq(self.hidden(magnitude, field))
        e = field - hidden if f.subnormals else field
        return {
            "sign": i.code[-1] if f.signed else C(0, 1),
            "t": Cat(trailing, hidden),
            "e": e,
            "nan": self.nan(i.code, magnitude),
            "inf": magnitude == f.infinity_code if f.infinity_code is not None else C(0, 1),
        }

    def hidden(self, magnitude: Value, field: Value) -> Value:
        """The implicit bit."""
        if self.format.subnormals:
            return field.any()
        return magnitude.any() if self.format.zero else C(1, 1)

    def nan(self, code: Value, magnitude: Value) -> Value:
        match self.format.nan:
            case "ieee":
                return magnitude > (self.format.infinity_code or 0)
            case "all-ones":
                return magnitude.all()
            case "negative-zero":
                return code == 1 << (self.format.bits - 1)
        return C(0, 1)


@dataclass(frozen=True)
class UnpackInt(Unpack):
    """Sign and magnitude of an integer."""

    format: IntFormat

    @property
    def about(self) -> str:
        kind = "two's complement" if self.format.signed else "unsigned"
        return f"{self.format.name}: {kind} integer of {self.format.bits} bits.\n{self._value}"

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        sign = i.code[-1] if self.format.signed else C(0, 1)
        t = Mux(sign, -i.code.as_signed(), i.code)
        return {"sign": sign, "t": t, "e": C(0, 1), "nan": C(0, 1), "inf": C(0, 1)}


@dataclass(frozen=True)
class UnpackTable(Unpack):
    """By a table of all code points, as values of `carrier`, whose exponents they have."""

    carrier: Format

    @property
    def about(self) -> str:
        return (
            f"{self.format.name}: table of {self.format.code_points} code points, "
            f"as values of {self.carrier.name}.\n{self._value}"
        )

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        f = self.fields
        word = Signal(f.bits + f.e_bits + 3, name="word")
        with m.Switch(i.code):
            for code, x in enumerate(value_table(self.format)):
                with m.Case(code):
                    m.d.comb += word.eq(self._word(x))
        t, e = word[: f.bits], word[f.bits : -3]
        return {"sign": word[-3], "t": t, "e": e, "nan": word[-2], "inf": word[-1]}

    def _word(self, x: Exact) -> int:
        f = self.fields
        nan, inf = x != x, x == x and not finite(x)
        t, e = (0, 0) if nan or inf or not x else _parts(Fraction(x), f, self.carrier)
        flags = negative(x) | nan << 1 | inf << 2
        return t | e << f.bits | flags << (f.bits + f.e_bits)


def _parts(x: Fraction, f: Fields, carrier: Format) -> tuple[int, int]:
    e = exponent_of(x, carrier) - f.low if isinstance(carrier, FloatFormat) else 0
    return int(abs(x) / pow2(e + f.unit)), e


def carrier(fmt: Format, inputs: tuple[Format, ...], where: str) -> Format:
    """The first of a datapath's `inputs` that is `fmt` or holds all its values."""
    for candidate in sorted(inputs, key=lambda f: f != fmt):
        if candidate == fmt or _holds(candidate, fmt):
            return candidate
    names = " or ".join(f.name for f in inputs)
    raise LowprecError(f"{where}: {fmt.name}: not all its values are of {names}")


def _holds(wide: Format, fmt: Format) -> bool:
    if isinstance(fmt, FloatFormat) and isinstance(wide, FloatFormat) and fmt.bits > TABLE_BITS:
        ends = fmt.max_exact <= wide.max_exact and fmt.infinity <= wide.infinity
        signs = fmt.signed <= wide.signed and fmt.has_nan <= wide.has_nan
        quantum = pow2(fmt.emin - fmt.precision) >= pow2(wide.emin - wide.precision)
        return ends and signs and quantum and fmt.precision <= wide.precision and wide.subnormals
    if fmt.bits > TABLE_BITS:
        return False
    try:
        for x in value_table(fmt):
            code_of(x, wide)
    except LowprecError:
        return False
    return True


def unpack(fmt: Format, of: Format, exact: bool) -> Unpack:
    """How codes of `fmt`, as values of the input `of`, are read.

    exact: nothing is aligned by exponents, so that those of `fmt` itself do as well.
    """
    if isinstance(fmt, FloatFormat) and (fmt == of or exact):
        return UnpackFloat(fmt, float_fields(fmt))
    if isinstance(fmt, IntFormat) and (fmt == of or exact):
        bits = fmt.bits
        return UnpackInt(fmt, Fields(bits, 0, fmt.exponent, 0, fmt.signed))
    if isinstance(fmt, IntFormat) and isinstance(of, FloatFormat) and _in_one_binade(fmt, of):
        return UnpackInt(fmt, Fields(fmt.bits, of.precision - 1, of.emin, 0, fmt.signed))
    return UnpackTable(fmt, _table_fields(fmt, of), of)


def _in_one_binade(fmt: IntFormat, of: FloatFormat) -> bool:
    """Whether the integers are the values of one exponent: the float is in fixed point there."""
    largest = max(fmt.max_exact, -fmt.min_exact)
    return of.emin - of.precision + 1 == fmt.exponent and largest < pow2(of.emin + 1)


def float_fields(fmt: FloatFormat) -> Fields:
    highest = fmt.max_code >> (fmt.precision - 1)
    return Fields(
        bits=fmt.precision,
        fraction=fmt.precision - 1,
        low=fmt.emin,
        span=max(0, highest - fmt.subnormals),
        signed=fmt.signed,
        nan=fmt.has_nan,
        infinity=fmt.infinity,
    )


def _table_fields(fmt: Format, of: Format) -> Fields:
    table = value_table(fmt)
    sizes = [abs(Fraction(x)) for x in table if finite(x) and x]
    lasts = [_last(x) for x in sizes]
    if not isinstance(of, FloatFormat):
        fraction = max(0, *lasts)
        bits = max(floor_log2(x) for x in sizes) + fraction + 1
        return Fields(bits, fraction, 0, 0)
    exponents = [exponent_of(x, of) for x in sizes]
    fraction = max(0, *(last + e for last, e in zip(lasts, exponents, strict=True)))
    low = min(exponents)
    return Fields(
        bits=fraction + 1,
        fraction=fraction,
        low=low,
        span=max(exponents) - low,
        signed=fmt.min_exact < 0,
        nan=fmt.has_nan,
        infinity=fmt.has_infinity,
    )


def _last(x: Fraction) -> int:
    """How many places behind the point the last bit of a binary fraction stands."""
    even = (x.numerator & -x.numerator).bit_length() - 1
    return x.denominator.bit_length() - 1 - even
