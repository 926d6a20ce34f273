"""What a training framework takes beside its kernels."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

from lowprec.errors import unknown
from lowprec.spec import Spec, read_toml
from lowprec.spec.load import build


class Framework(Spec):
    """Seconds of a step over those of its kernels alone; see calibration/training.toml."""

    slowdown: float
    interval: tuple[float, float]
    source: str


AS_PRICED = Framework(slowdown=1.0, interval=(1.0, math.inf), source="the bound")


def framework(name: str) -> Framework:
    """LowprecError names the nearest known one."""
    known = _frameworks()
    if name not in known:
        raise unknown("software", name, known)
    return known[name]


@cache
def _frameworks() -> dict[str, Framework]:
    path = Path(__file__).parent / "calibration" / "training.toml"
    return {
        name: build(Framework, fields | {"interval": tuple(fields["interval"])}, f"{path}: {name}")
        for name, fields in read_toml(path).items()
    }
