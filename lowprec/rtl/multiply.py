"""Exact products of significands, sums of exponents, signs and special values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from amaranth.hdl import Module, Value, signed

from lowprec.rtl.numbers import Fields
from lowprec.rtl.part import Part, Ports


@dataclass(frozen=True)
class Multiply(Part):
    """x * y, both unsigned."""

    x: int
    y: int

    @property
    def name(self) -> str:
        return f"multiply_{self.x}x{self.y}"

    @property
    def about(self) -> str:
        return f"Exact product of significands of {self.x} and {self.y} bits."

    def inputs(self) -> Ports:
        return {"x": self.x, "y": self.y}

    def outputs(self) -> Ports:
        return {"product": self.bits}

    @property
    def bits(self) -> int:
        return self.x + self.y if min(self.x, self.y) > 1 else max(self.x, self.y)

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        return {"product": i.x * i.y}


@dataclass(frozen=True)
class MultiplySigned(Part):
    """x * y, in two's complement; an unsigned factor has a zero in front."""

    x: int
    y: int
    x_signed: bool
    y_signed: bool

    @property
    def name(self) -> str:
        signs = "us"[self.x_signed] + "us"[self.y_signed]
        return f"multiply_{signs}_{self.x}x{self.y}"

    @property
    def about(self) -> str:
        return f"Exact product of integers of {self.x} and {self.y} bits; s signed, u unsigned."

    def inputs(self) -> Ports:
        return {"x": self.x, "y": self.y}

    def outputs(self) -> Ports:
        return {"product": signed(self.x + self.y + 1)}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        x = i.x.as_signed() if self.x_signed else i.x
        y = i.y.as_signed() if self.y_signed else i.y
        return {"product": x * y}


@dataclass(frozen=True)
class AlignExponent(Part):
    """The exponent of a product: the sum of its factors'."""

    x: int
    y: int
    bits: int

    @property
    def name(self) -> str:
        return f"align_exponent_{self.x}_{self.y}_to_{self.bits}"

    @property
    def about(self) -> str:
        return f"Sum of exponents of {self.x} and {self.y} bits: the exponent of a product."

    def inputs(self) -> Ports:
        return {"x": self.x, "y": self.y}

    def outputs(self) -> Ports:
        return {"e": self.bits}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        return {"e": i.x + i.y}


@dataclass(frozen=True)
class MultiplySpecial(Part):
    """Sign of a product, and whether it is NaN or Inf: Inf * 0 is NaN."""

    @property
    def name(self) -> str:
        return "multiply_special"

    @property
    def about(self) -> str:
        return "Sign of a product x * y, and whether it is NaN or Inf; Inf * 0 is NaN."

    def inputs(self) -> Ports:
        return {f"{x}_{what}": 1 for x in "xy" for what in ("sign", "nan", "inf", "zero")}

    def outputs(self) -> Ports:
        return {"sign": 1, "nan": 1, "inf": 1}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        nan = i.x_nan | i.y_nan | (i.x_inf & i.y_zero) | (i.x_zero & i.y_inf)
        return {"sign": i.x_sign ^ i.y_sign, "nan": nan, "inf": i.x_inf | i.y_inf}


@dataclass(frozen=True)
class MultiplyOverflow(Part):
    """Whether a product is 2^128 or more, which CDNA3 takes for Inf."""

    fields: Fields

    @property
    def name(self) -> str:
        return f"multiply_overflow_{self.fields.bits}_{self.fields.e_bits}"

    @property
    def about(self) -> str:
        return f"Whether t * 2^(e {self.fields.unit:+d}) is 2^128 or more."

    def inputs(self) -> Ports:
        return {"t": self.fields.bits, "e": self.fields.e_bits}

    def outputs(self) -> Ports:
        return {"inf": 1}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        # Factors of such a product are normal: its t is at least 2^fraction.
        last = 127 - self.fields.low
        return {"inf": (i.e > last) | ((i.e == last) & i.t[self.fields.fraction + 1 :].any())}
