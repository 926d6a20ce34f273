"""What the template of a dot product needs to know of a datapath."""

from __future__ import annotations

from typing import Any

from lowprec.errors import LowprecError
from lowprec.proposal.vectors.dots import LARGEST_STEP, unit_of
from lowprec.spec import Aligned, Datapath, FloatFormat, Format, IntFormat, Tree, TwoStage
from lowprec.spec.format import pow2

DOUBLE, FLOAT = 53, 24

INTEGERS = {
    "nearest-even": "round",
    "nearest-away": "nearest_away",
    "toward-zero": "math.trunc",
    "up": "math.ceil",
    "down": "math.floor",
    "to-odd": "to_odd",
}


# Functions of C99's <math.h>, in its default rounding mode.
INTEGERS_C = {
    "nearest-even": "rint",
    "nearest-away": "round",
    "toward-zero": "trunc",
    "up": "ceil",
    "down": "floor",
}


def dot_context(path: Datapath) -> dict[str, Any]:
    """What ``dot.py.jinja`` asks for; LowprecError for datapaths that it does not hold."""
    scaling = path.scaling
    inside = scaling is not None and scaling.position == "inside"
    _check(path, inside)
    scale = scaling.formats[0] if scaling else None
    unit = LARGEST_STEP if path.step is None and not path.promotion else unit_of(path)
    whole = path.accumulator if isinstance(path.accumulator, IntFormat) else None
    return {
        "path": path,
        "add": path.addition,
        "out": path.result or path.accumulator,
        "unit": unit,
        "size": path.step or unit,
        "modulus": float((1 << whole.bits) * pow2(whole.exponent)) if whole else None,
        "scales": scaling is not None,
        "inside": inside,
        "outside": scaling is not None and not inside,
        "group": (scaling.group if scaling else None) or 1,
        "scale_emin": scale.emin if isinstance(scale, FloatFormat) else 0,
        "integer": INTEGERS.__getitem__,
    }


def _check(path: Datapath, inside: bool) -> None:
    if isinstance(path.addition, Tree) and (path.accumulator.name != "float32" or path.promotion):
        raise LowprecError(f"datapath {path.name!r}: no reference for trees but plain float32 ones")
    bits = _product_bits(path, inside)
    if bits > DOUBLE:
        raise LowprecError(f"datapath {path.name!r}: no reference: products of {bits} bits")


def _product_bits(path: Datapath, inside: bool) -> int:
    precisions = [f.precision if isinstance(f, FloatFormat) else f.bits for f in path.inputs]
    bits = 2 * max(precisions)
    if inside and path.scaling:
        bits += 2 * max(f.precision for f in path.scaling.formats if isinstance(f, FloatFormat))
    return bits


def check_c(path: Datapath) -> None:
    """LowprecError where C's double does not hold what is summed on the way."""
    bits, why = _sum_bits(path), ""
    if bits is None:
        why = "exact sums of floats"
    elif bits > DOUBLE:
        why = f"sums of {bits} bits"
    elif "to-odd" in (path.rounding, getattr(path.addition, "rounding", "")):
        why = "rounding to odd"
    elif path.promotion and not _is_promoted_in_c(path, path.promotion.format):
        why = f"promotion to {path.promotion.format.name}"
    if why:
        raise LowprecError(f"datapath {path.name!r}: no dot product in C: {why}")


def _is_promoted_in_c(path: Datapath, fmt: Format) -> bool:
    """By a float addition or multiply-add, or by an addition in double that is rounded once more,
    which is the same for formats of half of its precision."""
    outside = path.scaling is not None and path.scaling.position == "outside"
    if not isinstance(path.accumulator, FloatFormat) or not isinstance(fmt, FloatFormat):
        return False
    return fmt.name == "float32" or (fmt.precision <= FLOAT and not outside)


def _sum_bits(path: Datapath) -> int | None:
    """Bits that the sums of a step may take; None for exact sums of floats."""
    carries = (path.step or LARGEST_STEP).bit_length() + 1
    match path.addition:
        case Tree():
            return FLOAT
        case TwoStage() as add:
            return add.dot_bits + 3 + carries
        case Aligned(fraction_bits=None):
            whole = all(isinstance(f, IntFormat) for f in (*path.inputs, path.accumulator))
            return (
                max(path.accumulator.bits, 2 * max(f.bits for f in path.inputs)) + carries
                if whole
                else None
            )
        case Aligned() as add:
            group = (path.scaling.group if path.scaling else None) or 1
            own = (add.fraction_bits or 0) + 3 + carries
            return max(own, _group_bits(path, group)) if group > 1 else own


def _group_bits(path: Datapath, group: int) -> int:
    """Of an exact sum of a group's products, which have their scales in common."""
    width = max(
        f.precision + f.emax - f.emin if isinstance(f, FloatFormat) else f.bits for f in path.inputs
    )
    assert path.scaling is not None
    scales = max(f.precision for f in path.scaling.formats if isinstance(f, FloatFormat))
    return 2 * width + 2 * scales + group.bit_length()
