"""Verilog of units, with comments that name formats and fields."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from amaranth.back import rtlil
from amaranth.hdl import Elaboratable, Signal

from lowprec.rtl import yosys
from lowprec.rtl.part import Built, Design, Library, Part
from lowprec.spec.load import cache_dir

_WRITE = "read_ilang unit.il\nproc -norom\nopt_expr\nopt_clean\nwrite_verilog -noattr unit.v\n"


def verilog(unit: Design, change: Callable[[Part], Part] = lambda part: part) -> str:
    """The design's module, then those of its parts. change: as `Library.change`."""
    library = Library(change=change)
    top = unit.module(library)
    texts = [(_rtlil(top, unit.name, list(top.signals.values())), unit.about)]
    texts += [(_part(part), part.about) for part in library.parts.values()]
    modules = _written(tuple(text for text, _ in texts))
    about = [comment for _, comment in texts]
    return "\n".join(_commented(*each) for each in zip(modules, about, strict=True))


@lru_cache(maxsize=4096)
def _part(part: Part) -> str:
    built = Built(part)
    return _rtlil(built, part.name, built.ports)


def _rtlil(design: Elaboratable, name: str, ports: list[Signal]) -> str:
    text: str = rtlil.convert(design, name=name, ports=ports, emit_src=False)
    return text.replace("attribute \\top 1\n", "")


def _written(modules: tuple[str, ...]) -> list[str]:
    """RTLIL to Verilog, from the cache what is there."""
    folder = cache_dir() / "verilog"
    folder.mkdir(exist_ok=True)
    keys = [sha256((_WRITE + yosys.version() + text).encode()).hexdigest()[:24] for text in modules]
    paths = [folder / f"{key}.v" for key in keys]
    fresh = {path: text for path, text in zip(paths, modules, strict=True) if not path.exists()}
    if fresh:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            work = Path(name)
            (work / "unit.il").write_text("\n".join(fresh.values()))
            yosys.run(_WRITE, work)
            found = split((work / "unit.v").read_text())
            for path, text in fresh.items():
                module = re.search(r"^module \\(\S+)", text, re.M)
                assert module
                (work / path.name).write_text(found[module[1]])
                (work / path.name).replace(path)
    return [path.read_text() for path in paths]


def split(verilog: str) -> dict[str, str]:
    """The modules of a Verilog file by their names, each with the comment before it."""
    found = re.findall(r"((?:^//[^\n]*\n)*^module (\S+?)\(.*?^endmodule\n)", verilog, re.M | re.S)
    return {name: text for text, name in found}


def _commented(text: str, about: str) -> str:
    """With what the module does in front, and without the second declaration of ports."""
    ports = set(re.findall(r"^  (?:in|out)put (.*;)$", text, re.M))
    lines = [s for s in text.splitlines() if s.removeprefix("  wire ") not in ports]
    return "".join(f"// {line}\n" for line in about.splitlines()) + "\n".join(lines) + "\n"
