"""Dot-product units: one step of a datapath in hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd
from types import SimpleNamespace

from amaranth.hdl import C, Module, Signal, Value

from lowprec.errors import LowprecError
from lowprec.rtl.align import parts_of
from lowprec.rtl.block import Elements, block_scale, shared_ports
from lowprec.rtl.board import Board, Rounding
from lowprec.rtl.multiply import MultiplySigned
from lowprec.rtl.numbers import Number
from lowprec.rtl.part import Library, Part, Port, Top
from lowprec.rtl.rounded import code_number, convert, promote, tree
from lowprec.rtl.steps import Exact, Lanes, aligned, exact_float, exact_integer, exact_values
from lowprec.rtl.two_stage import two_stage
from lowprec.rtl.unpack import Unpack, carrier, unpack
from lowprec.rtl.validity import check
from lowprec.rtl.verilog import verilog
from lowprec.spec.block import BlockFormat
from lowprec.spec.catalogue import load_format
from lowprec.spec.datapath import Aligned, Datapath, Tree, TwoStage, load_datapath
from lowprec.spec.default_datapath import default_datapath, goes_beyond_scales
from lowprec.spec.format import FloatFormat, Format, IntFormat

LANES = 8


@dataclass(frozen=True)
class Unit:
    """One step of `datapath` for codes of the formats `a` and `b`: d = c + sum a_k b_k.

    lanes: products of a pass. stages: pipeline registers from inputs to outputs; results come that
    many cycles later. scale: the format of the block scales, or None. shared: the block format of
    both operands, if its elements share more than a scale: `a` and `b` are then its elements.
    """

    datapath: Datapath
    a: Format
    b: Format
    lanes: int
    stages: int = 0
    scale: Format | None = None
    shared: BlockFormat | None = None
    carriers: tuple[Format, Format] = field(init=False)

    def __post_init__(self) -> None:
        inputs = self.datapath.inputs
        if self.shared is None:
            of = carrier(self.a, inputs, "a"), carrier(self.b, inputs, "b")
        else:
            of = inputs[0], inputs[0]
        object.__setattr__(self, "carriers", of)
        check(self.datapath, of)

    @property
    def name(self) -> str:
        return f"dot_{self.datapath.name}_{self.lanes}"

    @property
    def integers(self) -> bool:
        """Whether products are of two's complement integers."""
        return isinstance(self.a, IntFormat) and isinstance(self.b, IntFormat) and self.exact

    @property
    def exact(self) -> bool:
        addition = self.datapath.addition
        return isinstance(addition, Aligned) and addition.fraction_bits is None

    @property
    def run(self) -> int:
        """Lanes that share a scale inside the unit."""
        scaling = self.datapath.scaling
        if scaling is None or scaling.position == "outside":
            return self.lanes
        return scaling.group or gcd(scaling.block, self.datapath.step or self.lanes)

    @property
    def scales(self) -> int:
        """Scales of each operand in a pass."""
        return -(-self.lanes // self.run)

    @cached_property
    def ports(self) -> Mapping[str, Port]:
        """Every port but the clock, which there is with stages only."""
        path, n = self.datapath, self.lanes
        acc, out = path.accumulator, path.output
        ports = {
            "a": Port("in", n * self.a.bits, f"{n} codes of {self.a.name}"),
            "b": Port("in", n * self.b.bits, f"{n} codes of {self.b.name}"),
            "c": Port("in", acc.bits, f"accumulator, {acc.name}"),
        }
        if self.scale is not None:
            what = f"{self.scales} codes of {self.scale.name}, one per {self.run} lanes"
            bits = self.scales * self.scale.bits
            ports |= {f"{x}_scale": Port("in", bits, f"scales of {x}: {what}") for x in "ab"}
        if self.shared is not None:
            for name, port in shared_ports(self.shared, n, self.run).items():
                ports |= {f"{x}_{name}": Port("in", port.bits, port.about) for x in "ab"}
        ports["d"] = Port("out", acc.bits, f"accumulator after the step, {acc.name}")
        if path.promotion is not None:
            ports["total"] = Port("in", out.bits, f"promoted sum, {out.name}")
            ports["promoted"] = Port("out", out.bits, f"total after adding d to it, {out.name}")
        return ports

    @property
    def about(self) -> str:
        path = self.datapath
        pair = f"{self.a.name} and {self.b.name}"
        lines = [f"One step of the datapath {path.name}: {self.lanes} products of {pair}."]
        lines += [f"{name}: {port.about}" for name, port in self.ports.items()]
        if self.stages:
            lines.append(f"Outputs come {self.stages} cycles after their inputs.")
        return "\n".join(lines)

    def module(self, library: Library) -> Top:
        return UnitTop(self, library)

    def verilog(self) -> str:
        """The unit as Verilog, one module per part; needs yosys."""
        return verilog(self)


class UnitTop(Top):
    """The unit's own module."""

    def __init__(self, unit: Unit, library: Library) -> None:
        self.unit, self.library = unit, library
        self.signals = {name: Signal(p.bits, name=name) for name, p in unit.ports.items()}

    def elaborate(self, platform: object) -> Module:
        board = Board(Module(), self.library, self.unit.stages)
        outputs = self._build(board, self._inputs())
        outputs = board.cut(list(outputs.values()))
        board.finish()
        names = [name for name, p in self.unit.ports.items() if p.direction == "out"]
        for name, value in zip(names, outputs, strict=True):
            board.m.d.comb += self.signals[name].eq(value)
        return board.m

    def _inputs(self) -> dict[str, Value]:
        ports = self.unit.ports.items()
        return {name: self.signals[name] for name, p in ports if p.direction == "in"}

    def _build(self, board: Board, given: Mapping[str, Value]) -> dict[str, Value]:
        unit, path = self.unit, self.unit.datapath
        d = Step(unit, board, given).code()
        if path.promotion is None:
            return {"d": d}
        d = board.cut(d)
        outside = path.scaling is not None and path.scaling.position == "outside"
        scales = [board.now(s) for s in _scales(unit, board, given)] if outside else None
        return {"d": d, "promoted": promote(board, path, d, board.now(given["total"]), scales)}


def _scales(unit: Unit, board: Board, given: Mapping[str, Value]) -> list[Number]:
    """All scales of a, then all of b."""
    assert unit.scale is not None
    return [
        _scale(unit, board, code, _shared(given, x), f"{x}{k}_scale")
        for x in "ab"
        for k, code in enumerate(parts_of(given[f"{x}_scale"], unit.scales))
    ]


def _scale(
    unit: Unit, board: Board, code: Value, shared: Mapping[str, Value], label: str
) -> Number:
    scaling, scale = unit.datapath.scaling, unit.scale
    assert scale is not None
    if unit.shared is None or scaling is None:
        return board.unpack(unpack(scale, scale, True), code, label)
    return block_scale(board, unit.shared, scaling.formats[0], code, shared, label)


def _shared(given: Mapping[str, Value], which: str) -> dict[str, Value]:
    """The ports of an operand, by their names without its own."""
    return {n.removeprefix(f"{which}_"): v for n, v in given.items() if n.startswith(f"{which}_")}


class Step:
    """The logic of a step on a board."""

    def __init__(self, unit: Unit, board: Board, given: Mapping[str, Value]) -> None:
        self.unit, self.board, self.given = unit, board, given

    def code(self) -> Value:
        """The accumulator after the step."""
        unit, path = self.unit, self.unit.datapath
        if isinstance(path.addition, Tree):
            a, b = self.board.cut(self._unpacked("a"), self._unpacked("b"))
            return tree(self.board, path, a, b, self.given["c"])
        if unit.exact:
            return self._exact()
        to = self._rounding()
        flow = two_stage if isinstance(path.addition, TwoStage) else aligned
        code = flow(self.board, path, self._lanes(), self._start(), to)
        return self._kept(code, to)

    def _exact(self) -> Value:
        path = self.unit.datapath
        integers = self.unit.integers
        found = self._integers() if integers else exact_values(self.board, self._lanes())
        if isinstance(path.accumulator, IntFormat):
            return exact_integer(self.board, found, self.given["c"], path)
        to = self._rounding()
        return self._kept(exact_float(self.board, found, self._start(), to), to)

    def _rounding(self) -> Rounding:
        path = self.unit.datapath
        fmt = path.result or path.accumulator
        assert isinstance(fmt, FloatFormat)
        return Rounding(fmt, path.rounding, path.signed_zero)

    def _kept(self, code: Value, to: Rounding) -> Value:
        fmt = self.unit.datapath.accumulator
        assert isinstance(fmt, FloatFormat)
        return convert(self.board, code, to.format, fmt)

    def _start(self) -> Number:
        return code_number(self.board, self.given["c"], self.unit.datapath.accumulator, "c")

    def _part(self, which: str) -> Unpack:
        unit = self.unit
        fmt, of = (unit.a, unit.carriers[0]) if which == "a" else (unit.b, unit.carriers[1])
        return unpack(fmt, of, unit.exact)

    def _unpacked(self, which: str) -> list[Number]:
        codes = parts_of(self.given[which], self.unit.lanes)
        if (elements := self._elements()) is not None:
            return elements.numbers(self.board, codes, _shared(self.given, which), which)
        part = self._part(which)
        return [self.board.unpack(part, code, f"{which}{k}") for k, code in enumerate(codes)]

    def _elements(self) -> Elements | None:
        """How elements are read that share more than a scale."""
        unit = self.unit
        if unit.shared is None:
            return None
        exact = unit.exact or bool(unit.shared.inner)
        return Elements(unit.shared, unit.carriers[0], unit.run, exact)

    def _integers(self) -> Exact:
        a, b = self.unit.carriers if self.unit.shared else (self.unit.a, self.unit.b)
        assert isinstance(a, IntFormat)
        assert isinstance(b, IntFormat)
        part: Part = MultiplySigned(a.bits, b.bits, a.signed, b.signed)
        codes = zip(self._codes("a"), self._codes("b"), strict=True)
        products = [
            self.board.place(part, f"lane{k}_multiply", x=x, y=y).product
            for k, (x, y) in enumerate(codes)
        ]
        none = SimpleNamespace(nan=C(0, 1), inf=C(0, 1), inf_sign=C(0, 1))
        return Exact(self.board.cut(products), a.exponent + b.exponent, none)

    def _codes(self, which: str) -> list[Value]:
        codes = parts_of(self.given[which], self.unit.lanes)
        elements = self._elements()
        if elements is None:
            return codes
        return elements.codes(self.board, codes, _shared(self.given, which), which)

    def _lanes(self) -> Lanes:
        board, unit = self.board, self.unit
        scaling = unit.datapath.scaling
        inside = scaling is not None and scaling.position == "inside"
        scales = _scales(unit, board, self.given) if inside else []
        a, b, scales = board.cut(self._unpacked("a"), self._unpacked("b"), scales)
        products = [
            board.multiply(x, y, f"lane{k}") for k, (x, y) in enumerate(zip(a, b, strict=True))
        ]
        n = unit.scales
        pairs = zip(scales[:n], scales[n:], strict=True)
        both = [board.multiply(x, y, f"scale{k}") for k, (x, y) in enumerate(pairs)]
        products, both = board.cut(products, both)
        if not inside or scaling is None:
            return Lanes(products)
        return Lanes(products, both, unit.run, scaling.group is not None)


def dot_unit(
    datapath: Datapath | str,
    a: Format | str | None = None,
    b: Format | str | None = None,
    lanes: int | None = None,
    stages: int = 0,
    scale: Format | str | None = None,
) -> Unit:
    """The unit that computes a step of `datapath`.

    a, b: formats whose values are all among those of one of the datapath's inputs, by default the
    first input. lanes: by default the step, or 8 without one; at most the step. scale: one of the
    scaling's formats, by default the first. LowprecError for what does not fit.
    """
    path = load_datapath(datapath) if isinstance(datapath, str) else datapath
    first = path.inputs[0]
    pair = [_format(f, first) for f in (a, b)]
    lanes = lanes or path.step or LANES
    if not 1 <= lanes <= (path.step or lanes):
        raise LowprecError(f"lanes {lanes}: expected 1 to {path.step}, the step of {path.name!r}")
    if stages < 0:
        raise LowprecError(f"stages {stages}: expected 0 or more")
    scales = path.scaling.formats if path.scaling else ()
    chosen = _format(scale, scales[0]) if scales else None
    if (scales and chosen not in scales) or (scale and not scales):
        names = " or ".join(f.name for f in scales) or "no scales"
        raise LowprecError(f"scale: datapath {path.name!r} takes {names}")
    return Unit(path, pair[0], pair[1], lanes, stages, chosen)


def format_unit(fmt: Format | BlockFormat | str, lanes: int | None = None, stages: int = 0) -> Unit:
    """The unit that today's tensor cores would be for a format, with itself for both operands.

    See `lowprec.spec.default_datapath`, of whose step lanes are a part, by default all. Of a block
    format with more than scales the unit takes what its elements share at ports of their own.
    """
    found = load_format(fmt) if isinstance(fmt, str) else fmt
    path = default_datapath(found)
    if isinstance(found, Format):
        return dot_unit(path, found, found, lanes, stages)
    if not goes_beyond_scales(found):
        return dot_unit(path, found.element, found.element, lanes, stages)
    plain = dot_unit(path, None, None, lanes, stages)
    scale = found.scale if path.scaling else None
    return replace(plain, a=found.element, b=found.element, scale=scale, shared=found)


def _format(given: Format | str | None, default: Format) -> Format:
    if given is None:
        return default
    found = load_format(given) if isinstance(given, str) else given
    if not isinstance(found, Format):
        raise LowprecError(f"{given!r} is a block format; expected its element's")
    return found
