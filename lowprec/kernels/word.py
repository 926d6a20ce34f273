"""The float dtypes that kernels compute in, as bit layouts, and exact constants in their bits."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.spec.format import CodebookFormat, FloatFormat, Format, IntFormat, floor_log2, pow2


@dataclass(frozen=True)
class Word:
    """An IEEE 754 interchange format. A *pattern* is the bits of a magnitude: the sign bit clear,
    so that patterns order as the magnitudes do."""

    dtype: torch.dtype
    int_dtype: torch.dtype
    trailing: int  # bits of the trailing significand
    exponent_bits: int

    @property
    def emin(self) -> int:
        return 2 - (1 << (self.exponent_bits - 1))

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def infinity(self) -> int:
        """Pattern of Inf; every pattern above it is a NaN."""
        return ((1 << self.exponent_bits) - 1) << self.trailing

    @property
    def nan(self) -> int:
        return self.infinity | 1 << (self.trailing - 1)

    @property
    def magnitude(self) -> int:
        """Mask of all bits but the sign."""
        return (1 << (self.trailing + self.exponent_bits)) - 1

    @property
    def sign(self) -> int:
        """The sign bit, as the signed integer that it alone is."""
        return -1 << (self.trailing + self.exponent_bits)

    def floor(self, x: Fraction) -> tuple[int, bool]:
        """Pattern of the largest magnitude at or below `x` >= 0, and whether it is `x` itself."""
        if not x:
            return 0, True
        exponent = max(floor_log2(x), self.emin)
        ulp = pow2(exponent - self.trailing)
        steps = x // ulp
        pattern = ((exponent - self.emin) << self.trailing) + steps
        if pattern >= self.infinity:
            return self.infinity - 1, False
        return pattern, steps * ulp == x

    def nearest(self, x: Fraction) -> float:
        """`x` >= 0 rounded to nearest, ties to even, Inf beyond the range."""
        floor, exact = self.floor(x)
        up = not exact and (2 * x, floor % 2) > (self.value(floor) + self.value(floor + 1), 0)
        return float("inf") if floor + up == self.infinity else float(self.value(floor + up))

    def value(self, pattern: int) -> Fraction:
        """The magnitude of a pattern as if no exponent field were special."""
        field, trailing = pattern >> self.trailing, pattern & ((1 << self.trailing) - 1)
        significand = trailing + ((field > 0) << self.trailing)
        return significand * pow2(max(field, 1) - self.bias - self.trailing)

    def pattern(self, x: Fraction) -> int:
        """Pattern of a magnitude that this dtype holds."""
        pattern, exact = self.floor(x)
        if not exact:
            raise ValueError(f"{self.dtype} does not hold {x}")
        return pattern

    def bits(self, x: Fraction | float) -> int:
        """The bits of `x`, sign included, as the signed integer that they are; NaN is `nan`."""
        if x != x:
            return self.nan
        minus = self.sign if x < 0 or (isinstance(x, float) and str(x)[0] == "-") else 0
        if abs(x) == float("inf"):
            return self.infinity | minus
        return self.pattern(abs(Fraction(x))) | minus


FLOAT32 = Word(torch.float32, torch.int32, 23, 8)
FLOAT64 = Word(torch.float64, torch.int64, 52, 11)
# bfloat16 and float16 are computed in float32, which holds them; they are only results here.
_RESULTS = {
    torch.float32: FLOAT32,
    torch.float64: FLOAT64,
    torch.bfloat16: Word(torch.bfloat16, torch.int16, 7, 8),
    torch.float16: Word(torch.float16, torch.int16, 10, 5),
}


def word_of(dtype: torch.dtype) -> Word:
    """What a tensor of `dtype` is computed in; LowprecError for other than the four floats."""
    if dtype not in _RESULTS:
        names = ", ".join(str(d) for d in _RESULTS)
        raise LowprecError(f"tensor of {dtype}: expected one of {names}")
    return FLOAT64 if dtype == torch.float64 else FLOAT32


@lru_cache(maxsize=4096)
def holds(dtype: torch.dtype, fmt: Format) -> bool:
    """Whether `dtype` represents every finite value of `fmt`."""
    word = _RESULTS[dtype]
    quantum = word.emin - word.trailing
    match fmt:
        case FloatFormat():
            fits = fmt.precision <= word.trailing + 1
            return fits and fmt.emin - (fmt.precision - 1) >= quantum and _finite(word, fmt)
        case IntFormat():
            fits = fmt.bits - fmt.signed <= word.trailing + 1
            return fits and fmt.exponent >= quantum and _finite(word, fmt)
        case CodebookFormat():
            finite = (abs(Fraction(v)) for v in fmt.values if abs(v) < float("inf"))
            return all(word.floor(v)[1] for v in finite)
    raise TypeError(f"no scalar format: {fmt!r}")


def _finite(word: Word, fmt: Format) -> bool:
    return all(word.floor(abs(v))[1] for v in (fmt.max_exact, fmt.min_exact))


def require(dtype: torch.dtype, fmt: Format) -> None:
    """LowprecError unless `dtype` holds the values of `fmt`, whatever the data are."""
    word_of(dtype)
    if holds(dtype, fmt):
        return
    wider = next((d for d in (torch.float32, torch.float64) if holds(d, fmt)), None)
    hint = f"convert the tensor to {wider} first" if wider else "no torch dtype does"
    raise LowprecError(f"{fmt.name}: {dtype} does not hold all its values; {hint}")


def check_out(out: Tensor | None, shape: torch.Size, dtype: torch.dtype) -> None:
    """LowprecError unless `out`, if given, can hold a result of this shape and dtype."""
    if out is None:
        return
    if not isinstance(out, Tensor):
        raise LowprecError(f"out is a {type(out).__name__}; expected a tensor")
    if out.shape != shape or out.dtype != dtype:
        raise LowprecError(
            f"out: {out.dtype} of shape {tuple(out.shape)}; expected {dtype} of shape "
            f"{tuple(shape)}"
        )


def floor_log2_of(pattern: Tensor, word: Word) -> Tensor:
    """floor(log2) of the magnitudes with these patterns, from bits alone; garbage for 0.

    A subnormal's pattern is an integer, which converts exactly to a float with an exponent field.
    """
    subnormal = pattern < 1 << word.trailing
    as_float = pattern.to(word.dtype).view(word.int_dtype)
    field = torch.where(subnormal, as_float, pattern) >> word.trailing
    return field - word.bias + subnormal.to(word.int_dtype) * (word.emin - word.trailing)
