"""2^x, 1/x and 1/sqrt(x) as a machine's vector unit estimates them, see `lowprec.spec.Estimate`.

log2 of the largest relative error over every float32 in [1, 2), of rsqrt in [1, 4), rounded up:
exp2: table:7 -7.53, table:10 -10.52, poly:1 -4.70, poly:2 -8.92, poly:3 -13.51, poly:4 -18.36,
  poly:5 -22.72, table:6/poly:2 -23.00, bits:12 -12.00.
reciprocal: table:8 -8.00, table:12 -12.00, poly:3 -8.85, table:6/poly:2 -22.31, bits:12 -12.00,
  table:8/newton:1 -16.00, bits:12/newton:1 -23.00, table:7/newton:2 -23.99.
rsqrt: table:8 -9.00, poly:3 -10.73, table:6/poly:2 -22.92, bits:12 -12.00, table:8/newton:1
  -17.40, bits:12/newton:1 -22.56.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from lowprec.errors import LowprecError, unknown
from lowprec.nn.operations.coefficients import coefficients
from lowprec.spec.approximation import FUNCTIONS, Estimate, load_estimate

_TRAILING, _BIAS = 52, 1023  # of float64
_ONE = _BIAS << _TRAILING


def estimate(x: Tensor, function: str, how: Estimate | str) -> Tensor:
    """`function` (exp2, reciprocal or rsqrt) of `x`, estimated in float32, in the dtype of `x`.

    `how`: an `Estimate` or its text, ``table:7``; see there for NaN, Inf, zeros and subnormals.
    bfloat16 and float16 widen first and the result is rounded to nearest. The gradient is that of
    the function itself. LowprecError for float64, which no such unit computes.
    """
    if function not in FUNCTIONS:
        raise unknown("function", function, FUNCTIONS)
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise LowprecError(f"{function} is estimated in float32, not in {x.dtype}")
    return _operator(x, function, how if isinstance(how, str) else _text(how))


@torch.compiler.assume_constant_result
def _text(how: Estimate) -> str:
    return how.spell()


@torch.library.custom_op("lowprec::estimate", mutates_args=())
def _operator(x: Tensor, function: str, how: str) -> Tensor:
    unit = _parsed(how)
    return _UNITS[function](x.to(torch.float32), unit).to(x.dtype)


@_operator.register_fake
def _(x: Tensor, *_: str) -> Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(inputs[0])
    ctx.function = inputs[1]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    (x,) = ctx.saved_tensors
    if ctx.function == "exp2":
        return gradient * torch.exp2(x) * math.log(2), None, None
    if ctx.function == "reciprocal":
        return gradient * -torch.reciprocal(x).square(), None, None
    return -0.5 * gradient * torch.rsqrt(x).pow(3), None, None


_operator.register_autograd(_backward, setup_context=_setup)


@lru_cache(maxsize=256)
def _parsed(text: str) -> Estimate:
    return load_estimate(text)


def _exp2(x: Tensor, unit: Estimate) -> Tensor:
    inside = torch.where(x.isnan(), 0.0, x).clamp(-256, 256)  # beyond, 0 and Inf all the same
    whole = inside.floor()
    y = _reduced("exp2", inside - whole, None, unit)
    return torch.where(x.isnan(), x, _scaled(y, whole.to(torch.int64)))


def _reciprocal(x: Tensor, unit: Estimate) -> Tensor:
    t, exponent = _significand(x)
    y = _reduced("reciprocal", t, None, unit)
    m = 1 + t
    for _ in range(unit.newton):
        y = fused(y, fused(-m, y, torch.ones_like(y)), y)
    exact = torch.reciprocal(x)
    special = (x == 0) | ~torch.isfinite(x)
    return torch.where(special, exact, torch.copysign(_scaled(y, -exponent), x))


def _rsqrt(x: Tensor, unit: Estimate) -> Tensor:
    t, exponent = _significand(x)
    odd = exponent & 1
    y = _reduced("rsqrt", t, odd, unit)
    m = (1 + t) * (1 + odd)
    for _ in range(unit.newton):
        y = fused(0.5 * y, fused(-(m * y), y, torch.ones_like(y)), y)
    special = (x <= 0) | ~torch.isfinite(x)
    return torch.where(special, 1 / torch.sqrt(x), _scaled(y, -(exponent >> 1)))


_UNITS: dict[str, Callable[[Tensor, Estimate], Tensor]] = {
    "exp2": _exp2, "reciprocal": _reciprocal, "rsqrt": _rsqrt,
}  # fmt: skip


def _reduced(function: str, t: Tensor, odd: Tensor | None, unit: Estimate) -> Tensor:
    """The estimate of 2^t, 1/(1 + t) or 1/sqrt((1 + t) 2^odd)."""
    if unit.bits is not None:
        return _rounded(_exact(function, t.to(torch.float64), odd), unit.bits)
    count = 1 << unit.table
    segment = (t * count).to(torch.int64).clamp(max=count - 1)
    u = t - segment / count
    terms = torch.from_numpy(coefficients(function, unit)).to(t.device)
    # A segment's coefficients, term by term: (segments, degree + 1) of a whole tensor is large.
    row = segment if odd is None else segment + odd * count
    y = terms[row, -1]
    for term in range(unit.poly - 1, -1, -1):
        y = fused(y, u, terms[row, term])
    return y


def _exact(function: str, t: Tensor, odd: Tensor | None) -> Tensor:
    if function == "exp2":
        return torch.exp2(t)
    if function == "reciprocal":
        return 1 / (1 + t)
    return 1 / torch.sqrt((1 + t) * (1 + (0 if odd is None else odd)))


def _rounded(y: Tensor, bits: int) -> Tensor:
    """Positive float64 numbers to `bits` significant bits, nearest even; float32."""
    dropped = _TRAILING + 1 - bits
    word = y.view(torch.int64)
    even = (word >> dropped) & 1
    word = (word + (1 << (dropped - 1)) - 1 + even) >> dropped << dropped
    return word.view(torch.float64).to(torch.float32)


def _significand(x: Tensor) -> tuple[Tensor, Tensor]:
    """t and e of |x| = 2^e (1 + t); anything for zeros, Inf and NaN."""
    word = x.abs().to(torch.float64).view(torch.int64)
    exponent = (word >> _TRAILING) - _BIAS
    one = (word & ((1 << _TRAILING) - 1)) | _ONE
    return (one.view(torch.float64) - 1).to(torch.float32), exponent.clamp(-256, 256)


def _scaled(y: Tensor, exponent: Tensor) -> Tensor:
    """y 2^exponent, rounded to float32 once."""
    power = ((exponent + _BIAS) << _TRAILING).view(torch.float64)
    return (y.to(torch.float64) * power).to(torch.float32)


def fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a b + c of float32 numbers, rounded once (IEEE 754 fusedMultiplyAdd), far from the ends of
    the range. The float64 sum is rounded to odd, so that rounding it to float32 is no second
    rounding (Boldo and Melquiond, 2008)."""
    product, term = a.to(torch.float64) * b.to(torch.float64), c.to(torch.float64)
    total = product + term
    seen = total - product
    lost = (product - (total - seen)) + (term - seen)
    word = total.view(torch.int64)
    step = torch.where((lost > 0) == (total > 0), 1, -1)
    odd = torch.where((lost != 0) & (word & 1 == 0), word + step, word)
    return odd.view(torch.float64).to(torch.float32)
