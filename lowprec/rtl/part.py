"""Parts: the modules that a unit is made of, and the library that places them.

A part is a frozen set of parameters that names a module and builds its logic. Parts of equal
parameters are one module, placed many times, so that Verilog stays short and synthesis does each
only once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Protocol

from amaranth.hdl import Elaboratable, Instance, Module, Shape, Signal, Value

Ports = Mapping[str, int | Shape]


@dataclass(frozen=True)
class Port:
    """direction: "in" or "out". bits: of all lanes, the first of which is lowest. about: what."""

    direction: str
    bits: int
    about: str


class Top(Elaboratable):
    """The module of a whole design, with its ports by name."""

    signals: dict[str, Signal]


class Design(Protocol):
    """A unit or a converter: what becomes Verilog. about: for readers of it."""

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str: ...

    def module(self, library: Library) -> Top: ...


@dataclass(frozen=True)
class Part:
    """One module. Its inputs and outputs are ports by name, with their widths in bits."""

    @property
    def name(self) -> str:
        """The module's name: the component that cost is counted by, then its parameters."""
        raise NotImplementedError

    @property
    def about(self) -> str:
        """What the module does, for readers of the Verilog."""
        raise NotImplementedError

    def inputs(self) -> Ports:
        raise NotImplementedError

    def outputs(self) -> Ports:
        raise NotImplementedError

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        """Adds the logic to `m`; i: the input signals by name. Gives the outputs by name."""
        raise NotImplementedError


class Built(Elaboratable):
    """A part's module with its signals."""

    def __init__(self, part: Part) -> None:
        self.part = part
        assert not part.inputs().keys() & part.outputs().keys(), part.name
        self.inputs = {k: Signal(w, name=k) for k, w in part.inputs().items()}
        self.outputs = {k: Signal(w, name=k) for k, w in part.outputs().items()}

    @property
    def ports(self) -> list[Signal]:
        return [*self.inputs.values(), *self.outputs.values()]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        found = self.part.build(m, SimpleNamespace(**self.inputs))
        assert found.keys() == self.outputs.keys(), self.part.name
        m.d.comb += [self.outputs[k].eq(v) for k, v in found.items()]
        return m


@dataclass
class Library:
    """Places parts: as instances of shared modules, or `inline`, as Amaranth's simulator needs.

    change: of each part that is placed, the one to place instead (faults).
    """

    inline: bool = False
    change: Callable[[Part], Part] = lambda part: part
    parts: dict[str, Part] = field(default_factory=dict)

    def place(self, m: Module, part: Part, label: str = "", **inputs: Value) -> SimpleNamespace:
        """A copy of `part` in `m` with these inputs; gives its outputs. label: of this copy."""
        part = self.change(part)
        assert inputs.keys() == part.inputs().keys(), part.name
        label = label or part.name
        if self.inline:
            built = Built(part)
            m.submodules += built
            m.d.comb += [built.inputs[k].eq(v) for k, v in inputs.items()]
            return SimpleNamespace(**built.outputs)
        known = self.parts.setdefault(part.name, part)
        assert known == part, f"two parts are called {part.name}"
        outputs = {k: Signal(w, name=f"{label}_{k}") for k, w in part.outputs().items()}
        wires = {k: Signal(w, name=f"{label}_in_{k}") for k, w in part.inputs().items()}
        m.d.comb += [wires[k].eq(v) for k, v in inputs.items()]
        m.submodules += Instance(
            part.name,
            *[("i", k, wires[k]) for k in inputs],
            *[("o", k, signal) for k, signal in outputs.items()],
        )
        return SimpleNamespace(**outputs)
