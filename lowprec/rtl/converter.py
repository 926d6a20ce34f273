"""Converters: float32 or bfloat16 numbers to the codes and scales of a quantizer's format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from amaranth.hdl import C, Cat, Module, Mux, Signal, Value

from lowprec.errors import LowprecError
from lowprec.exact.scale import ONTO_SCALE
from lowprec.exact.values import code_of
from lowprec.rtl.part import Library, Part, Ports, Top
from lowprec.rtl.project import check_projection, projected
from lowprec.rtl.real import Real, named, quotient, rounded, unpacked
from lowprec.rtl.scaler import ONE, SCALED, Scaler, check_scale, is_power_of_two, precision_of, row
from lowprec.rtl.verilog import verilog
from lowprec.spec import load_format
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import FloatFormat, Format, floor_log2
from lowprec.spec.quantizer import GIVEN_RULES, POWER_OF_TWO_RULES, Quantizer

SOURCES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Lane(Part):
    """One number onto the element format, divided by the scale where there is one."""

    source: FloatFormat
    quantizer: Quantizer

    @property
    def element(self) -> Format:
        fmt = self.quantizer.format
        return fmt.element if isinstance(fmt, BlockFormat) else fmt

    @property
    def scaled(self) -> bool:
        return isinstance(self.quantizer.format, BlockFormat)

    @property
    def name(self) -> str:
        return "convert_lane"

    @property
    def about(self) -> str:
        by = "x / scale" if self.scaled else "x"
        how = self.quantizer.projection.spell()
        return f"{by} of {self.source.name} onto {self.element.name}, {how}."

    def inputs(self) -> Ports:
        bits = self.quantizer.projection.bits
        random = {"random": bits} if bits else {}
        return {"x": self.source.bits, **random, **(SCALED if self.scaled else {})}

    def outputs(self) -> Ports:
        return {"code": self.element.bits}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        element, how = self.element, self.quantizer.projection
        low = isinstance(element, FloatFormat) and element.emin < -126
        x = unpacked(m, i.x, self.source, "x", normalise=self.scaled or low)
        if self.scaled:
            x = self._divided(m, x, i)
        code = projected(m, x, element, how, getattr(i, "random", None), "y")
        if self.scaled:
            nan = code_of(float("nan"), element) if element.has_nan else 0
            code = Mux(i.scale_nan, nan, code)
        return {"code": code}

    def _divided(self, m: Module, x: Real, i: SimpleNamespace) -> Real:
        """RN(x / S), zero where S is. Its exponent is not bounded below, which only a number that
        becomes zero in float32 shows: see `_check`."""
        fmt = self.quantizer.format
        assert isinstance(fmt, BlockFormat)
        if is_power_of_two(fmt):
            exp, sig = named(m, x.exp - i.scale_exp, "y_exp"), x.sig
        else:
            scale = Real(C(0, 1), i.scale_exp, i.scale_sig, C(0, 1), C(0, 1), C(0, 1))
            exp, sig = rounded(m, quotient(m, x, scale, "y", precision_of(fmt)), "y")
        gone = (exp < -150) | (exp == -150) & (sig == ONE)
        zero = named(m, (x.zero | gone | i.scale_zero) & ~x.inf, "y_zero")
        nan = x.nan | x.inf & i.scale_zero
        return Real(x.sign, exp, sig, zero, x.inf | (exp > 127) & ~zero, nan)


@dataclass(frozen=True)
class Converter:
    """`lanes` numbers of one block at once; the top of the Verilog. See `converter`."""

    source: FloatFormat
    quantizer: Quantizer
    lanes: int

    @property
    def name(self) -> str:
        return "to_" + re.sub(r"\W+", "_", self.quantizer.spell())

    def module(self, library: Library) -> Top:
        return ConverterTop(self, library)

    def verilog(self) -> str:
        """The converter as Verilog, one module per part; needs yosys."""
        return verilog(self)

    @property
    def scaler(self) -> Scaler | None:
        if not isinstance(self.quantizer.format, BlockFormat):
            return None
        return Scaler(self.source, self.quantizer, self.lanes)

    @property
    def about(self) -> str:
        bits = self.quantizer.projection.bits
        ports = [f"x: {self.lanes} numbers of {self.source.name}, the first in the lowest bits"]
        ports += [f"random: {bits} bits of each lane's"] if bits else []
        if self.scaler is not None:
            ports += self.scaler.ports_about()
        ports.append(f"codes: {self.lanes} of {Lane(self.source, self.quantizer).element.name}")
        return f"Converter to {self.quantizer.spell()}\n" + "\n".join(ports)

    def inputs(self) -> Ports:
        bits = (self.quantizer.projection.bits or 0) * self.lanes
        random = {"random": bits} if bits else {}
        given = self.scaler.given() if self.scaler else {}
        return {"x": self.source.bits * self.lanes, **random, **given}

    def outputs(self) -> Ports:
        element = Lane(self.source, self.quantizer).element
        scales = self.scaler.codes() if self.scaler else {}
        return {"codes": element.bits * self.lanes, **scales}

    def place(self, m: Module, i: SimpleNamespace, library: Library) -> Mapping[str, Value]:
        """The scaler and the lanes in `m`; i: the inputs. Gives the outputs."""
        width, bits = self.source.bits, self.quantizer.projection.bits
        found, scaled = None, {}
        if self.scaler is not None:
            given = {k: getattr(i, k) for k in self.scaler.given()}
            found = library.place(m, self.scaler, "scaler", x=i.x, **given)
        codes = []
        for lane in range(self.lanes):
            if self.scaler is not None and found is not None:
                scaled = {k: getattr(found, k) for k in SCALED if k != "scale_exp"}
                scaled |= {"scale_exp": self.scaler.exp_of(found, lane)}
            random = {"random": i.random.word_select(lane, bits)} if bits else {}
            x = i.x[lane * width : (lane + 1) * width]
            part = Lane(self.source, self.quantizer)
            codes.append(library.place(m, part, f"lane{lane}", x=x, **random, **scaled).code)
        scales = {k: getattr(found, k) for k in self.scaler.codes()} if self.scaler else {}
        return {"codes": Cat(*codes)} | scales


class ConverterTop(Top):
    """The converter's own module."""

    def __init__(self, converter: Converter, library: Library) -> None:
        self.converter, self.library = converter, library
        widths = {**converter.inputs(), **converter.outputs()}
        self.signals = {name: Signal(width, name=name) for name, width in widths.items()}

    def elaborate(self, platform: object) -> Module:
        del platform
        m = Module()
        inputs = {name: self.signals[name] for name in self.converter.inputs()}
        found = self.converter.place(m, SimpleNamespace(**inputs), self.library)
        m.d.comb += [self.signals[name].eq(value) for name, value in found.items()]
        return m


def converter(quantizer: Quantizer, source: str = "float32", lanes: int | None = None) -> Converter:
    """The converter to a quantizer's format.

    lanes: numbers at once; of a block format the whole block, and 1 of a scalar. Where a block is
    no number of elements in a row (a channel, a tensor, a tile) its scale comes from elsewhere, as
    the code `scale`, and lanes are as many as you like [16]. LowprecError for the rules that try
    several scales and for formats with zero points, offsets and outliers.
    """
    if source not in SOURCES:
        raise LowprecError(f"converter: source {source!r}; expected one of {', '.join(SOURCES)}")
    fmt, number = quantizer.format, load_format(source)
    assert isinstance(number, FloatFormat)
    if not isinstance(fmt, BlockFormat):
        check_projection(fmt, quantizer.projection)
        return Converter(number, quantizer, lanes or 1)
    _check(quantizer, fmt)
    if (size := row(fmt)) is not None:
        if lanes not in (None, size):
            raise LowprecError(f"converter: {lanes} lanes; expected the block's {size}")
        lanes = size
    return Converter(number, quantizer, lanes or 16)


def _check(quantizer: Quantizer, fmt: BlockFormat) -> None:
    """LowprecError for what is not built."""
    known = (*POWER_OF_TWO_RULES, *GIVEN_RULES, "amax")
    if quantizer.rule not in known:
        raise LowprecError(
            f"{quantizer.spell()}: no converter for this rule; expected one of {', '.join(known)}"
        )
    if fmt.outlier is not None:
        raise LowprecError(f"{fmt.name}: no converter for formats with outliers")
    check_projection(fmt.element, quantizer.projection)
    check_projection(fmt.scale, ONTO_SCALE)
    for scale in (fmt.scale, *([fmt.outer.scale] if fmt.outer else [])):
        check_scale(scale)
    # What lies below float32's normal range keeps more bits here than there.
    if floor_log2(fmt.element.min_positive_exact) - (quantizer.projection.bits or 1) < -120:
        raise LowprecError(f"{fmt.name}: no converter for elements as small as float32's smallest")
