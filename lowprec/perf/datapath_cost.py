"""What a dot-product unit costs, from its datapath alone: no synthesis, in microseconds.

`unit_pieces` counts adders, multiplexers and so on as `lowprec.rtl` builds them; here is what each
costs, fitted to synthesised units (``calibration/datapath_cost.toml`` says which, and how far off
the model was on formats, windows and lanes that it was not fitted to).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import log2
from pathlib import Path

from lowprec.errors import LowprecError
from lowprec.perf.pieces import PIECES, Pieces, number
from lowprec.perf.unit_pieces import pieces
from lowprec.spec import (
    BlockFormat,
    CodebookFormat,
    Datapath,
    Format,
    IntFormat,
    Spec,
    Tree,
    build,
    read_toml,
)
from lowprec.spec.default_datapath import LANES, default_datapath, goes_beyond_scales

FILE = Path(__file__).parent / "calibration" / "datapath_cost.toml"


class Constants(Spec):
    """gates: NAND2 equivalents of a bit of each piece. transistors: per gate. interval: the half
    width, as a share, that holds 90 % of the errors on units left out. delay: FO4, see `delay`."""

    gates: dict[str, float]
    transistors: float
    interval: float
    delay: dict[str, float]
    delay_interval: float
    source: str


class StructuralCost(Spec):
    """Gates are NAND2 equivalents without pipeline registers; low and high hold 90 %.

    components: gates of each. delay: FO4 of a step without pipeline registers, and without the
    promotion, which comes once per interval.
    """

    components: dict[str, float]
    lanes: int
    gates: float
    low: float
    high: float
    transistors: float
    delay: float

    @property
    def gates_per_lane(self) -> float:
        return self.gates / self.lanes


@cache
def constants() -> Constants:
    return build(Constants, read_toml(FILE), str(FILE))


def structural_cost(
    path: Datapath,
    a: Format | None = None,
    b: Format | None = None,
    lanes: int | None = None,
    scale: Format | None = None,
    shared: BlockFormat | None = None,
) -> StructuralCost:
    """Cost of the unit of one step of `path`; arguments as `lowprec.rtl.Unit` has them."""
    a, b = a or path.inputs[0], b or path.inputs[0]
    lanes = lanes or path.step or 8
    if path.step is not None and lanes > path.step:
        raise LowprecError(f"lanes {lanes}: expected 1 to {path.step}, the step of {path.name!r}")
    if scale is None and path.scaling is not None:
        scale = path.scaling.formats[0]
    known = constants()
    found = pieces(path, a, b, lanes, scale, shared)
    components = {name: gates(each, known.gates) for name, each in found.items()}
    total = sum(components.values())
    return StructuralCost(
        components=components,
        lanes=lanes,
        gates=total,
        low=total * (1 - known.interval),
        high=total * (1 + known.interval),
        transistors=total * known.transistors,
        delay=sum(known.delay[k] * n for k, n in levels(path, a, b, lanes).items()),
    )


def format_cost(
    fmt: Format | BlockFormat, lanes: int = LANES, fraction_bits: int | None = None
) -> StructuralCost:
    """Of the unit that today's tensor cores would be for a format, with the window that they have
    or another one: `lowprec.rtl.format_unit`."""
    path = default_datapath(fmt, fraction_bits, lanes)
    if not isinstance(fmt, BlockFormat):
        return structural_cost(path, fmt, fmt)
    shared = fmt if goes_beyond_scales(fmt) else None
    scale = fmt.scale if path.scaling else None
    return structural_cost(path, fmt.element, fmt.element, scale=scale, shared=shared)


def gates(each: Pieces, prices: Mapping[str, float]) -> float:
    return sum(prices[piece] * each[piece] for piece in PIECES)


def levels(path: Datapath, a: Format, b: Format, lanes: int) -> dict[str, float]:
    """What a unit's delay grows with: the logarithms of its lanes and widths.

    tree: levels of its adders. width: of log2 of the sum's bits, for shifting and carries.
    product: of log2 of the significands' bits. table: bits of codes that are looked up. float: 1
    where exponents are compared. exact: width once more where an exact sum becomes a float.
    """
    x, y = (number(fmt, path.inputs[0]) for fmt in (a, b))
    whole = isinstance(path.accumulator, IntFormat)
    bits = getattr(path.addition, "fraction_bits", None) or getattr(path.addition, "dot_bits", None)
    width = bits + 4 if bits else x.bits + y.bits + x.span + y.span
    tree = log2(lanes) if lanes > 1 else 0.0
    deep = lanes.bit_length() if isinstance(path.addition, Tree) else 1
    return {
        "tree": tree,
        "width": log2(width) * (1 if whole else deep),
        "product": log2(x.bits + y.bits),
        "table": float(max(f.bits * isinstance(f, CodebookFormat) for f in (a, b))),
        "float": 0.0 if whole else float(deep),
        # An exact sum is normalised before it meets the accumulator, and after.
        "exact": 0.0 if whole or bits or deep > 1 else log2(width),
        "constant": 1.0,
    }
