"""The units in Verilog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowprec.errors import LowprecError
from lowprec.proposal.sections.datapath import Synthesised
from lowprec.proposal.subject import Proposal, Side

if TYPE_CHECKING:
    from lowprec.rtl import Unit


@dataclass(frozen=True)
class Verilog:
    """Sources by file name, and why what is missing could not be built."""

    files: dict[str, str]
    missing: tuple[str, ...]


def check_tools() -> None:
    """LowprecError where Amaranth or yosys is not installed."""
    from lowprec.rtl import yosys

    yosys.command()


def verilog(p: Proposal) -> Verilog:
    """The dot-product unit and the converter from float32."""
    from lowprec.rtl.converter import converter

    found, missing = {}, []
    try:
        unit = _unit(p.ours)
        found[f"{unit.name}.v"] = unit.verilog()
    except LowprecError as error:
        missing.append(f"dot-product unit: {error}")
    try:
        convert = converter(p.ours.quantizer)
        found[f"{convert.name}.v"] = convert.verilog()
    except LowprecError as error:
        missing.append(f"converter: {error}")
    return Verilog(found, tuple(missing))


def _unit(side: Side) -> Unit:
    from lowprec.rtl import dot_unit

    path = side.unit
    if path is None:
        raise LowprecError(side.no_unit)
    scale = path.scaling.formats[0] if path.scaling else None
    return dot_unit(path, path.inputs[0], path.inputs[0], path.step, scale=scale)


def synthesised(p: Proposal) -> Synthesised | None:
    """Gates of the unit and of the baseline's, counted by yosys; None where ours has no unit.

    Counts are kept in the cache by the digest of the Verilog.
    """
    from lowprec.rtl import yosys
    from lowprec.rtl.cost import cost

    found: list[dict[str, float] | None] = []
    for side in (p.ours, p.baseline):
        try:
            found.append(cost(_unit(side)).by_component() if side else None)
        except LowprecError:
            found.append(None)
    ours, theirs = found
    tool = " ".join(yosys.version().split()[:2])
    return Synthesised(ours, theirs, tool) if ours else None
