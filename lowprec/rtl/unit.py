"""Dot-product units: one step of a datapath in hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd

from lowprec.errors import LowprecError
from lowprec.rtl.block import shared_ports
from lowprec.rtl.part import Library, Port, Top
from lowprec.rtl.unit_top import UnitTop
from lowprec.rtl.unpack import carrier
from lowprec.rtl.validity import check, check_names
from lowprec.rtl.verilog import verilog
from lowprec.spec.block import BlockFormat
from lowprec.spec.catalogue import load_format
from lowprec.spec.datapath import Aligned, Datapath, load_datapath
from lowprec.spec.default_datapath import default_datapath, goes_beyond_scales
from lowprec.spec.format import Format, IntFormat

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
        parts = self.shared.parts.values() if self.shared else ()
        given = (self.a, self.b, self.scale, self.datapath.accumulator, *parts)
        check_names(fmt for fmt in given if fmt is not None)

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
