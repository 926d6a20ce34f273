"""A mapped netlist: its depth, and what every wire of it carries, for many inputs at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowprec.rtl.library import FO4, cells

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Gate:
    """One cell: `inputs` and `output` are numbers of wires. A DFF's output is a start of paths."""

    cell: str
    inputs: tuple[int, ...]
    output: int


@dataclass(frozen=True)
class Netlist:
    """Wires 0 and 1 are the constants. ports: the wires of each, least significant bit first.

    gates: in an order in which each cell follows those that it reads, flip-flops aside.
    """

    wires: int
    inputs: dict[str, tuple[int, ...]]
    outputs: dict[str, tuple[int, ...]]
    gates: tuple[Gate, ...]
    flip_flops: tuple[Gate, ...]

    def levels(self) -> list[int]:
        """Cells on the longest path to each wire, from an input or a flip-flop."""
        found = [0] * self.wires
        for gate in self.gates:
            found[gate.output] = 1 + max(found[wire] for wire in gate.inputs)
        return found

    @property
    def depth(self) -> int:
        """Cells on the longest path between ports and flip-flops."""
        return max(self.levels(), default=0)

    @property
    def delay(self) -> float:
        """The longest such path in FO4: delays of an inverter with four of its like."""
        library, found = cells(), [0.0] * self.wires
        for gate in self.gates:
            slowest = max(found[wire] for wire in gate.inputs)
            found[gate.output] = slowest + library[gate.cell].delay
        return max(found, default=0.0) / FO4

    def loads(self) -> list[float]:
        """What each wire drives, in inputs of inverters: those of the cells that read it, and one
        for itself."""
        library, found = cells(), [1.0] * self.wires
        for gate in (*self.gates, *self.flip_flops):
            for wire in gate.inputs:
                found[wire] += library[gate.cell].load
        return found


def read_blif(text: str) -> Netlist:
    """A flat netlist as yosys's `write_blif` gives it, of the library's cells."""
    numbers: dict[str, int] = {"$false": 0, "$true": 1}

    def wire(name: str) -> int:
        return numbers.setdefault(name, len(numbers))

    ports: dict[str, list[str]] = {".inputs": [], ".outputs": []}
    gates: list[Gate] = []
    aliases: dict[int, int] = {}
    for words in _lines(text):
        match words[0]:
            case ".inputs" | ".outputs":
                ports[words[0]] += words[1:]
            case ".subckt":
                pins = dict(pin.split("=", 1) for pin in words[2:])
                out = pins.pop("Q", None) or pins.pop("Y")
                pins.pop("C" if words[1] == "DFF" else "", None)
                inputs = tuple(wire(pins[pin]) for pin in sorted(pins))
                gates.append(Gate(words[1], inputs, wire(out)))
            case ".names" if len(words) == 3:
                aliases[wire(words[2])] = wire(words[1])
            case ".names":
                wire(words[1])  # a constant
    gates = [_resolved(gate, aliases) for gate in gates]
    drivers = {wire(name) for name in ports[".inputs"]}
    order = tuple(_ordered([g for g in gates if g.cell != "DFF"]))
    return Netlist(
        wires=len(numbers),
        inputs=_buses(ports[".inputs"], numbers, {}),
        outputs=_buses(ports[".outputs"], numbers, aliases),
        gates=order,
        flip_flops=tuple(g for g in gates if g.cell == "DFF" and g.output not in drivers),
    )


def _lines(text: str) -> Iterator[list[str]]:
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split()
        if words and words[0].startswith("."):
            yield words


def _source(wire: int, aliases: Mapping[int, int]) -> int:
    while wire in aliases:
        wire = aliases[wire]
    return wire


def _resolved(gate: Gate, aliases: Mapping[int, int]) -> Gate:
    return Gate(gate.cell, tuple(_source(w, aliases) for w in gate.inputs), gate.output)


def _buses(
    names: list[str], numbers: Mapping[str, int], aliases: Mapping[int, int]
) -> dict[str, tuple[int, ...]]:
    """The wires of each port by its name: ``a[0] a[1]`` are two of the port a."""
    found: dict[str, dict[int, int]] = {}
    for name in names:
        port, _, place = name.partition("[")
        index = int(place[:-1]) if place else 0
        found.setdefault(port, {})[index] = _source(numbers[name], aliases)
    return {port: tuple(bits[i] for i in sorted(bits)) for port, bits in found.items()}


def _ordered(gates: list[Gate]) -> Iterator[Gate]:
    """Every gate after those whose outputs it reads."""
    by_output = {gate.output: gate for gate in gates}
    done: set[int] = set()
    for gate in gates:
        stack = [gate]
        while stack:
            top = stack[-1]
            if top.output in done:
                stack.pop()
                continue
            waits = [by_output[w] for w in top.inputs if w in by_output and w not in done]
            if waits:
                stack += waits
            else:
                stack.pop()
                done.add(top.output)
                yield top
