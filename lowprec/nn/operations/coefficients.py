"""Coefficients of the polynomials with which vector units estimate functions, by Remez exchange."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lowprec.spec.approximation import Estimate

Array = NDArray[np.float64]
_GRID = 1024  # points on which the error's extrema are sought
_ROUNDS = 30


@lru_cache(maxsize=64)
def coefficients(function: str, estimate: Estimate) -> NDArray[np.float32]:
    """(segments, degree + 1), the constant term first, for the distance from a segment's left end.

    The segments of exp2 are those of [0, 1); of reciprocal and rsqrt, of t in 1/(1 + t); of rsqrt
    these twice, for r = 0 and 1.
    """
    count = 1 << estimate.table
    width, left = 1 / count, np.arange(count) / count
    if function == "exp2":
        one = minimax(np.exp2, width, estimate.poly)
        return (np.exp2(left)[:, None] * one).astype(np.float32)
    rows = [minimax(_from(function, a), width, estimate.poly) for a in left]
    table = np.array(rows)
    if function == "rsqrt":
        table = np.concatenate([table, table / np.sqrt(2)])
    return table.astype(np.float32)


def _from(function: str, left: float) -> Callable[[Array], Array]:
    """The function of the distance from `left`."""
    power = -1.0 if function == "reciprocal" else -0.5
    return lambda u: (1 + left + u) ** power


def minimax(f: Callable[[Array], Array], width: float, degree: int) -> Array:
    """The polynomial with p(0) = f(0) whose relative error on [0, width] is least at its largest.

    Its error alternates between `degree` + 1 equal extrema; each round solves for that at the last
    round's extrema.
    """
    start = f(np.zeros(1))
    if degree == 0:
        return start
    grid = np.linspace(0, 1, _GRID + 1)[1:]
    target = f(grid * width)
    powers = grid[:, None] ** np.arange(1, degree + 1)
    signs = (-1.0) ** np.arange(degree + 1)
    at = np.round((1 - np.cos(np.pi * (np.arange(degree + 1) + 1) / (degree + 1))) / 2 * _GRID) - 1
    best, least = np.zeros(degree), np.inf
    for _ in range(_ROUNDS):
        i = at.astype(int)
        system = np.column_stack([powers[i], signs * target[i]])
        found = np.linalg.solve(system, target[i] - start)[:-1]
        error = (powers @ found + start) / target - 1
        largest = np.abs(error).max()
        if largest >= least * (1 - 1e-9):
            break
        best, least = found, largest
        edges = np.flatnonzero(np.diff(np.sign(error))) + 1
        runs = np.split(np.arange(_GRID), edges)
        at = np.array([run[np.abs(error[run]).argmax()] for run in runs], dtype=float)
        if len(at) != degree + 1:
            break
    return np.concatenate([start, best / width ** np.arange(1, degree + 1)])
