"""Exact sums in int64: numbers t * 2^q as tensors of integers t and exponents q, and their
rounding to a float format."""

from __future__ import annotations

import torch
from torch import Tensor

from lowprec.spec.format import FloatFormat

_DIGIT = 32
_PIECE = 24
# Bits below the second highest digit that a window leaves out: it has 27 to 58 bits.
_LOST = 6


def power(exponent: Tensor) -> Tensor:
    """2^exponent in float64, built from bits; exponents of its normal range."""
    return ((exponent + 1023) << 52).view(torch.float64)


def parts(x: Tensor, precision: int, emin: int) -> tuple[Tensor, Tensor]:
    """x = t * 2^(e - precision + 1) and e = floor(log2 |x|), at least emin; of zero emin.

    x: float64 that `precision` bits hold. NaN and Inf give t = 0.
    """
    field = (x.view(torch.int64) >> 52) & 0x7FF
    e = (field - 1023).clamp(min=emin)
    t = torch.where(field == 0x7FF, 0.0, x) * power(precision - 1 - e.clamp(max=1000))
    return t.to(torch.int64), e


def shift(t: Tensor, by: Tensor, rounding: str) -> Tensor:
    """t * 2^by as integers: "toward-zero", "down" or "nearest-even" where bits are lost."""
    right = (-by).clamp(0, 63)
    if rounding == "down":
        lost = t >> right
    else:
        size = t.abs()
        lost = size >> right
        if rounding == "nearest-even":
            rest = size - (lost << right)
            half = torch.ones_like(rest) << (right - 1).clamp(0, 62)
            up = (right > 0) & ((rest > half) | ((rest == half) & (lost & 1 == 1)))
            lost = lost + up
        lost = torch.where(t < 0, -lost, lost)
    return torch.where(by >= 0, t << by.clamp(0, 62), lost)


def bit_length(size: Tensor) -> Tensor:
    """Bits of integers that are not negative; 0 of 0."""
    field = (size.to(torch.float64).view(torch.int64) >> 52) - 1022
    # The conversion to float64 may have rounded up to the next power of two.
    field = field - ((field > 0) & (size >> (field - 1).clamp(0, 62) == 0)).to(torch.int64)
    return field.clamp(min=0)


def round_to(t: Tensor, q: Tensor, fmt: FloatFormat, rounding: str) -> Tensor:
    """t * 2^q, |t| < 2^59, rounded to `fmt` in float64; beyond its largest finite value Inf.

    Zero has the sign of t where t is not zero.
    """
    size = t.abs()
    e = (q + bit_length(size) - 1).clamp(min=fmt.emin)
    drop = (e - (fmt.precision - 1) - q).clamp(0, 60)
    kept = size >> drop
    rest = size - (kept << drop)
    half = (torch.ones_like(drop) << drop) >> 1
    match rounding:
        case "nearest-even":
            away = (rest > half) | ((rest == half) & (rest > 0) & (kept & 1 == 1))
        case "nearest-away":
            away = (rest >= half) & (rest > 0)
        case "up":
            away = (rest > 0) & (t > 0)
        case "down":
            away = (rest > 0) & (t < 0)
        case "to-odd":
            away = (rest > 0) & (kept & 1 == 0)
        case _:
            away = torch.zeros_like(rest, dtype=torch.bool)
    y = (kept + away).to(torch.float64)
    # What was clamped above is a multiple of the lowest unit that a result has.
    low = torch.where(drop == 60, e - (fmt.precision - 1), q + drop)
    y = torch.where(kept + away == 0, 0.0, y * power(low.clamp(min=-1022)))
    y = torch.where(y > float(fmt.max_exact), torch.inf, y)
    return torch.where(t < 0, -y, y)


def exact_sum(t: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """The sum over the last axis of t * 2^q as s * 2^u, |s| < 2^59.

    s is cut at 27 bits or more, and its lowest bit is set if anything was cut off, so that its
    rounding to 24 bits or fewer is that of the sum. Fewer than 2^28 terms, |t| < 2^63.
    """
    base = int(torch.where(t == 0, 1 << 20, q).min()) if t.numel() else 0
    base = (base if base < 1 << 20 else 0) - _DIGIT
    place = torch.where(t == 0, 0, q - base)
    count = (int(place.max()) if t.numel() else 0) // _DIGIT + 5
    digits = torch.zeros(*t.shape[:-1], count, dtype=torch.int64, device=t.device)
    sign, size = t.sign(), t.abs()
    for bits in range(0, 63, _PIECE):
        piece = (size >> bits) & ((1 << _PIECE) - 1)
        at = place + bits
        wide = piece << (at % _DIGIT)
        digits.scatter_add_(-1, at // _DIGIT, sign * (wide & ((1 << _DIGIT) - 1)))
        digits.scatter_add_(-1, at // _DIGIT + 1, sign * (wide >> _DIGIT))
    negative = _carry(digits)[..., -1] < 0
    digits = _carry(torch.where(negative[..., None], -digits, digits))
    return _window(digits, negative, base)


def _carry(digits: Tensor) -> Tensor:
    """In place: each digit but the highest, which keeps the sign, from 0 to 2^32 - 1."""
    for i in range(digits.shape[-1] - 1):
        digits[..., i + 1] += digits[..., i] >> _DIGIT
        digits[..., i] &= (1 << _DIGIT) - 1
    return digits


def _window(digits: Tensor, negative: Tensor, base: int) -> tuple[Tensor, Tensor]:
    index = torch.arange(digits.shape[-1], device=digits.device)
    highest = torch.where(digits != 0, index, 1).amax(-1).clamp(min=1)
    top = digits.gather(-1, highest[..., None])[..., 0]
    below = digits.gather(-1, highest[..., None] - 1)[..., 0]
    cut = ((digits != 0) & (index < highest[..., None] - 1)).any(-1)
    cut |= below & ((1 << _LOST) - 1) != 0
    s = (top << (_DIGIT - _LOST)) | (below >> _LOST) | cut
    return torch.where(negative, -s, s), base + (highest - 1) * _DIGIT + _LOST
