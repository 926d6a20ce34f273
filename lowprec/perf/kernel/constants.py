"""The fitted constants of a kernel: from the nearest points that were measured.

A constant of a group (a vendor's kernels, on one machine, of one path) is the product of a base
and of one factor each of the vendor, the path, both of them (a library of kernels), the family of
machines and the machine; a group with points of its own has its own. All are fitted by
lowprec/perf/validation/fit.py from the points under benchmarks/validation and stored in
calibration/gemm.toml, factors as logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from lowprec.perf.kernel.chip import Chip
from lowprec.perf.validation.point import Calibration
from lowprec.spec import read_toml

FOLDER = Path(__file__).parents[1] / "calibration"


@dataclass(frozen=True, slots=True)
class Constants:
    """What a matmul kernel and the kernel that quantizes its activation take.

    launch: seconds from one kernel to the next. read, write: shares of the memory bandwidth that
    operands and the result get. busy: share of the datapath's rate that a full tile reaches.
    energy: joules per FLOP over those of `clock.joules`. fill: seconds from a tile's first load to
    its first product, at 1.83 GHz. feed: bytes per clock into a core of the reference width for
    16-bit operands. split: seconds to add up the parts of a split K. quantize: passes over the
    activation's bytes that its quantizer takes; quantize_launch: seconds that it takes beside.
    convert: vector operations per element that the vector units convert or scale.
    """

    launch: float
    read: float
    write: float
    busy: float
    energy: float
    fill: float
    feed: float
    split: float
    quantize: float
    quantize_launch: float
    convert: float


NAMES = tuple(field.name for field in fields(Constants))
# `Constants.energy` of a family that no published rate speaks of.
UNKNOWN_ENERGY = 1.4
# Shares of what the machine has: no constant may make a kernel faster than its datasheet.
SHARES = ("read", "write", "busy")


def levels(vendor: str, path: str, family: str, machine: str) -> tuple[tuple[str, str], ...]:
    """The tables of factors that speak of a group; a library is a vendor's kernels of a path."""
    kind = path.partition("/")[0]
    return (
        ("vendor", vendor),
        ("library", f"{vendor} {kind}"),
        ("path", kind),
        ("family", family),
        ("machine", machine),
    )


def combined(table: Mapping[str, Any], keys: tuple[tuple[str, str], ...]) -> Constants:
    """The base times the factors of `keys` that the table knows."""
    family = dict(keys).get("family", "")
    energy = table.get("energy", {}).get(family)
    base = table["base"] | (
        {"energy": energy * table["base"]["energy"] / UNKNOWN_ENERGY} if energy else {}
    )
    found = [table.get(level, {}).get(name, {}) for level, name in keys]
    values = {
        name: base[name] * math.exp(sum(factors.get(name, 0.0) for factors in found))
        for name in NAMES
    }
    return Constants(**values | {name: min(values[name], 1.0) for name in SHARES})


@cache
def gemm_table() -> dict[str, Any]:
    """calibration/gemm.toml, read once."""
    return read_toml(FOLDER / "gemm.toml")


@cache
def constants(
    vendor: str, path: str, family: str, machine: str, formats: str
) -> tuple[Constants, Calibration]:
    """The constants of a group, and what they rest on; a group's own are transferred to `formats`
    that none of its points has."""
    table = gemm_table()
    own = table.get("group", {}).get(machine, {}).get(path)
    if own is not None:
        known: Calibration = "fitted" if formats in own["formats"] else "transferred"
        return Constants(**{name: own[name] for name in NAMES}), known
    keys = levels(vendor, path, family, machine)
    level: Calibration = "transferred" if vendor in table.get("vendor", {}) else "spec only"
    return combined(table, keys), level


def constants_of(chip: Chip, path: str, formats: str) -> tuple[Constants, Calibration]:
    """Those of the chip, or of the one that it is a what-if of, which are then transferred."""
    found, level = constants(chip.vendor, path, chip.family, chip.name, formats)
    return found, "transferred" if chip.what_if and level == "fitted" else level
