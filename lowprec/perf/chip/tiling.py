"""How a GEMM is cut into tiles, and what each tile's stages move and compute."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from pydantic import Field

from lowprec.spec import Spec

Size = Annotated[int, Field(ge=1)]


class Tiling(Spec):
    """A tile of y has `m` by `n` elements and is summed over K in steps of `k`. stages: buffers
    of one core, each with one step's operands. wide: rows of tiles that run side by side before
    the next columns, so that they share what the cache holds."""

    m: Size = 128
    n: Size = 256
    k: Size = 64
    stages: Size = 4
    wide: Size = 8


@dataclass(frozen=True)
class Gemm:
    """x_MK @ w_NK.T in bits per element of x, w and y, scales included."""

    m: int
    n: int
    k: int
    x_bits: float
    w_bits: float
    y_bits: float
    tiling: Tiling

    @property
    def rows(self) -> int:
        return math.ceil(self.m / self.tiling.m)

    @property
    def columns(self) -> int:
        return math.ceil(self.n / self.tiling.n)

    @property
    def steps(self) -> int:
        return math.ceil(self.k / self.tiling.k)

    @property
    def x_bytes(self) -> float:
        """Of one step of one row of tiles."""
        return self.tiling.m * self.tiling.k * self.x_bits / 8

    @property
    def w_bytes(self) -> float:
        """Of one step of one column of tiles."""
        return self.tiling.n * self.tiling.k * self.w_bits / 8

    @property
    def y_bytes(self) -> float:
        return self.tiling.m * self.tiling.n * self.y_bits / 8

    @property
    def step_flops(self) -> float:
        """What the unit computes, padding of ragged tiles included."""
        return 2.0 * self.tiling.m * self.tiling.n * self.tiling.k

    @cached_property
    def order(self) -> tuple[tuple[int, int], ...]:
        """Row and column of the tiles, in the order in which cores take them: bands of
        `tiling.wide` rows, column by column."""
        found = []
        for top in range(0, self.rows, self.tiling.wide):
            band = range(top, min(top + self.tiling.wide, self.rows))
            found += [(row, column) for column in range(self.columns) for row in band]
        return tuple(found)
