"""Simulation of units: the gates of their Verilog, or Amaranth's own simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from lowprec.errors import LowprecError
from lowprec.rtl.gates import WORDS, Program, program
from lowprec.rtl.multi import MultiUnit
from lowprec.rtl.part import Library, Part
from lowprec.rtl.unit import Unit
from lowprec.rtl.verilog import verilog

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Codes = NDArray[np.uint64]
    Bits = NDArray[np.bool_]

_CHUNK = 1 << 15
AnyUnit = Unit | MultiUnit
Change = Callable[[Part], Part]


def _unchanged(part: Part) -> Part:
    return part


def simulate(
    unit: AnyUnit,
    vectors: Mapping[str, Codes],
    engine: Literal["gates", "amaranth"] = "gates",
    change: Change = _unchanged,
) -> dict[str, Codes]:
    """The outputs of `unit` for these inputs, all as code points.

    vectors: an array of shape (cases,) for each input port, of (cases, lanes) for ports that carry
    several codes. engine: "gates" maps the Verilog to gates with yosys (cached) and needs a C
    compiler; "amaranth" needs neither and is slow. change: see `Library.change`.
    """
    bits = {name: p for name, p in unit.ports.items() if p.direction == "in"}
    if vectors.keys() != bits.keys():
        raise LowprecError(f"inputs of {unit.name}: expected {', '.join(bits)}")
    if engine == "amaranth":
        return _amaranth(unit, vectors, change)
    return run(unit, compiled(unit, change), vectors)


def compiled(unit: AnyUnit, change: Change = _unchanged) -> Program:
    """The unit's gates, for several calls of `run`."""
    return program(verilog(unit, change), unit.name)


def run(unit: AnyUnit, gates: Program, vectors: Mapping[str, Codes]) -> dict[str, Codes]:
    """As `simulate`, of gates that are there."""
    import numpy as np

    cases = len(vectors["c"])
    chunks = [
        _run(unit, gates, {n: codes[k : k + _CHUNK] for n, codes in vectors.items()})
        for k in range(0, max(cases, 1), _CHUNK)
    ]
    return {name: np.concatenate([c[name] for c in chunks]) for name in chunks[0]}


def _run(unit: AnyUnit, gates: Program, vectors: Mapping[str, Codes]) -> dict[str, Codes]:
    import numpy as np

    cases = len(next(iter(vectors.values())))
    planes = [_planes(codes, unit.ports[name].bits) for name, codes in sorted(vectors.items())]
    out = gates.run(np.concatenate(planes), unit.stages)
    found, first = {}, 0
    for name in sorted(n for n, p in unit.ports.items() if p.direction == "out"):
        width = unit.ports[name].bits
        found[name] = _codes(out[first : first + width], cases)
        first += width
    return found


def run_bits(
    gates: Program, widths: Mapping[str, int], given: Mapping[str, Bits]
) -> dict[str, Bits]:
    """The outputs of any design without registers as bits (cases, width), lowest first, for inputs
    likewise. widths: of the outputs."""
    import numpy as np

    cases = len(next(iter(given.values())))
    full = -(-max(cases, 1) // (64 * WORDS)) * (64 * WORDS)
    bits = np.concatenate([given[name] for name in sorted(given)], axis=1)
    padded = np.zeros((full, bits.shape[1]), np.uint8)
    padded[:cases] = bits
    planes = np.packbits(padded, axis=0, bitorder="little").T
    out = gates.run(np.ascontiguousarray(planes).view(np.uint64), 0)
    raw = np.unpackbits(np.ascontiguousarray(out).view(np.uint8), axis=1, bitorder="little")
    found, first = {}, 0
    for name in sorted(widths):
        found[name] = raw[first : first + widths[name], :cases].T.astype(bool)
        first += widths[name]
    return found


def _planes(codes: Codes, bits: int) -> NDArray[np.uint64]:
    """(bits, words): each bit of all cases, 64 of them in a word."""
    import numpy as np

    codes = np.asarray(codes, np.uint64).reshape(len(codes), -1)
    places = np.arange(bits // codes.shape[1], dtype=np.uint64)
    flat = ((codes[:, :, None] >> places) & np.uint64(1)).astype(np.uint8).reshape(len(codes), bits)
    full = -(-max(len(codes), 1) // (64 * WORDS)) * (64 * WORDS)
    padded = np.zeros((full, bits), np.uint8)
    padded[: len(codes)] = flat
    return np.ascontiguousarray(np.packbits(padded, axis=0, bitorder="little").T).view(np.uint64)


def _codes(planes: NDArray[np.uint64], cases: int) -> Codes:
    import numpy as np

    raw = np.ascontiguousarray(planes).view(np.uint8)
    bits = np.unpackbits(raw, axis=1, bitorder="little")[:, :cases].astype(np.uint64)
    places = np.arange(len(bits), dtype=np.uint64)
    return (bits << places[:, None]).sum(0, dtype=np.uint64)


def _amaranth(unit: AnyUnit, vectors: Mapping[str, Codes], change: Change) -> dict[str, Codes]:
    import numpy as np
    from amaranth.sim import Simulator

    top = unit.module(Library(inline=True, change=change))
    cases, stages = len(next(iter(vectors.values()))), unit.stages
    outputs = [name for name, p in unit.ports.items() if p.direction == "out"]
    found: dict[str, list[int]] = {name: [] for name in outputs}

    async def bench(context: object) -> None:
        for k in range(cases + stages):
            for name, codes in vectors.items():
                if k < cases:
                    context.set(top.signals[name], _joined(unit, name, codes[k]))  # type: ignore[attr-defined]
            if k >= stages:
                for name in outputs:
                    found[name].append(context.get(top.signals[name]))  # type: ignore[attr-defined]
            if stages:
                await context.tick()  # type: ignore[attr-defined]

    simulator = Simulator(top)
    if stages:
        simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return {name: np.array(codes, np.uint64) for name, codes in found.items()}


def _joined(unit: AnyUnit, name: str, codes: Codes) -> int:
    """The bus of one case's codes."""
    import numpy as np

    lanes = [int(c) for c in np.atleast_1d(codes)]
    width = unit.ports[name].bits // len(lanes)
    return sum(code << (k * width) for k, code in enumerate(lanes))
