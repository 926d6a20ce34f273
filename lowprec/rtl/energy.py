"""An energy proxy: how often the wires of a unit change for a stream of operands.

One step of the unit follows the other, as in hardware that sums along K, so that the accumulator's
wires move as they do there. Glitches, clocks and wires' own lengths are not in it; flip-flops are
not either, as units are taken without pipeline registers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowprec.errors import LowprecError
from lowprec.rtl.synth import mapped
from lowprec.rtl.waves import Waves, bits_of
from lowprec.spec.base import Spec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lowprec.rtl.unit import Unit

    Codes = NDArray[np.integer]


class Energy(Spec):
    """Switched load per product, in inputs of inverters: the sum over wires of changes times load,
    half of which is drawn from the supply at each of them. toggles: changes per wire and step."""

    unit: str
    products: int
    load_per_product: float
    toggles: float


def energy(unit: Unit, a: Codes, b: Codes, scales: tuple[Codes, Codes] | None = None) -> Energy:
    """Of a unit without stages that sums the products of rows of codes along K.

    a, b: code points (rows, K), of which every row is one inner product from c = 0; K is a
    multiple of the lanes. scales: codes (rows, scales of all steps) of a and of b.
    """
    import numpy as np

    if unit.stages or a.shape != b.shape or a.shape[1] % unit.lanes:
        raise LowprecError(
            f"energy: operands {a.shape} and {b.shape}; expected equal shapes of whole steps of "
            f"{unit.lanes}, and a unit without stages"
        )
    netlist = mapped(unit.verilog(), unit.name)
    waves, load = Waves(netlist), np.array(netlist.loads())
    rows, steps = len(a), a.shape[1] // unit.lanes
    state = {
        name: np.zeros((rows, len(netlist.inputs[name])), np.bool_)
        for name in ("c", "total")
        if name in netlist.inputs
    }
    before, switched, changes = None, 0.0, 0.0
    for step in range(steps):
        inputs = state | _operands(unit, a, b, scales, step)
        values = waves.step(inputs)
        if before is not None:
            counts = np.bitwise_count(values ^ before).sum(axis=1, dtype=np.float64)
            switched += float(counts @ load)
            changes += float(counts.sum())
        before = values
        state |= {
            name: waves.read(source, rows)
            for name, source in (("c", "d"), ("total", "promoted"))
            if name in state
        }
    passes = rows * (steps - 1)
    return Energy(
        unit=unit.about.splitlines()[0],
        products=passes * unit.lanes,
        load_per_product=switched / (passes * unit.lanes),
        toggles=changes / (passes * netlist.wires),
    )


def _operands(
    unit: Unit, a: Codes, b: Codes, scales: tuple[Codes, Codes] | None, step: int
) -> dict[str, NDArray[np.bool_]]:
    lanes = slice(step * unit.lanes, (step + 1) * unit.lanes)
    found = {"a": bits_of(a[:, lanes], unit.a.bits), "b": bits_of(b[:, lanes], unit.b.bits)}
    if unit.scale is not None and scales is not None:
        own = slice(step * unit.scales, (step + 1) * unit.scales)
        for name, codes in zip(("a_scale", "b_scale"), scales, strict=True):
            found[name] = bits_of(codes[:, own], unit.scale.bits)
    return found
