"""Seeded faults: what a designer may get wrong, one at a time, for tests that must notice it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from amaranth.hdl import C, Module, Mux, Value

from lowprec.rtl.accumulate import AccumulateFloor, AccumulateInteger, Normalise, Round
from lowprec.rtl.add import Add, AddSpecial
from lowprec.rtl.align import Align, AlignDown, AlignLargest, AlignMax
from lowprec.rtl.multiply import AlignExponent, Multiply, MultiplyOverflow, MultiplySpecial
from lowprec.rtl.pair import AddPair
from lowprec.rtl.part import Part
from lowprec.rtl.scale import Scale
from lowprec.rtl.unpack import UnpackFloat


@dataclass(frozen=True)
class Fault:
    """change: of a part of the unit, as `Library.change`. datapath: one whose unit must differ."""

    name: str
    datapath: str
    change: Callable[[Part], Part]


def _as(wrong: type[Part]) -> Callable[[Part], Part]:
    """Parts of the kind that `wrong` extends become `wrong`."""
    (right,) = wrong.__bases__
    return lambda part: wrong(**vars(part)) if type(part) is right else part


def _with(kind: type[Part], change: Callable[[Any], dict[str, Any]]) -> Callable[[Part], Part]:
    """Parts of a kind get other parameters."""
    return lambda part: replace(part, **change(part)) if type(part) is kind else part


class _Subnormal(UnpackFloat):
    def hidden(self, magnitude: Value, field: Value) -> Value:
        return C(1, 1)


class _NoNaN(UnpackFloat):
    def nan(self, code: Value, magnitude: Value) -> Value:
        return C(0, 1)


class _Exponent(UnpackFloat):
    """The exponent of subnormals is one less than that of the lowest normal numbers."""

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        right = super().build(m, i)
        field = i.code[self.format.precision - 1 : self.format.bits - self.format.signed]
        return {**right, "e": field}


class _Product(Multiply):
    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        return {"product": (i.x * i.y)[: self.bits - 1]}


class _InfinityTimesZero(MultiplySpecial):
    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        return {**super().build(m, i), "nan": i.x_nan | i.y_nan}


class _Sign(MultiplySpecial):
    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        return {**super().build(m, i), "sign": i.x_sign}


class _ScaleTwice(AlignExponent):
    """The second scale counts twice where both factors are E8M0."""

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        return {"e": i.x + i.y + (i.y if self.x == self.y == 8 else 0)}


class _ScaleSign(Scale):
    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        return {**super().build(m, i), "sign": i.total < 0}


class _NoOverflow(MultiplyOverflow):
    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        return {"inf": C(0, 1)}


class _ZerosCount(AlignMax):
    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        ones = C(1, 1).replicate(self.n)
        return super().build(m, SimpleNamespace(e=i.e, counts=ones))


class _WithoutAccumulator(AlignLargest):
    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        return super().build(m, SimpleNamespace(**{**vars(i), "y_counts": C(0, 1)}))


class _Distance(Align):
    def distance(self, largest: Value, e: Value) -> Value:
        return super().distance(largest, e) + 1


class _Window(Align):
    """The window is one bit short: the last one is always 0."""

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        value = super().build(m, i)["value"]
        return {"value": value[1:].as_signed() << 1}


class _AlignSticky(Align):
    def sticky(self, lost: Value, below: Value) -> Value:
        return C(0, 1)


class _Truncated(AlignDown):
    """Toward zero instead of down."""

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        distance = i.largest - i.e + self.offset
        size = Mux(i.value < 0, -i.value, i.value) << self.more
        cut = size >> distance.as_unsigned()
        return {"cut": Mux(i.value < 0, -cut, cut)}


class _LastLane(Add):
    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        return super().build(m, SimpleNamespace(values=i.values[self.width :] << self.width))


class _InfinityMinusInfinity(AddSpecial):
    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        return {**super().build(m, i), "nan": i.nans.any()}


class _PairSticky(AddPair):
    def sticky(self, lost: Value) -> Value:
        return C(0, 1)


class _Sticky(Normalise):
    def sticky(self, lost: Value) -> Value:
        return C(0, 1)


class _Tie(Round):
    def away(self, sign: Value, guard: Value, sticky: Value, odd: Value) -> Value:
        return guard


class _Overflow(Round):
    def infinite(self, i: SimpleNamespace, rounded: Value) -> Value:
        return i.inf


class _Wrap(AccumulateInteger):
    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        return {"d": (i.total << self.more) + i.c}


FAULTS = (
    Fault("subnormals have an implicit bit", "hopper_fp8", _as(_Subnormal)),
    Fault("subnormals have the exponent 0", "hopper_fp8", _as(_Exponent)),
    Fault("NaN of operands unseen", "hopper_fp8", _as(_NoNaN)),
    Fault("highest bit of a product lost", "hopper_fp8", _as(_Product)),
    Fault("Inf * 0 is Inf", "volta_fp16", _as(_InfinityTimesZero)),
    Fault("sign of a product is that of a", "hopper_fp8", _as(_Sign)),
    Fault("scale applied twice", "blackwell_mxf8", _as(_ScaleTwice)),
    Fault("sign of scales ignored", "blackwell_nvf4", _as(_ScaleSign)),
    Fault("products beyond float32 are finite", "cdna3_bf16", _as(_NoOverflow)),
    Fault("exponents of zeros count", "blackwell_nvf4", _as(_ZerosCount)),
    Fault("exponent of the accumulator ignored", "hopper_fp8", _as(_WithoutAccumulator)),
    Fault("alignment off by one", "hopper_fp8", _as(_Distance)),
    Fault("window one bit short", "hopper_fp8", _as(_Window)),
    Fault("terms cut down, not toward zero", "hopper_fp8",
          _with(Align, lambda _: {"rounding": "down"})),
    Fault("sticky bit of an accumulator cut down", "cdna3_fp8", _as(_AlignSticky)),
    Fault("accumulator dropped one place too late", "cdna3_fp8",
          _with(Align, lambda p: {"within": p.within and p.within + 1})),
    Fault("groups' sums cut toward zero", "cdna3_fp8", _as(_Truncated)),
    Fault("one bit less before the rounding", "cdna3_fp8",
          _with(AccumulateFloor, lambda p: {"keep": p.keep - 1})),
    Fault("first lane not added", "hopper_fp8", _as(_LastLane)),
    Fault("Inf - Inf is Inf", "volta_fp16", _as(_InfinityMinusInfinity)),
    Fault("sticky bit of a float addition", "cdna1_fp16", _as(_PairSticky)),
    Fault("sticky bit of the result", "volta_fp16_fp16", _as(_Sticky)),
    Fault("ties away from zero", "volta_fp16_fp16", _as(_Tie)),
    Fault("overflow unseen", "volta_fp16_fp16", _as(_Overflow)),
    Fault("zero loses its sign", "cdna3_bf16",
          _with(Round, lambda p: {"signed_zero": not p.signed_zero})),
    Fault("integers wrap where they saturate", "ampere_int8_satfinite", _as(_Wrap)),
)  # fmt: skip
