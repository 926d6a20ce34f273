"""The board of a unit: parts placed on it, and the pipeline registers between them."""

from __future__ import annotations

from dataclasses import dataclass, field, is_dataclass
from types import SimpleNamespace
from typing import Any

from amaranth.hdl import C, Cat, Const, Module, Signal, Value

from lowprec.rtl.accumulate import Normalise, Round
from lowprec.rtl.add import Add, AddSpecial
from lowprec.rtl.multiply import AlignExponent, Multiply, MultiplySpecial
from lowprec.rtl.numbers import Number
from lowprec.rtl.pair import AddNormal, AddPair
from lowprec.rtl.part import Library, Part
from lowprec.rtl.unpack import Unpack
from lowprec.spec.format import FloatFormat


@dataclass(frozen=True)
class Rounding:
    """The format of a code, how it is rounded, and whether what becomes zero keeps its sign."""

    format: FloatFormat
    rounding: str
    signed_zero: bool


@dataclass
class Board:
    """stages: pipeline registers in all; they are spread over the boundaries when these are known,
    the last of which is behind the outputs."""

    m: Module
    library: Library
    stages: int = 0
    boundaries: int = 0
    _crossings: list[tuple[int, Signal, Value]] = field(default_factory=list)

    def place(self, part: Part, label: str, **inputs: Value) -> SimpleNamespace:
        return self.library.place(self.m, part, label, **inputs)

    def cut(self, *live: Any) -> Any:
        """A boundary: all that is `live`, signals in any structure, behind its registers."""
        crossed = tuple(self._across(each, self.boundaries) for each in live)
        self.boundaries += 1
        return crossed if len(crossed) != 1 else crossed[0]

    def now(self, early: Any) -> Any:
        """What came from the ports, behind the boundaries so far."""
        for boundary in range(self.boundaries):
            early = self._across(early, boundary)
        return early

    def finish(self) -> None:
        """Puts the registers in place."""
        n, stages = self.boundaries, self.stages
        count = [(k + 1) * stages // n - k * stages // n for k in range(n)]
        for boundary, signal, value in self._crossings:
            for _ in range(count[boundary]):
                held = Signal(value.shape(), reset_less=True, name="held")
                self.m.d.sync += held.eq(value)
                value = held
            self.m.d.comb += signal.eq(value)

    def _across(self, x: Any, boundary: int) -> Any:
        if self.stages == 0 or isinstance(x, Const):
            return x
        match x:
            case list() | tuple():
                return type(x)(self._across(each, boundary) for each in x)
            case SimpleNamespace():
                return SimpleNamespace(**{k: self._across(v, boundary) for k, v in vars(x).items()})
            case Value():
                signal = Signal(x.shape(), name="later")
                self._crossings.append((boundary, signal, x))
                return signal
        if is_dataclass(x) and not isinstance(x, type):
            return type(x)(**{k: self._across(v, boundary) for k, v in vars(x).items()})
        return x

    # ---- operations: parts and the wires between them ----

    def unpack(self, part: Unpack, code: Value, label: str) -> Number:
        o = self.place(part, label, code=code)
        f = part.fields
        nan, inf = (o.nan if f.nan else C(0, 1)), (o.inf if f.infinity else C(0, 1))
        return Number(f, o.sign if f.signed else C(0, 1), o.t, o.e, nan, inf)

    def multiply(self, x: Number, y: Number, label: str) -> Number:
        """The exact product of two numbers."""
        fields = x.fields * y.fields
        part = Multiply(x.fields.bits, y.fields.bits)
        t = self.place(part, f"{label}_multiply", x=x.t, y=y.t).product
        exponent = AlignExponent(x.fields.e_bits, y.fields.e_bits, fields.e_bits)
        e = self.place(exponent, f"{label}_exponent", x=x.e, y=y.e).e
        if not fields.nan:
            return Number(fields, x.sign ^ y.sign, t, e, C(0, 1), C(0, 1))
        given = {
            f"{side}_{what}": value
            for side, n in (("x", x), ("y", y))
            for what, value in (
                ("sign", n.sign),
                ("nan", n.nan),
                ("inf", n.inf),
                ("zero", ~n.nonzero & ~n.inf),
            )
        }
        s = self.place(MultiplySpecial(), f"{label}_special", **given)
        return Number(fields, s.sign, t, e, s.nan, s.inf)

    def add(self, values: list[Value], label: str) -> Value:
        """The exact sum of two's complement numbers."""
        if len(values) == 1:
            return values[0]
        width = max(map(len, values))
        same = [_extended(v, width) for v in values]
        return self.place(Add(len(values), width), f"{label}_add", values=Cat(*same)).total

    def specials(self, numbers: list[Number], label: str) -> SimpleNamespace:
        """Whether the sum of these numbers is NaN or Inf."""
        able = [n for n in numbers if n.fields.special]
        if not able:
            return SimpleNamespace(nan=C(0, 1), inf=C(0, 1), inf_sign=C(0, 1))
        return self.place(
            AddSpecial(len(able)),
            f"{label}_special",
            signs=Cat(*[n.sign for n in able]),
            nans=Cat(*[n.nan for n in able]),
            infs=Cat(*[n.inf for n in able]),
        )

    def normal(self, x: Number, label: str) -> Number:
        """The same number with the highest bit of its t set."""
        part = AddNormal(x.fields)
        o = self.place(part, f"{label}_normal", t=x.t, e=x.e)
        return Number(part.normal, x.sign, o.normal_t, o.normal_e, x.nan, x.inf)

    def pair(self, x: Number, y: Number, precision: int, label: str) -> tuple[Value, Value, int]:
        """x + y for `normalise`: the sum, its e, and the exponent of its highest place there."""
        part = AddPair(x.fields, y.fields, precision)
        given = {
            f"{side}_{what}": getattr(n, what)
            for side, n in (("x", x), ("y", y))
            for what in ("sign", "t", "e")
        }
        o = self.place(part, f"{label}_pair", **given)
        return o.total, o.e, part.top

    def normalise(
        self, total: Value, e: Value, top: int, to: Rounding, label: str, sign: Value | None = None
    ) -> SimpleNamespace:
        """A sum, whose highest place stands for 2^(e + top). sign: of a magnitude."""
        fmt = to.format
        part = Normalise(len(total), sign is None, len(e), top - fmt.emin, fmt.precision)
        given = {"total": total, "e": e} | ({} if sign is None else {"total_sign": sign})
        return self.place(part, f"{label}_normalise", **given)

    def round(
        self,
        n: SimpleNamespace,
        special: SimpleNamespace,
        to: Rounding,
        label: str,
        zero_sign: Value | None = None,
    ) -> Value:
        """The code of a normalised sum. zero_sign: of one that is zero; without one it is +0."""
        part = Round(to.format, to.rounding, len(n.field), to.signed_zero)
        return self.place(
            part,
            f"{label}_round",
            **vars(n),
            zero_sign=C(0, 1) if zero_sign is None else zero_sign,
            nan=special.nan,
            inf=special.inf,
            inf_sign=special.inf_sign,
        ).code


def _extended(value: Value, width: int) -> Value:
    """A two's complement number in `width` bits."""
    more = width - len(value)
    return Cat(value, value[-1].replicate(more)) if more else value
