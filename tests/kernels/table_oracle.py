"""Roundings by the table of a format's values, for more inputs than the oracle can answer."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from lowprec import exact
from lowprec.eval.conformance.scalars import project
from lowprec.spec import Format, Projection
from tests.kernels.oracle import assert_same_bits

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
# Inputs at a time, so that temporaries stay in a cache.
CHUNK = 1 << 18


def project_by_table(x: Tensor, fmt: Format, projection: Projection) -> Tensor:
    """`exact.project` of every element of `x` (rank 1).

    Between the smallest and the largest magnitude of either sign the two neighbours come from the
    oracle's value table, and what is left is this choice between them. The oracle itself answers
    the rest, which has few answers, and 2,000 of the others to check this one.
    """
    y = torch.empty_like(x)
    inside = torch.zeros(x.shape, dtype=torch.bool)
    for minus in (False, True):
        magnitudes, odd = table(fmt, minus)
        if len(magnitudes) < 2:
            continue
        wide = x.double()
        there = (wide.abs() > magnitudes[0]) & (wide.abs() < magnitudes[-1])
        at = (there & (wide.signbit() == minus)).nonzero().flatten()
        for part in at.split(CHUNK):
            found = chosen(wide[part].abs().numpy(), magnitudes, odd, projection.rounding, minus)
            y[part] = torch.from_numpy(-found if minus else found).to(x.dtype)
        inside[at] = True
    y[~inside] = project(x[~inside], fmt, projection)
    some = inside.nonzero().flatten()[:: max(int(inside.sum()) // 2000, 1)]
    expected = [float(exact.project(v, fmt, projection)) for v in x[some].tolist()]
    assert_same_bits(y[some], torch.tensor(expected, dtype=x.dtype), x[some])
    return y


@cache
def table(fmt: Format, minus: bool) -> tuple[Floats, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """The finite magnitudes of one sign in rising order, and whether their codes are odd."""
    values = np.array([float(v) for v in exact.value_table(fmt)])
    codes = np.arange(len(values))
    kept = np.isfinite(values) & (values < 0 if minus else values > 0)
    magnitudes, codes = np.abs(values[kept]), codes[kept]
    order = np.argsort(magnitudes)
    return magnitudes[order], codes[order] % 2 == 1


def chosen(x: Floats, magnitudes: Floats, odd: np.ndarray, rounding: str, minus: bool) -> Floats:
    """Of the neighbours of each magnitude the one that `rounding` takes."""
    at = np.searchsorted(magnitudes, x, side="right") - 1
    low, high = magnitudes[at], magnitudes[at + 1]
    if rounding.startswith("nearest"):
        # Exact: x and its neighbours have few bits, and lie within a factor of a few.
        below, above = x - low, high - x
        tie = odd[at] if rounding == "nearest-even" else True
        up = (above < below) | ((above == below) & tie)
    elif rounding == "to-odd":
        up = (x != low) & ~odd[at]
    else:
        away = rounding == ("down" if minus else "up")
        up = (x != low) & away
    return np.where(up, high, low)
