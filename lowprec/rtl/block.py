"""Elements of block formats: from their codes and what they share beside a scale to numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace

from amaranth.hdl import Module, Mux, Value

from lowprec.errors import LowprecError
from lowprec.exact.values import code_of
from lowprec.rtl.align import parts_of
from lowprec.rtl.board import Board
from lowprec.rtl.multiply import AlignExponent
from lowprec.rtl.numbers import Fields, Number
from lowprec.rtl.part import Part, Port, Ports
from lowprec.rtl.shared import UnpackMode, common
from lowprec.rtl.unpack import unpack
from lowprec.spec.block import BlockFormat
from lowprec.spec.default_datapath import has_two_levels, less_zero
from lowprec.spec.format import Format, IntFormat


@dataclass(frozen=True)
class UnpackLess(Part):
    """An integer less the zero point."""

    element: IntFormat
    zero_point: IntFormat

    @property
    def name(self) -> str:
        return f"unpack_{self.element.name}_less_{self.zero_point.name}"

    @property
    def about(self) -> str:
        return f"{self.element.name} less the zero point, {self.zero_point.name}."

    def inputs(self) -> Ports:
        return {"code": self.element.bits, "zero_point": self.zero_point.bits}

    def outputs(self) -> Ports:
        return {"difference": less_zero(self.element, self.zero_point).bits}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        code = i.code.as_signed() if self.element.signed else i.code
        zero = i.zero_point.as_signed() if self.zero_point.signed else i.zero_point
        return {"difference": (code - zero)[: less_zero(self.element, self.zero_point).bits]}


@dataclass(frozen=True)
class UnpackOnes(Part):
    """The code of 1 in place of an element's."""

    element: Format

    @property
    def name(self) -> str:
        return f"unpack_ones_{self.element.name}".replace(".", "_").replace("-", "_")

    @property
    def about(self) -> str:
        return f"{self.element.name}, or with `ones` the code of 1: a block's offset has no other."

    def inputs(self) -> Ports:
        return {"code": self.element.bits, "ones": 1}

    def outputs(self) -> Ports:
        return {"element": self.element.bits}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        return {"element": Mux(i.ones, code_of(Fraction(1), self.element), i.code)}


def shared_ports(fmt: BlockFormat, lanes: int, run: int) -> dict[str, Port]:
    """What an operand's lanes share, by the port's name without the operand's. run: lanes that
    share a scale."""
    runs, ports = -(-lanes // run), {}
    if fmt.outer is not None and has_two_levels(fmt):
        scale = fmt.outer.scale
        ports["outer"] = Port("in", scale.bits, f"outer scale: code of {scale.name}")
    for at, level in enumerate(fmt.inner):
        count, size = _inner(lanes, int(level.block[0]), fmt)
        what = f"inner scales: {count} codes of {level.scale.name}, one per {size} lanes"
        ports[f"inner{at}"] = Port("in", count * level.scale.bits, what)
    if (zero := fmt.zero_point) is not None:
        ports["zero_point"] = Port("in", runs * zero.bits, f"{runs} codes of {zero.name}")
    if fmt.outlier is not None:
        what = f"{runs} places among {run} lanes of what is {fmt.outlier.element.name}, {run} none"
        ports["outlier"] = Port("in", runs * _place_bits(run), what)
    if fmt.offset is not None:
        ports["ones"] = Port("in", 1, "all lanes are 1, and the scale is minus the offset's code")
    return ports


def _inner(lanes: int, size: int, fmt: BlockFormat) -> tuple[int, int]:
    """Inner scales of a pass, and the lanes of each."""
    if lanes % size and size % lanes:
        raise LowprecError(
            f"{fmt.name}: {lanes} lanes; expected whole parts of {size}, or parts of one"
        )
    return max(1, lanes // size), min(lanes, size)


def _place_bits(run: int) -> int:
    return run.bit_length()


@dataclass(frozen=True)
class Elements:
    """How the lanes of a block format are read. of: the datapath's input that holds their values.
    exact: their exponents do not matter."""

    format: BlockFormat
    of: Format
    run: int
    exact: bool

    def numbers(
        self, board: Board, codes: list[Value], shared: Mapping[str, Value], label: str
    ) -> list[Number]:
        fmt = self.format
        codes = self.codes(board, codes, shared, label)
        zero = fmt.zero_point
        element = fmt.element if zero is None else less_zero(fmt.element, zero)
        part = unpack(element, self.of, self.exact)
        found = [board.unpack(part, code, f"{label}{k}") for k, code in enumerate(codes)]
        if fmt.outlier is not None:
            found = self._outliers(board, found, codes, shared["outlier"], label)
        for at, level in enumerate(fmt.inner):
            inner = unpack(level.scale, level.scale, True)
            count, size = _inner(len(codes), int(level.block[0]), fmt)
            scales = [
                board.unpack(inner, code, f"{label}_inner{at}_{k}")
                for k, code in enumerate(parts_of(shared[f"inner{at}"], count))
            ]
            found = [
                _times_power(board, x, scales[k // size], f"{label}{k}_inner{at}")
                for k, x in enumerate(found)
            ]
        return found

    def codes(
        self, board: Board, codes: list[Value], shared: Mapping[str, Value], label: str
    ) -> list[Value]:
        """Less the zero point, or ones in their place."""
        fmt = self.format
        if fmt.offset is not None:
            part = UnpackOnes(fmt.element)
            return [
                board.place(part, f"{label}{k}_ones", code=code, ones=shared["ones"]).element
                for k, code in enumerate(codes)
            ]
        if fmt.zero_point is None:
            return codes
        assert isinstance(fmt.element, IntFormat)  # BlockFormat sees to it.
        assert isinstance(fmt.zero_point, IntFormat)
        less = UnpackLess(fmt.element, fmt.zero_point)
        zeros = parts_of(shared["zero_point"], -(-len(codes) // self.run))
        return [
            board.place(
                less, f"{label}{k}_less", code=code, zero_point=zeros[k // self.run]
            ).difference
            for k, code in enumerate(codes)
        ]

    def _outliers(
        self, board: Board, plain: list[Number], codes: list[Value], places: Value, label: str
    ) -> list[Number]:
        """The lane that its run's place names in the outlier's format."""
        assert self.format.outlier is not None
        part = unpack(self.format.outlier.element, self.of, self.exact)
        choices = (plain[0].fields, part.fields)
        either = UnpackMode(choices, common(choices))
        per_run = parts_of(places, -(-len(codes) // self.run))
        found = []
        for k, (x, code) in enumerate(zip(plain, codes, strict=True)):
            y = board.unpack(part, code, f"{label}{k}_outlier")
            given = {
                f"{what}{j}": getattr(n, what)
                for j, n in enumerate((x, y))
                for what in ("sign", "t", "e", "nan", "inf")
            }
            here = per_run[k // self.run] == k % self.run
            o = board.place(either, f"{label}{k}_either", mode=here, **given)
            found.append(Number(either.fields, o.sign, o.t, o.e, o.nan, o.inf))
        return found


def _times_power(board: Board, x: Number, power: Number, label: str) -> Number:
    """x times a power of two: a sum of exponents. A NaN stays one."""
    f, by = x.fields, power.fields
    fields = Fields(
        f.bits, f.fraction, f.low + by.low, f.span + by.span, f.signed, f.nan or by.nan, f.infinity
    )
    part = AlignExponent(f.e_bits, by.e_bits, fields.e_bits)
    e = board.place(part, label, x=x.e, y=power.e).e
    return Number(fields, x.sign, x.t, e, x.nan | power.nan if by.nan else x.nan, x.inf)


def block_scale(
    board: Board, fmt: BlockFormat, of: Format, code: Value, shared: Mapping[str, Value], label: str
) -> Number:
    """The scale that the datapath has, of the format `of`: of two levels their product."""
    two = has_two_levels(fmt)
    found = board.unpack(unpack(fmt.scale, of, two), code, label)
    if fmt.outer is not None and two:
        outer = unpack(fmt.outer.scale, of, True)
        times = board.unpack(outer, shared["outer"], f"{label}_outer")
        found = board.normal(board.multiply(found, times, label), label)
    if fmt.offset is None:
        return found
    fields = Fields(**{**vars(found.fields), "signed": True})
    return Number(fields, found.sign ^ shared["ones"], found.t, found.e, found.nan, found.inf)
