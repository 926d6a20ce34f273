"""The fixed cell library: ``cells/textbook.lib``, which also gives the reason of each number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LIBRARY = Path(__file__).parent / "cells" / "textbook.lib"

# An inverter that drives four of its like takes 1 (parasitic) + 4 tau.
FO4 = 5.0


@dataclass(frozen=True)
class Cell:
    """area: in NAND2 equivalents. delay: tau. load: of one input, in inputs of inverters."""

    area: float
    transistors: int
    delay: float
    load: float


@cache
def cells() -> dict[str, Cell]:
    """Every cell by its name."""
    text = LIBRARY.read_text()
    return {
        name: _cell(body)
        for name, body in re.findall(r"\n  cell\((\w+)\) \{(.*?)\n  \}", text, re.S)
    }


def _cell(body: str) -> Cell:
    def number(pattern: str) -> float:
        found = re.search(pattern, body)
        return float(found[1]) if found else 0.0

    return Cell(
        area=number(r"area : ([\d.]+)"),
        transistors=int(number(r"transistors : (\d+)")),
        delay=number(r'cell_rise\(flat\) \{ values \("([\d.]+)'),
        load=number(r"capacitance : ([\d.]+)"),
    )
