"""Dot products of any length through a unit: what its surroundings do from pass to pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from lowprec.errors import LowprecError
from lowprec.exact.values import code_of
from lowprec.rtl.unit import Unit
from lowprec.spec.format import Format

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Codes = NDArray[np.uint64]
    Run = Callable[[Mapping[str, Codes]], dict[str, Codes]]


def dot(
    unit: Unit, run: Run, a: Codes, b: Codes, c: Codes, scales: tuple[Codes, Codes] | None = None
) -> Codes:
    """d = c + sum a_k b_k, all as code points, in passes through a unit of a whole step.

    a, b: (cases, K). c: (cases,) codes of the datapath's output. scales: (cases, blocks). run: a
    pass, as `simulate` computes it. What a last step lacks is zero codes, which count as nothing
    but in a tree, where a zero of either sign is added.
    """
    import numpy as np

    path, size = unit.datapath, a.shape[1]
    step = path.step or unit.lanes
    if unit.lanes != step:
        raise LowprecError(f"{unit.name}: {unit.lanes} lanes; expected the step, {step}")
    interval = path.promotion.interval if path.promotion else max(size, 1)
    total = c
    for first in range(0, size, interval):
        ks = range(first, min(first + interval, size))
        d = total if path.promotion is None else np.zeros_like(c)
        given, found = {"total": total} if path.promotion else {}, {"d": d}
        for lanes in _steps(ks, unit):
            given |= {
                "a": _lanes(a, lanes, unit, unit.a),
                "b": _lanes(b, lanes, unit, unit.b),
                "c": found["d"],
            }
            found = run(given | _scales(unit, scales, lanes))
        total = found["promoted"] if path.promotion else found["d"]
    return total


def _steps(ks: range, unit: Unit) -> Iterator[list[int]]:
    """The k of each step; of a short one fewer."""
    order = unit.datapath.order or range(unit.lanes)
    for start in range(ks.start, ks.stop, len(order)):
        for first in range(0, len(order), unit.lanes):
            found = [start + i for i in order[first : first + unit.lanes] if start + i < ks.stop]
            if found:
                yield found


def _lanes(codes: Codes, lanes: list[int], unit: Unit, fmt: Format) -> Codes:
    import numpy as np

    zero = code_of(Fraction(0), fmt) if len(lanes) < unit.lanes else 0
    full = np.full((len(codes), unit.lanes), zero, np.uint64)
    full[:, : len(lanes)] = codes[:, lanes]
    return full


def _scales(unit: Unit, scales: tuple[Codes, Codes] | None, lanes: list[int]) -> dict[str, Codes]:
    import numpy as np

    scaling = unit.datapath.scaling
    if scaling is None or scales is None:
        return {}
    last = lanes[-1] // scaling.block
    blocks = [min((lanes[0] + j * unit.run) // scaling.block, last) for j in range(unit.scales)]
    return {f"{x}_scale": s[:, np.array(blocks)] for x, s in zip("ab", scales, strict=True)}
