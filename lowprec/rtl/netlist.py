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


@dataclass(frozen=True)
class Model:
    """One module of a BLIF file: its ports, and its statements, one list of words each."""

    inputs: list[str]
    outputs: list[str]
    statements: list[list[str]]


def read_blif(text: str) -> dict[str, Model]:
    """The modules of what yosys's `write_blif` gives, of the library's cells and of each other."""
    found: dict[str, Model] = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split()
        match words[:1]:
            case [".model"]:
                model = found[words[1]] = Model([], [], [])
            case [".inputs"]:
                model.inputs.extend(words[1:])
            case [".outputs"]:
                model.outputs.extend(words[1:])
            case [".subckt"] | [".names"]:
                model.statements.append(words)
    return found


def flattened(models: Mapping[str, Model], top: str) -> Netlist:
    """The module `top` with all that it places."""
    flat = _Flat(models)
    ports = {name: flat.wire() for name in (*models[top].inputs, *models[top].outputs)}
    flat.place(top, ports)
    gates = [_resolved(gate, flat.aliases) for gate in flat.gates]
    return Netlist(
        wires=flat.wires,
        inputs=_buses(models[top].inputs, ports, {}),
        outputs=_buses(models[top].outputs, ports, flat.aliases),
        gates=tuple(_ordered([gate for gate in gates if gate.cell != "DFF"])),
        flip_flops=tuple(gate for gate in gates if gate.cell == "DFF"),
    )


class _Flat:
    """The gates of placed modules, their wires numbered; 0 and 1 are the constants."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        self.models, self.wires = models, 2
        self.gates: list[Gate] = []
        self.aliases: dict[int, int] = {}

    def wire(self) -> int:
        self.wires += 1
        return self.wires - 1

    def place(self, module: str, ports: Mapping[str, int]) -> None:
        """One copy of a module; ports: the wires that those of its own names are."""
        numbers = {"$false": 0, "$true": 1, "$undef": 0, **ports}

        def wire(name: str) -> int:
            found = numbers.get(name)
            if found is None:
                found = numbers[name] = self.wire()
            return found

        for words in self.models[module].statements:
            if words[0] == ".names":
                if len(words) == 3:
                    self.aliases[wire(words[2])] = wire(words[1])
                continue
            pins = {pin: wire(net) for pin, net in (word.split("=", 1) for word in words[2:])}
            if words[1] in self.models:
                self.place(words[1], pins)
            else:
                out = pins.pop("Q") if words[1] == "DFF" else pins.pop("Y")
                inputs = (pins["D"],) if words[1] == "DFF" else tuple(pins[p] for p in sorted(pins))
                self.gates.append(Gate(words[1], inputs, out))


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
