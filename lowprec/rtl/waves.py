"""What the wires of a mapped netlist carry for many inputs at once: 64 of them in every word."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from lowprec.errors import LowprecError
from lowprec.rtl.netlist import Netlist

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.uint64]
    Bits = NDArray[np.bool_]


class Waves:
    """Evaluates a netlist level by level. State of flip-flops is kept from `step` to `step`.

    Inputs and outputs are arrays of bits (cases, width), least significant first; see `bits_of`
    and `integers`. Every case has its own flip-flops, at first zero.
    """

    def __init__(self, netlist: Netlist) -> None:
        import numpy as np

        self.netlist = netlist
        grouped = defaultdict(list)
        levels = netlist.levels()
        for gate in netlist.gates:
            grouped[levels[gate.output], gate.cell].append((*gate.inputs, gate.output))
        self._groups = [(cell, np.array(g).T) for (_, cell), g in sorted(grouped.items())]
        self._values: Words | None = None

    def step(self, inputs: Mapping[str, Bits]) -> Words:
        """Every wire for these inputs, (wires, words); then the flip-flops take what they read."""
        import numpy as np

        if set(inputs) != set(self.netlist.inputs) - {"clk", "rst"}:
            raise LowprecError(
                f"inputs {', '.join(sorted(inputs))}; expected {', '.join(self.netlist.inputs)}"
            )
        packed = {port: _packed(bits) for port, bits in inputs.items()}
        words = max(p.shape[1] for p in packed.values())
        before, values = self._values, np.zeros((self.netlist.wires, words), np.uint64)
        values[1] = ~np.uint64(0)
        for port, columns in packed.items():
            values[list(self.netlist.inputs[port])] = columns
        if before is not None:
            for gate in self.netlist.flip_flops:
                values[gate.output] = before[gate.inputs[0]]
        for cell, wires in self._groups:
            values[wires[-1]] = _FUNCTIONS[cell](*(values[w] for w in wires[:-1]))
        self._values = values
        return values

    def outputs(self, inputs: Mapping[str, Bits]) -> dict[str, Bits]:
        """The output ports after a `step`."""
        self.step(inputs)
        cases = len(next(iter(inputs.values())))
        return {port: self.read(port, cases) for port in self.netlist.outputs}

    def read(self, port: str, cases: int) -> Bits:
        """An output port after the last `step`."""
        assert self._values is not None
        return _unpacked(self._values[list(self.netlist.outputs[port])], cases)


_FUNCTIONS: dict[str, Callable[..., Words]] = {
    "INV": lambda a: ~a,
    "BUF": lambda a: a,
    "NAND2": lambda a, b: ~(a & b),
    "NOR2": lambda a, b: ~(a | b),
    "AOI21": lambda a, b, c: ~(a & b | c),
    "OAI21": lambda a, b, c: ~((a | b) & c),
    "XOR2": lambda a, b: a ^ b,
    "XNOR2": lambda a, b: ~(a ^ b),
    "MUX2": lambda a, b, s: a ^ (a ^ b) & s,
}


def _packed(bits: Bits) -> Words:
    """(cases, width) to (width, words)."""
    import numpy as np

    padded = np.zeros((bits.shape[1], -(-len(bits) // 64) * 64), np.uint8)
    padded[:, : len(bits)] = bits.T
    return np.packbits(padded, axis=1, bitorder="little").view(np.uint64)


def _unpacked(words: Words, cases: int) -> Bits:
    import numpy as np

    bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little")
    return bits[:, :cases].T.astype(bool)


def bits_of(numbers: NDArray[np.integer], width: int) -> Bits:
    """Unsigned integers (cases,) or (cases, lanes) as bits, lanes one after the other."""
    import numpy as np

    wide = numbers.astype(np.uint64).reshape(len(numbers), -1, 1)
    bits = wide >> np.arange(width, dtype=np.uint64) & np.uint64(1)
    return bits.reshape(len(numbers), -1).astype(bool)


def integers(bits: Bits, width: int) -> NDArray[np.uint64]:
    """The lanes of `width` bits, (cases, lanes)."""
    import numpy as np

    weights = np.uint64(1) << np.arange(width, dtype=np.uint64)
    return bits.reshape(len(bits), -1, width) @ weights
