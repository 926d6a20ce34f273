"""The units in Verilog."""

from __future__ import annotations

from dataclasses import dataclass

from lowprec.errors import LowprecError
from lowprec.proposal.subject import Proposal


@dataclass(frozen=True)
class Verilog:
    """Sources by file name, and why what is missing could not be built."""

    files: dict[str, str]
    missing: tuple[str, ...]


def verilog(p: Proposal) -> Verilog:
    """The dot-product unit and the converter from float32.

    LowprecError where Amaranth or yosys is not installed.
    """
    from lowprec.rtl import dot_unit, yosys
    from lowprec.rtl.converter import converter

    yosys.command()
    found, missing = {}, []
    unit = p.ours.unit
    if unit is None:
        missing.append(f"dot-product unit: {p.ours.no_unit}")
    else:
        scale = unit.scaling.formats[0] if unit.scaling else None
        try:
            made = dot_unit(unit, unit.inputs[0], unit.inputs[0], unit.step, scale=scale)
            found[f"{made.name}.v"] = made.verilog()
        except LowprecError as error:
            missing.append(f"dot-product unit: {error}")
    try:
        convert = converter(p.ours.quantizer)
        found[f"{convert.name}.v"] = convert.verilog()
    except LowprecError as error:
        missing.append(f"converter: {error}")
    return Verilog(found, tuple(missing))
