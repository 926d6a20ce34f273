"""The module of a dot-product unit: a step of its datapath on a board, and its promotion."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING

from amaranth.hdl import C, Module, Signal, Value

from lowprec.rtl.align import parts_of
from lowprec.rtl.block import Elements, block_scale
from lowprec.rtl.board import Board, Rounding
from lowprec.rtl.multiply import MultiplySigned
from lowprec.rtl.numbers import Number
from lowprec.rtl.part import Library, Part, Top
from lowprec.rtl.rounded import code_number, convert, promote, tree
from lowprec.rtl.steps import Exact, Lanes, aligned, exact_float, exact_integer, exact_values
from lowprec.rtl.two_stage import two_stage
from lowprec.rtl.unpack import Unpack, unpack
from lowprec.spec.datapath import Tree, TwoStage
from lowprec.spec.format import FloatFormat, IntFormat

if TYPE_CHECKING:
    from lowprec.rtl.unit import Unit


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
