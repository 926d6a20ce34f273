"""Synthesis: Verilog onto the fixed cell library by yosys and its abc, counted by component."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path

from pydantic import ValidationError

from lowprec.rtl import yosys
from lowprec.rtl.library import LIBRARY, cells
from lowprec.rtl.netlist import Model, Netlist, flattened, read_blif
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


# The modules of new.v are mapped, those of known.v only placed. Of abc's default script for liberty
# files, all but the sweeping by SAT, which takes minutes where a unit divides and changes areas by
# 1 %.
SCRIPT = f"""
read_verilog -lib known.v
read_verilog new.v
synth -flatten
dfflibmap -liberty {LIBRARY.name}
abc -liberty {LIBRARY.name} -script +strash;dc2;strash;&get,-n;&dch,-f;&nf;&put
opt_clean
write_blif new.blif
"""


def synthesise(verilog: str, top: str) -> Synthesis:
    """The module `top` of a Verilog text mapped onto the cell library, from the cache if there."""
    name = _digest(verilog + top)
    record = _folder() / f"{name}.json"
    try:
        return Synthesis.model_validate_json(record.read_text())
    except (OSError, ValidationError):
        pass
    models = _models(verilog)
    netlist = flattened(models, top)
    found = Synthesis(
        digest_of_input=name,
        yosys=yosys.version().strip(),
        components=tuple(_components(models, top)),
        depth=netlist.depth,
        delay=netlist.delay,
    )
    _write(record, found.model_dump_json(indent=1) + "\n")
    return found


def mapped(verilog: str, top: str) -> Netlist:
    """Its flat netlist."""
    return flattened(_models(verilog), top)


def _folder() -> Path:
    folder = cache_dir() / "synthesis"
    folder.mkdir(exist_ok=True)
    return folder


def _digest(text: str) -> str:
    """Of a text and of all that else decides what becomes of it."""
    key = [text, LIBRARY.read_text(), SCRIPT, yosys.version()]
    return sha256("\0".join(key).encode()).hexdigest()


def _write(path: Path, text: str) -> None:
    """All of it or nothing: another process may read at any moment."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    Path(file.name).replace(path)


def _models(verilog: str) -> dict[str, Model]:
    """Every module mapped by itself. Those of components have each a file in the cache, so that
    units which share modules share the work; the rest are flattened into the top."""
    texts = _modules(verilog)
    files = {
        name: _folder() / f"{_digest(text)}.blif"
        for name, text in texts.items()
        if component_of(name) != "other"
    }
    known = {name: path.read_text() for name, path in files.items() if path.exists()}
    new = [name for name in texts if name not in known]
    blif = _mapped([texts[n] for n in known], {n: texts[n] for n in new}, set(files))
    models = read_blif("\n".join(known.values()) + blif)
    for text in re.findall(r"^\.model .*?^\.end$", blif, re.M | re.S):
        if (path := files.get(text.split()[1])) is not None:
            _write(path, f"{text}\n")
    return models


def _modules(verilog: str) -> dict[str, str]:
    """The text of each module by its name."""
    found = re.finditer(r"^module (\w+)\s*\(.*?^endmodule", verilog, re.M | re.S)
    return {match[1]: match[0] for match in found}


def _mapped(known: Iterable[str], new: Mapping[str, str], kept: set[str]) -> str:
    """BLIF of the new modules; those `kept` are not flattened into others."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / LIBRARY.name).write_text(LIBRARY.read_text())
        (work / "known.v").write_text("\n".join(known))
        mark = "(* keep_hierarchy *)\n"
        marked = [(mark if name in kept else "") + text for name, text in new.items()]
        (work / "new.v").write_text("\n".join(marked))
        yosys.run(SCRIPT, work)
        return (work / "new.blif").read_text()


def component_of(module: str) -> str:
    """The component that a module's name begins with: ``multiply_4x4`` is of "multiply"."""
    word = re.split(r"[^a-z]", module, maxsplit=1)[0]
    return word if word in COMPONENTS else "other"


def _components(models: Mapping[str, Model], top: str) -> list[Component]:
    """Cells by component, every module counted as often as it is placed."""
    found: dict[str, Counter[str]] = {}

    def count(module: str, times: int) -> None:
        placed = Counter(words[1] for words in models[module].statements if words[0] == ".subckt")
        for cell, n in placed.items():
            if cell in models:
                count(cell, n * times)
            else:
                found.setdefault(component_of(module), Counter())[cell] += n * times

    count(top, 1)
    return [
        Component(name=name, cells=dict(sorted(c.items()))) for name, c in sorted(found.items())
    ]
