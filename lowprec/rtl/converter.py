"""Converters: float32 or bfloat16 numbers to the codes and scales of a quantizer's format."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from lowprec.errors import LowprecError
from lowprec.exact.scale import ONTO_SCALE
from lowprec.rtl.align import parts_of
from lowprec.rtl.error import BITS, ConvertAdd, ConvertBetter, ConvertError
from lowprec.rtl.lane import Lane
from lowprec.rtl.part import Library, Ports, Top
from lowprec.rtl.project import check_projection
from lowprec.rtl.scaler import Scaler
from lowprec.rtl.scales import SCALED, check_scale, row
from lowprec.rtl.verilog import verilog
from lowprec.spec import load_format
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import FloatFormat, floor_log2
from lowprec.spec.quantizer import SEARCHING_RULES, Quantizer

SOURCES = ("float32", "bfloat16")


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

    @property
    def searches(self) -> bool:
        """Whether it tries one of several scales in a pass."""
        return self.scaler is not None and self.scaler.candidates > 1

    def inputs(self) -> Ports:
        bits = (self.quantizer.projection.bits or 0) * self.lanes
        random = {"random": bits} if bits else {}
        given = self.scaler.given() if self.scaler else {}
        best = {f"best_{k}": v for k, v in self._chosen().items()} if self.searches else {}
        least = {"least": BITS} if self.searches else {}
        return {"x": self.source.bits * self.lanes, **random, **given, **least, **best}

    def outputs(self) -> Ports:
        return {**self._chosen(), **({"error": BITS} if self.searches else {})}

    def _chosen(self) -> Ports:
        """What becomes of a block."""
        element = Lane(self.source, self.quantizer).element
        scales = self.scaler.codes() if self.scaler else {}
        return {"codes": element.bits * self.lanes, **scales}

    def place(self, m: Module, i: SimpleNamespace, library: Library) -> Mapping[str, Value]:
        """The scaler and the lanes in `m`; i: the inputs. Gives the outputs."""
        part, bits = Lane(self.source, self.quantizer), self.quantizer.projection.bits
        scaler, scaled = self.scaler, None
        if scaler is not None:
            given = {k: getattr(i, k) for k in scaler.given()}
            scaled = library.place(m, scaler, "scaler", x=i.x, **given)
        numbers, codes = parts_of(i.x, self.lanes), []
        for lane, x in enumerate(numbers):
            shared = {} if scaler is None or scaled is None else scaler.of_lane(scaled, i, lane)
            random = {"random": i.random.word_select(lane, bits)} if bits else {}
            codes.append(library.place(m, part, f"lane{lane}", x=x, **random, **shared).code)
        if scaler is None or scaled is None:
            return {"codes": Cat(*codes)}
        found = {"codes": Cat(*codes)} | {k: getattr(scaled, k) for k in scaler.codes()}
        if not self.searches:
            return found
        return self._better(m, i, library, found, self._error(m, library, numbers, codes, scaled))

    def _error(
        self,
        m: Module,
        library: Library,
        numbers: Sequence[Value],
        codes: Sequence[Value],
        scaled: SimpleNamespace,
    ) -> Value:
        """E: the second half of the squared errors is added to the first until one is left."""
        part = ConvertError(self.source, Lane(self.source, self.quantizer).element)
        scale = {k: getattr(scaled, k) for k in SCALED if k != "scale_exp"}
        scale["scale_exp"] = scaled.exp0
        terms = [
            library.place(m, part, f"error{k}", x=x, code=code, **scale).error
            for k, (x, code) in enumerate(zip(numbers, codes, strict=True))
        ]
        size = 1 << (len(terms) - 1).bit_length()
        while size > 1:
            size //= 2
            pairs = zip(terms[:size], terms[size:], strict=False)
            sums = [
                library.place(m, ConvertAdd(), f"sum{size}_{k}", first=x, second=y).total
                for k, (x, y) in enumerate(pairs)
            ]
            terms = sums + terms[len(sums) : size]
        return terms[0]

    def _better(
        self,
        m: Module,
        i: SimpleNamespace,
        library: Library,
        found: Mapping[str, Value],
        error: Value,
    ) -> dict[str, Value]:
        """This candidate's codes and error, or the best ones so far."""
        part = ConvertBetter(len(i.candidate))
        given = {"error": error, "least": i.least, "candidate": i.candidate}
        better = library.place(m, part, "better", **given).better
        chosen = {k: Mux(better, v, getattr(i, f"best_{k}")) for k, v in found.items()}
        return chosen | {"error": Mux(better, error, i.least)}


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
    the code `scale`, and lanes are as many as you like [16]; so it does under static and fixed.
    Rules that try several scales try one in a pass, the first of which is `candidate` 0: outputs
    go back in as `best_codes`, `best_scales` and `least`. LowprecError for what is not built.
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
    along_k = row(fmt) is not None
    if not along_k and (quantizer.rule in SEARCHING_RULES or fmt.offset or fmt.outlier):
        raise LowprecError(
            f"{quantizer.spell()}: no converter: it needs all of a block at once, and one per "
            f"{fmt.block} has no fixed size"
        )
    elements = [fmt.element, *([fmt.outlier.element] if fmt.outlier else [])]
    for element in elements:
        check_projection(element, quantizer.projection)
    check_projection(fmt.scale, ONTO_SCALE)
    if fmt.offset is not None:
        check_projection(fmt.offset, ONTO_SCALE)
    scales = [fmt.scale, *([fmt.outer.scale] if fmt.outer else [])]
    scales += [fmt.offset] if fmt.offset else []
    scales += [fmt.element] if quantizer.rule in SEARCHING_RULES else []
    for scale in scales:
        check_scale(scale)
    # What lies below float32's normal range keeps more bits here than there.
    lowest = min(floor_log2(element.min_positive_exact) for element in elements)
    if lowest - (quantizer.projection.bits or 1) < -120:
        raise LowprecError(f"{fmt.name}: no converter for elements as small as float32's smallest")
