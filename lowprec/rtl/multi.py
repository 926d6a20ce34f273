"""Units for several formats: a mode says which, and small ones come twice as fast.

Every slot of the buses a and b holds a code of a wide format or two codes of a narrow one, whose
products the slot's one multiplier forms from its halves. Exponents, windows and the accumulator
are shared; the second product of a slot has an aligner of its own, since each term is cut alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from amaranth.hdl import C, Cat, Module, Mux, Signal, Value

from lowprec.errors import LowprecError
from lowprec.rtl.align import parts_of
from lowprec.rtl.board import Board, Rounding
from lowprec.rtl.multiply import AlignExponent, MultiplySpecial
from lowprec.rtl.numbers import Fields, Number
from lowprec.rtl.part import Library, Port, Top
from lowprec.rtl.rounded import code_number, convert
from lowprec.rtl.shared import MultiplyShared, UnpackMode, common
from lowprec.rtl.steps import Term, align_terms
from lowprec.rtl.unpack import unpack
from lowprec.rtl.validity import check
from lowprec.rtl.verilog import verilog
from lowprec.spec.datapath import Aligned, Datapath
from lowprec.spec.format import FloatFormat


@dataclass(frozen=True)
class Mode:
    """rate: 1, or 2 for two products per slot."""

    a: FloatFormat
    b: FloatFormat
    rate: int = 1


@dataclass(frozen=True)
class MultiUnit:
    """One step of `datapath` for the formats of each mode: d = c + sum a_k b_k over the products
    of all `slots`, rate times as many. Code k of a mode stands at bit k * (slot bits / rate)."""

    datapath: Datapath
    modes: tuple[Mode, ...]
    slots: int
    stages: int = 0

    def __post_init__(self) -> None:
        path = self.datapath
        addition, known = path.addition, path.inputs
        if not isinstance(addition, Aligned) or addition.fraction_bits is None or path.scaling:
            raise LowprecError(
                f"datapath {path.name!r}: several formats in one unit need an aligned addition "
                "with fraction_bits, and no scaling inside"
            )
        for mode in self.modes:
            if mode.a not in known or mode.b not in known:
                names = ", ".join(f.name for f in known)
                raise LowprecError(f"datapath {path.name!r} takes {names}")
            if mode.rate not in (1, 2) or mode.rate * self.slots > (path.step or 1 << 20):
                raise LowprecError(f"rate {mode.rate}: expected 1, or 2, of at most the step")
            if mode.rate == 2 and 2 * max(mode.a.precision, mode.b.precision) > self.bits:
                raise LowprecError(
                    f"{mode.a.name} twice: significands of {mode.a.precision} bits; the "
                    f"multiplier's halves have {self.bits // 2}"
                )
        check(path, (self.modes[0].a, self.modes[0].b))

    @property
    def name(self) -> str:
        return f"dot_{self.datapath.name}_{self.slots}_modes_{len(self.modes)}"

    @property
    def bits(self) -> int:
        """Of a factor of the shared multiplier."""
        return max(max(f.precision for f in (m.a, m.b)) for m in self.modes)

    def lanes(self, mode: int) -> int:
        """Products of a pass in this mode."""
        return self.slots * self.modes[mode].rate

    def slot_bits(self, which: str) -> int:
        return max(getattr(m, which).bits * m.rate for m in self.modes)

    @cached_property
    def ports(self) -> Mapping[str, Port]:
        acc = self.datapath.accumulator
        said = "; ".join(
            f"{k}: {self.lanes(k)} codes, {m.a.name} and {m.b.name}"
            for k, m in enumerate(self.modes)
        )
        ports = {
            x: Port("in", self.slots * self.slot_bits(x), f"{self.slots} slots of codes of {x}")
            for x in "ab"
        }
        ports["mode"] = Port("in", max(1, (len(self.modes) - 1).bit_length()), said)
        ports["c"] = Port("in", acc.bits, f"accumulator, {acc.name}")
        ports["d"] = Port("out", acc.bits, f"accumulator after the step, {acc.name}")
        return ports

    @property
    def about(self) -> str:
        lines = [f"One step of the datapath {self.datapath.name} in {len(self.modes)} modes."]
        return "\n".join([*lines, *(f"{name}: {p.about}" for name, p in self.ports.items())])

    def module(self, library: Library) -> MultiTop:
        return MultiTop(self, library)

    def verilog(self) -> str:
        """The unit as Verilog, one module per part; needs yosys."""
        return verilog(self)


class MultiTop(Top):
    """The unit's own module."""

    def __init__(self, unit: MultiUnit, library: Library) -> None:
        self.unit, self.library = unit, library
        self.signals = {name: Signal(p.bits, name=name) for name, p in unit.ports.items()}

    def elaborate(self, platform: object) -> Module:
        board = Board(Module(), self.library, self.unit.stages)
        code = board.cut(_Step(self.unit, board, self.signals).code())
        board.finish()
        board.m.d.comb += self.signals["d"].eq(code)
        return board.m


class _Step:
    def __init__(self, unit: MultiUnit, board: Board, given: Mapping[str, Value]) -> None:
        self.unit, self.board, self.given = unit, board, given
        rates = [mode.rate for mode in unit.modes]
        self.pair = Signal(name="pair")
        twice = [given["mode"] == k for k, rate in enumerate(rates) if rate == 2]
        board.m.d.comb += self.pair.eq(Cat(*twice).any() if twice else 0)

    def code(self) -> Value:
        board, path = self.board, self.unit.datapath
        slots = [self._slot(k) for k in range(self.unit.slots)]
        slots, pair = board.cut(slots, self.pair)
        terms = [t for k, (first, second) in enumerate(slots)
                 for t in self._products(first, second, pair, f"slot{k}")]  # fmt: skip
        c = code_number(board, self.given["c"], path.accumulator, "c")
        terms = board.cut(terms)
        special = board.specials([*terms, board.now(c)], "terms")
        fmt = path.result or path.accumulator
        assert isinstance(fmt, FloatFormat)
        assert isinstance(path.accumulator, FloatFormat)
        to = Rounding(fmt, path.rounding, path.signed_zero)
        same = [Term(n, n.nonzero) for n in terms]
        return convert(board, align_terms(board, path, same, special, c, to), fmt, path.accumulator)

    # ---- unpacking ----

    def _slot(self, k: int) -> tuple[list[Number], list[Number]]:
        """The factors of a slot's first product, and those of its second one where there is one."""
        codes = {x: parts_of(self.given[x], self.unit.slots)[k] for x in "ab"}
        first = [self._first(x, codes[x], f"{x}{k}") for x in "ab"]
        return first, self._second(codes, k)

    def _first(self, which: str, code: Value, label: str) -> Number:
        """A number in the fields common to all modes."""
        board, formats = self.board, [getattr(mode, which) for mode in self.unit.modes]
        found = [
            board.unpack(unpack(f, f, False), code[: f.bits], f"{label}_mode{j}")
            for j, f in enumerate(formats)
        ]
        choices = tuple(n.fields for n in found)
        part = UnpackMode(choices, common(choices))
        given = {
            f"{what}{j}": getattr(n, what)
            for j, n in enumerate(found)
            for what in ("sign", "t", "e", "nan", "inf")
        }
        o = board.place(part, f"{label}_mode", mode=self.given["mode"], **given)
        return Number(part.fields, o.sign, o.t, o.e, o.nan, o.inf)

    def _second(self, codes: Mapping[str, Value], k: int) -> list[Number]:
        twice = [mode for mode in self.unit.modes if mode.rate == 2]
        if not twice:
            return []
        if len(twice) > 1:
            raise LowprecError("expected one mode of rate 2")
        found = []
        for x in "ab":
            f = getattr(twice[0], x)
            half = self.unit.slot_bits(x) // 2
            code = codes[x][half : half + f.bits]
            found.append(self.board.unpack(unpack(f, f, False), code, f"{x}{k}_second"))
        return found

    # ---- products ----

    def _products(
        self, first: list[Number], second: list[Number], pair: Value, label: str
    ) -> list[Number]:
        """A slot's products, all with the exponents and the span of the first."""
        board, unit = self.board, self.unit
        x, y = first
        part = MultiplyShared(unit.bits)
        tx, ty = (self._factor(n, s, pair) for n, s in zip(first, second or first, strict=True))
        o = board.place(part, f"{label}_multiply", x=tx, y=ty, pair=pair)
        fields = x.fields * y.fields
        wide = Fields(**{**vars(fields), "bits": 2 * unit.bits})
        shift = self._pair_shift(first, second)
        t = Mux(pair, (o.low << shift)[: 2 * unit.bits], o.product) if second else o.product
        numbers = [self._product(x, y, t, wide, f"{label}_first")]
        if second:
            numbers.append(self._second_product(second, o.high & pair.replicate(len(o.high)),
                                                wide, label))  # fmt: skip
        return numbers

    def _factor(self, n: Number, second: Number, pair: Value) -> Value:
        """What the multiplier takes: a significand, or two in its halves."""
        if second is n:
            return n.t
        half = self.unit.bits // 2
        low = n.t[n.fields.fraction - second.fields.fraction :][:half]
        both = Cat(low, C(0, half - len(low)), second.t)
        return Mux(pair, both, n.t)

    def _pair_shift(self, first: list[Number], second: list[Number]) -> int:
        """Places by which the first product of a pair has fewer bits behind the point."""
        return sum(n.fields.fraction for n in first) - sum(n.fields.fraction for n in second)

    def _product(self, x: Number, y: Number, t: Value, fields: Fields, label: str) -> Number:
        e = self._exponent(x, y, fields, label)
        if not fields.special:
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
        s = self.board.place(MultiplySpecial(), f"{label}_special", **given)
        return Number(fields, s.sign, t, e, s.nan, s.inf)

    def _second_product(self, second: list[Number], t: Value, first: Fields, label: str) -> Number:
        x, y = second
        own = x.fields * y.fields
        fields = Fields(len(t), own.fraction, first.low, first.span)
        e = Signal(first.e_bits, name=f"{label}_second_e")
        exponent = self._exponent(x, y, own, f"{label}_second")
        self.board.m.d.comb += e.eq(exponent + (own.low - first.low))
        return Number(fields, x.sign ^ y.sign, t, e, C(0, 1), C(0, 1))

    def _exponent(self, x: Number, y: Number, fields: Fields, label: str) -> Value:
        part = AlignExponent(x.fields.e_bits, y.fields.e_bits, fields.e_bits)
        return self.board.place(part, f"{label}_exponent", x=x.e, y=y.e).e


def multi_unit(
    datapath: Datapath, modes: tuple[Mode, ...], slots: int = 16, stages: int = 0
) -> MultiUnit:
    """The unit of `slots` shared multipliers. LowprecError for modes that it can't have."""
    return MultiUnit(datapath, modes, slots, stages)
