"""Norms, softmax and activations in terms of 2^x, 1/x and 1/sqrt(x), as vector units compute them.

All arithmetic is float32, each step rounded; the result has the dtype that the function's own has.
A unit that the `Approximation` leaves out is torch's own function.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.nn.operations.approximation import estimate
from lowprec.spec import Approximation

_LOG2_E = math.log2(math.e)  # rounded to float32 where it is multiplied
_GELU = math.sqrt(2 / math.pi)


def wide(x: Tensor) -> Tensor:
    """`x` in float32. LowprecError for float64."""
    if x.dtype == torch.float64:
        raise LowprecError("an approximation is computed in float32; the operand is float64")
    return x.to(torch.float32)


def exp2(units: Approximation, x: Tensor) -> Tensor:
    return torch.exp2(x) if units.exp2 is None else estimate(x, "exp2", units.exp2)


def reciprocal(units: Approximation, x: Tensor) -> Tensor:
    how = units.reciprocal
    return torch.reciprocal(x) if how is None else estimate(x, "reciprocal", how)


def rsqrt(units: Approximation, x: Tensor) -> Tensor:
    how = units.rsqrt
    return torch.rsqrt(x) if how is None else estimate(wide(x), "rsqrt", how).to(x.dtype)


def exp(units: Approximation, x: Tensor) -> Tensor:
    """2^(x log2 e)."""
    return exp2(units, wide(x) * _LOG2_E).to(x.dtype)


def sigmoid(units: Approximation, x: Tensor) -> Tensor:
    """1 / (1 + 2^(-x log2 e))."""
    return reciprocal(units, 1 + exp2(units, wide(x) * -_LOG2_E)).to(x.dtype)


def silu(units: Approximation, x: Tensor) -> Tensor:
    return (wide(x) * sigmoid(units, wide(x))).to(x.dtype)


def tanh(units: Approximation, x: Tensor) -> Tensor:
    """1 - 2 / (1 + 2^(2 x log2 e)): near 0 its error is absolute, not relative."""
    return (1 - 2 * reciprocal(units, 1 + exp2(units, wide(x) * (2 * _LOG2_E)))).to(x.dtype)


def gelu(units: Approximation, x: Tensor, approximate: str = "none") -> Tensor:
    """By tanh. By erf it needs none of the units and is torch's own."""
    if approximate == "none":
        return torch.nn.functional.gelu(x)
    inner = _GELU * (wide(x) + 0.044715 * wide(x) ** 3)
    return (0.5 * wide(x) * (1 + tanh(units, inner))).to(x.dtype)


def softmax(units: Approximation, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """e / sum e for e = 2^((x - max) log2 e); times the estimate of 1 / sum e where there is one.

    A row of -Inf alone is NaN.
    """
    e, _ = _powers(units, wide(x), dim)
    total = e.sum(dim, keepdim=True)
    y = e / total if units.reciprocal is None else e * reciprocal(units, total)
    return y.to(dtype or x.dtype)


def log_softmax(
    units: Approximation, x: Tensor, dim: int, dtype: torch.dtype | None = None
) -> Tensor:
    """x - max - log(sum e)."""
    e, below = _powers(units, wide(x), dim)
    return (below - e.sum(dim, keepdim=True).log()).to(dtype or x.dtype)


def _powers(units: Approximation, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    below = x - x.amax(dim, keepdim=True)
    return exp2(units, below * _LOG2_E), below


def layer_norm(
    units: Approximation,
    x: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    y = _standardized(units, wide(x), tuple(range(-len(normalized_shape), 0)), eps)
    return _affine(y, weight, bias).to(x.dtype)


def rms_norm(
    units: Approximation,
    x: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """x 1/sqrt(mean x^2 + eps) weight; eps is that of the dtype of x where it is left out."""
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    dims = tuple(range(-len(normalized_shape), 0))
    y = wide(x) * rsqrt(units, wide(x).square().mean(dims, keepdim=True) + eps)
    return _affine(y, weight, None).to(x.dtype)


def group_norm(
    units: Approximation,
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    groups = wide(x).reshape(x.shape[0], num_groups, -1)
    y = _standardized(units, groups, (-1,), eps).view(x.shape)
    return _affine(y, *_by_channel(x, weight, bias)).to(x.dtype)


def batch_norm(
    units: Approximation,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,  # noqa: ARG001 - batch_norm's own argument
    eps: float = 1e-5,
) -> Tensor:
    """Of running statistics. LowprecError for those of the batch."""
    if training or running_mean is None or running_var is None:
        raise LowprecError("batch_norm: an approximation is for evaluation; call model.eval()")
    mean, scale = _by_channel(x, running_mean, rsqrt(units, wide(running_var) + eps))
    y = (wide(x) - mean) * scale
    return _affine(y, *_by_channel(x, weight, bias)).to(x.dtype)


def instance_norm(
    units: Approximation,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """Of the input's statistics where none are tracked, or of the running ones."""
    if not use_input_stats:
        rest = (weight, bias, False, momentum, eps)
        return batch_norm(units, x, running_mean, running_var, *rest)
    if running_mean is not None:
        raise LowprecError("instance_norm: an approximation is for evaluation; call model.eval()")
    return group_norm(units, x, x.shape[1], weight, bias, eps)


def _standardized(units: Approximation, x: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    """(x - mean) 1/sqrt(mean (x - mean)^2 + eps)."""
    centred = x - x.mean(dims, keepdim=True)
    return centred * rsqrt(units, centred.square().mean(dims, keepdim=True) + eps)


def _by_channel(x: Tensor, *vectors: Tensor | None) -> list[Any]:
    """Vectors of axis 1, shaped to broadcast with x."""
    shape = (-1, *[1] * (x.dim() - 2))
    return [None if v is None else v.view(shape) for v in vectors]


def _affine(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias
