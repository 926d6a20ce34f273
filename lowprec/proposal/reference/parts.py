"""What the templates need to know of a scalar format: constants, and the answers at its ends.

The answers at the ends (zeros, infinities, NaN, overflow) are asked of `lowprec.exact`, so that a
reference holds one code point where the contract has a paragraph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

from lowprec.errors import LowprecError
from lowprec.exact import encode, project, value, value_table
from lowprec.spec import CodebookFormat, FloatFormat, Format, IntFormat, Projection
from lowprec.spec.format import pow2

MAX_CODEBOOK = 256
HUGE = Fraction(3) * pow2(1022)


@dataclass(frozen=True)
class Part:
    """A scalar format under the name that its functions have: decode_NAME, encode_NAME.

    Code points at the ends: nan, and (of a positive and a negative number) zeros, infinities and
    overflows.
    """

    name: str
    format: Format
    projection: Projection
    nan: int
    zeros: tuple[int, int]
    infinities: tuple[int, int]
    overflows: tuple[int, int]
    steps: tuple[tuple[float, int], ...] = field(default=())

    @property
    def rounding(self) -> str:
        return self.projection.rounding

    @property
    def random_bits(self) -> int | None:
        return self.projection.bits

    @property
    def table(self) -> list[float]:
        """Values by code point, of a codebook."""
        assert isinstance(self.format, CodebookFormat)
        return list(self.format.values)

    @property
    def thresholds(self) -> list[float]:
        return [x for x, _ in self.steps[1:]]

    @property
    def step_codes(self) -> list[int]:
        return [code for _, code in self.steps]

    @property
    def smallest(self) -> float:
        """The smallest positive value."""
        return float(self.format.min_positive_exact)

    @property
    def largest(self) -> float:
        return float(self.format.max_exact)

    @property
    def lowest(self) -> float:
        return float(self.format.min_exact)


def part(name: str, fmt: Format, projection: Projection) -> Part:
    """The part of a format; LowprecError for what a double cannot hold."""
    _check(fmt, projection)
    random = None if projection.bits is None else 0

    def code(x: Any) -> int:
        y = project(x, fmt, projection, random)
        return 0 if y != y and not fmt.has_nan else encode(x, fmt, projection, random)

    return Part(
        name,
        fmt,
        projection,
        code(math.nan),
        (code(Fraction(0)), code(-0.0)),
        (code(math.inf), code(-math.inf)),
        (code(HUGE), code(-HUGE)),
        _steps(fmt, projection) if isinstance(fmt, CodebookFormat) else (),
    )


def _check(fmt: Format, projection: Projection) -> None:
    ends = (fmt.min_positive_exact, fmt.max_exact, fmt.min_exact)
    if fmt.max_exact > HUGE / 4 or any(Fraction(float(end)) != end for end in ends):
        raise LowprecError(f"{fmt.name}: no reference: its values are not within float64's range")
    if isinstance(fmt, IntFormat) and fmt.bits > 32:
        raise LowprecError(f"{fmt.name}: no reference: integers of more than 32 bits")
    if isinstance(fmt, FloatFormat) and fmt.bits > 32:
        raise LowprecError(f"{fmt.name}: no reference: floats of more than 32 bits")
    if isinstance(fmt, CodebookFormat) and fmt.code_points > MAX_CODEBOOK:
        raise LowprecError(f"{fmt.name}: no reference: more than {MAX_CODEBOOK} values to list")
    gap = isinstance(fmt, FloatFormat) and fmt.zero and not fmt.subnormals
    if projection.bits is not None and (gap or isinstance(fmt, CodebookFormat)):
        raise LowprecError(f"{fmt.name}: no reference for stochastic rounding to it")


def _steps(fmt: CodebookFormat, projection: Projection) -> tuple[tuple[float, int], ...]:
    """(least number, its code point) of every run of numbers with the same answer, rising."""
    if projection.bits is not None:
        return ()
    own = sorted({Fraction(v) for v in value_table(fmt) if math.isfinite(v)})
    gaps = [high - low for low, high in pairwise(own)] or own
    # Beyond the ends the last gap is repeated once; zero counts whether or not it is a value.
    values = [own[0] - gaps[0], *own, own[-1] + gaps[-1]]
    turns = {Fraction(0), *values, *((low + high) / 2 for low, high in pairwise(values))}
    asked: set[float] = set()
    for turn in turns:
        x = float(turn)
        asked |= {math.nextafter(x, -math.inf), x, math.nextafter(x, math.inf)}
    steps: list[tuple[float, int]] = [(-math.inf, encode(-HUGE, fmt, projection))]
    for x in sorted(asked):
        # Zero is asked for by itself; here its neighbours decide.
        code = encode(Fraction(x), fmt, projection) if x else steps[-1][1]
        if code != steps[-1][1]:
            steps.append((x, code))
    return tuple(steps)


def value_rows(fmt: Format) -> list[tuple[int, float]]:
    """Every code point of a format of up to 8 bits with its value."""
    return [(code, float(value(code, fmt))) for code in range(fmt.code_points)]
