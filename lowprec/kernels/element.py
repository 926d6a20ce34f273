"""One projection for every kind of scalar format: the numbers are made once, then applied."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from lowprec.kernels.codebook import Steps, project_steps, steps_of
from lowprec.kernels.grid import Grid, grid_of
from lowprec.kernels.round import project
from lowprec.kernels.word import Word, require
from lowprec.spec.format import CodebookFormat, Format
from lowprec.spec.projection import Projection


@dataclass(frozen=True)
class Projector:
    """x (of the word's dtype) to the nearest or otherwise chosen value of the format."""

    numbers: Grid | Steps

    @property
    def word(self) -> Word:
        return self.numbers.word

    def __call__(self, x: Tensor, random: Tensor | None = None) -> Tensor:
        if isinstance(self.numbers, Grid):
            return project(x, self.numbers, random)
        return project_steps(x, self.numbers, random)


@lru_cache(maxsize=1024)
def projector(fmt: Format, projection: Projection, word: Word) -> Projector:
    """LowprecError where the word does not hold the format's values."""
    require(word.dtype, fmt)
    if isinstance(fmt, CodebookFormat):
        return Projector(steps_of(fmt, projection, word))
    return Projector(grid_of(fmt, projection, word))
