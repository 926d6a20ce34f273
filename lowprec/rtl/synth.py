"""Synthesis: Verilog onto the fixed cell library by yosys and its abc, counted by component."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lowprec.errors import LowprecError
from lowprec.rtl import yosys
from lowprec.rtl.library import LIBRARY, cells
from lowprec.rtl.netlist import Netlist, read_blif
from lowprec.spec.base import Spec
from lowprec.spec.load import cache_dir

# A module whose name begins with one of these words is kept whole, so that its cells are counted
# apart, and mapped once however often it is placed; all others are flattened into their holders.
COMPONENTS = ("unpack", "multiply", "align", "add", "scale", "accumulate", "convert")


class Component(Spec):
    """Cells of one kind of module, all its instances together, and what they come to."""

    name: str
    cells: dict[str, int]

    @property
    def gates(self) -> float:
        """NAND2 equivalents, flip-flops aside."""
        return sum(n * cells()[c].area for c, n in self.cells.items() if c != "DFF")

    @property
    def transistors(self) -> int:
        """Flip-flops aside."""
        return sum(n * cells()[c].transistors for c, n in self.cells.items() if c != "DFF")

    @property
    def flip_flops(self) -> int:
        return self.cells.get("DFF", 0)


class Synthesis(Spec):
    """A mapped unit. depth: cells on the longest path between ports and flip-flops; delay: the
    same path in FO4. digest: of the Verilog, the library, this flow and yosys's version."""

    digest_of_input: str
    yosys: str
    components: tuple[Component, ...]
    depth: int
    delay: float

    @property
    def gates(self) -> float:
        """NAND2 equivalents of the logic, flip-flops aside."""
        return sum(c.gates for c in self.components)

    @property
    def transistors(self) -> int:
        return sum(c.transistors for c in self.components)

    @property
    def flip_flops(self) -> int:
        return sum(c.flip_flops for c in self.components)

    @property
    def area(self) -> float:
        """NAND2 equivalents of logic and flip-flops."""
        return self.gates + self.flip_flops * cells()["DFF"].area

    def by_component(self) -> dict[str, float]:
        """Gates by component; what belongs to none is "other"."""
        return {c.name: c.gates for c in self.components}


def synthesise(verilog: str, top: str = "top") -> Synthesis:
    """The unit mapped onto the cell library, from the cache where it is there."""
    return _cached(verilog, top)[0]


def mapped(verilog: str, top: str = "top") -> Netlist:
    """Its flat netlist, likewise."""
    return read_blif(_cached(verilog, top)[1], top)


def _cached(verilog: str, top: str) -> tuple[Synthesis, str]:
    key = [verilog, top, LIBRARY.read_text(), _script(["m"], top), yosys.version()]
    name = sha256("\0".join(key).encode()).hexdigest()
    folder = cache_dir() / "synthesis"
    folder.mkdir(exist_ok=True)
    record, blif = folder / f"{name}.json", folder / f"{name}.blif"
    try:
        return Synthesis.model_validate_json(record.read_text()), blif.read_text()
    except (OSError, ValidationError):
        pass
    with tempfile.TemporaryDirectory(dir=folder) as work:
        found, netlist = _synthesise(verilog, top, name, Path(work))
        for path, text in ((blif, netlist), (record, found.model_dump_json(indent=1) + "\n")):
            temporary = Path(work) / path.name
            temporary.write_text(text)
            temporary.replace(path)
    return found, netlist


def _script(kept: list[str], top: str) -> str:
    lib = LIBRARY.name
    keep = "".join(f"setattr -mod -set keep_hierarchy 1 {name}\n" for name in kept)
    return (
        f"read_verilog unit.v\nhierarchy -check -top {top}\n{keep}synth -flatten -top {top}\n"
        f"dfflibmap -liberty {lib}\nabc -liberty {lib}\nopt_clean\n"
        f"tee -o stat.txt stat\n"
        f"write_blif unit.blif\n"
    )


def _synthesise(verilog: str, top: str, name: str, work: Path) -> tuple[Synthesis, str]:
    (work / "unit.v").write_text(verilog)
    (work / LIBRARY.name).write_text(LIBRARY.read_text())
    modules = re.findall(r"^module (\\?\S+?)\s*\(", verilog, re.M)
    kept = [module for module in modules if component_of(module) != "other"]
    yosys.run(_script(kept, top), work)
    blif = (work / "unit.blif").read_text()
    netlist = read_blif(blif, top)
    data: dict[str, Any] = {
        "digest_of_input": name,
        "yosys": yosys.version().strip(),
        "components": tuple(_components((work / "stat.txt").read_text(), top)),
        "depth": netlist.depth,
        "delay": netlist.delay,
    }
    return Synthesis(**data), blif


def component_of(module: str) -> str:
    """The component that a module's name begins with: ``multiply_4x4`` is of "multiply"."""
    word = re.split(r"[^a-z]", module.lstrip("\\"), maxsplit=1)[0]
    return word if word in COMPONENTS else "other"


def _components(stat: str, top: str) -> list[Component]:
    """Cells by component from yosys's `stat`, every module as often as it is placed."""
    modules = {
        name.lstrip("\\"): {
            cell.lstrip("\\"): int(n) for cell, n in re.findall(r"^     (\S+) +(\d+)$", body, re.M)
        }
        for name, body in re.findall(r"=== (\S+) ===\n(.*?)(?=\n===|\Z)", stat, re.S)
        if name != "design"
    }
    found: dict[str, Counter[str]] = {}

    def count(module: str, times: int) -> None:
        for cell, n in modules[module].items():
            if cell in cells():
                found.setdefault(component_of(module), Counter())[cell] += n * times
            elif cell in modules:
                count(cell, n * times)
            else:
                raise LowprecError(f"synthesis: {module} holds {cell}, which the library lacks")

    count(top, 1)
    return [
        Component(name=name, cells=dict(sorted(c.items()))) for name, c in sorted(found.items())
    ]
