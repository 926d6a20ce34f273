"""What the template of a dot product needs to know of a datapath."""

from __future__ import annotations

from typing import Any

from lowprec.errors import LowprecError
from lowprec.proposal.vectors.dots import LARGEST_STEP, unit_of
from lowprec.spec import Datapath, FloatFormat, Tree

INTEGERS = {
    "nearest-even": "round",
    "nearest-away": "nearest_away",
    "toward-zero": "math.trunc",
    "up": "math.ceil",
    "down": "math.floor",
    "to-odd": "to_odd",
}


def dot_context(path: Datapath) -> dict[str, Any]:
    """What ``dot.py.jinja`` asks for; LowprecError for datapaths that it does not hold."""
    scaling = path.scaling
    inside = scaling is not None and scaling.position == "inside"
    _check(path, inside)
    scale = scaling.formats[0] if scaling else None
    return {
        "path": path,
        "add": path.addition,
        "out": path.result or path.accumulator,
        "unit": LARGEST_STEP if path.step is None and not path.promotion else unit_of(path),
        "scales": scaling is not None,
        "inside": inside,
        "outside": scaling is not None and not inside,
        "group": (scaling.group if scaling else None) or 1,
        "scale_emin": scale.emin if isinstance(scale, FloatFormat) else 0,
        "integer": INTEGERS.__getitem__,
    }


def _check(path: Datapath, inside: bool) -> None:
    if isinstance(path.addition, Tree):
        raise LowprecError(f"datapath {path.name!r}: no reference for trees of additions")
    precisions = [f.precision if isinstance(f, FloatFormat) else f.bits for f in path.inputs]
    bits = 2 * max(precisions)
    if inside and path.scaling:
        bits += 2 * max(f.precision for f in path.scaling.formats if isinstance(f, FloatFormat))
    if bits > 53:
        raise LowprecError(f"datapath {path.name!r}: no reference: products of {bits} bits")
