"""Products and quotients rounded once to float32, also where one operand needs float64.

A float64 result rounded to odd (truncated, the last bit set if anything was cut) rounds to
float32 as the exact one does: S. Boldo and G. Melquiond, Emulation of FMA and correctly rounded
sums (2008).
"""

from __future__ import annotations

import struct

import torch
from torch import Tensor

# Of a float64's 53 bits the upper 26 and the lower 27, so that products of halves are exact.
_UPPER = -1 << 27


def product(a: Tensor, b: Tensor) -> Tensor:
    """RN(a * b) in the dtype of `b`; `a` may be float64 where `b` is float32."""
    if a.dtype == b.dtype:
        return a * b
    b = b.double()
    upper = _upper(a)
    big, small = upper * b, (a - upper) * b
    total = big + small
    error = small - (total - big)
    plain = (total == 0) | ~total.isfinite() | ~a.isfinite()
    return torch.where(~plain, _to_odd(total, error), a * b).float()


def quotient(a: Tensor, divisor: float | Tensor) -> Tensor:
    """RN(a / divisor) in the dtype of `a`; the divisor is a positive float64 constant, also as a
    tensor of rank 0, which is float32 where that holds it."""
    if not isinstance(divisor, Tensor):
        # A tensor, since torch divides by a number with a reciprocal on some devices.
        dtype = torch.float32 if is_float32(divisor) else torch.float64
        divisor = torch.tensor(divisor, dtype=dtype, device=a.device)
    if divisor.dtype == torch.float32 or a.dtype == torch.float64:
        return a / divisor.to(a.dtype)
    wide, d = a.double(), divisor.expand(a.shape)
    q = wide / d
    q1, d1 = _upper(q), _upper(d)
    q2, d2 = q - q1, d - d1
    near = q * d
    error = ((q1 * d1 - near) + q1 * d2 + q2 * d1) + q2 * d2
    rest = (wide - near) - error
    return torch.where(q.isfinite(), _to_odd(q, rest), q).float()


def is_float32(x: float) -> bool:
    try:
        return struct.unpack("f", struct.pack("f", x))[0] == x
    except OverflowError:
        return False


def _upper(x: Tensor) -> Tensor:
    return (x.view(torch.int64) & _UPPER).view(torch.float64)


def _to_odd(x: Tensor, error: Tensor) -> Tensor:
    """x + error rounded to odd, where x is that sum rounded to nearest."""
    bits = x.view(torch.int64)
    away = (error > 0) == (x > 0)
    odd = torch.where(away, bits | 1, bits - 1)
    return torch.where((error == 0) | (bits & 1 == 1), bits, odd).view(torch.float64)
