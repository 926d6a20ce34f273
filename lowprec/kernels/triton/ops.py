"""The kernels as operators that autograd, torch.compile and torch.export carry as one each."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from lowprec.kernels.codec import codes_dtype
from lowprec.kernels.triton import matmul as _matmul
from lowprec.kernels.triton import quantize as _quantize
from lowprec.kernels.triton.matmul import Side
from lowprec.spec.block import BlockFormat
from lowprec.spec.quantizer import Quantizer


@lru_cache(maxsize=256)
def quantizer_of(text: str) -> Quantizer:
    """Operators take a quantizer whole, as JSON: an exported program needs no more."""
    return Quantizer.model_validate_json(text)


@torch.library.custom_op("lowprec::triton_fake_quantize", mutates_args=())
def fake_quantize(x: Tensor, quantizer: str, axis: int, random: Tensor | None = None) -> Tensor:
    """The values of `x` after quantization; the gradient is straight through."""
    if not x.numel():
        return torch.empty_like(x)
    return _quantize.run(x, quantizer_of(quantizer), axis, random, codes=False).values


@fake_quantize.register_fake
def _(x: Tensor, quantizer: str, axis: int, random: Tensor | None = None) -> Tensor:  # noqa: ARG001
    return x.new_empty(x.shape)


fake_quantize.register_autograd(lambda _, gradient: (gradient, None, None, None))


@torch.library.custom_op("lowprec::triton_quantize", mutates_args=())
def quantize(
    x: Tensor, quantizer: str, axis: int, random: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Code points of elements and scales, and t; a part that the format has not is empty."""
    q = quantizer_of(quantizer)
    if not x.numel():
        return _empty(x, q, axis)
    found = _quantize.run(x, q, axis, random, codes=True)
    parts = (found.values, found.scales, found.outer)
    return tuple(x.new_empty(0) if part is None else part for part in parts)  # type: ignore[return-value]


def _empty(x: Tensor, q: Quantizer, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    fmt, none = q.format, x.new_empty(0)
    if not isinstance(fmt, BlockFormat):
        return x.new_empty(x.shape, dtype=codes_dtype(fmt)), none, none
    shape = fmt.scale_shape(tuple(x.shape), axis)
    return (
        x.new_empty(x.shape, dtype=codes_dtype(fmt.element)),
        x.new_empty(shape, dtype=codes_dtype(fmt.scale)),
        none if fmt.outer is None else x.new_empty((), dtype=torch.float32),
    )


@quantize.register_fake
def _(
    x: Tensor,
    quantizer: str,
    axis: int,
    random: Tensor | None = None,  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(x, quantizer_of(quantizer), axis)


@torch.library.custom_op("lowprec::triton_scaled_matmul", mutates_args=())
def scaled_matmul(
    x: Tensor,
    x_scales: Tensor | None,
    x_outer: Tensor | None,
    weight: Tensor,
    w_scales: Tensor | None,
    w_outer: Tensor | None,
    a: str | None,
    w: str | None,
    dtype: torch.dtype,
) -> Tensor:
    """(M, N) of code points (M, K) and (N, K) with their scales; an operand whose quantizer is None
    holds numbers. No gradient."""
    q = [None if text is None else quantizer_of(text) for text in (a, w)]
    left, right = Side(x, x_scales, x_outer, q[0]), Side(weight, w_scales, w_outer, q[1])
    return _matmul.run(left, right, dtype)


@scaled_matmul.register_fake
def _(x: Tensor, _0: Any, _1: Any, weight: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0], dtype=rest[-1])


@torch.library.custom_op("lowprec::triton_matmul", mutates_args=())
def matmul(x: Tensor, weight: Tensor, a: str | None, w: str | None) -> Tensor:
    """(M, N) of numbers (M, K) and (N, K), quantized on the way, in the dtype of x."""
    return _matmul.run(_side(x, a), _side(weight, w), x.dtype)


@matmul.register_fake
def _(x: Tensor, weight: Tensor, a: str | None, w: str | None) -> Tensor:  # noqa: ARG001
    return x.new_empty(x.shape[0], weight.shape[0])


def _side(x: Tensor, text: str | None) -> Side:
    if text is None or not x.numel():
        return Side(x)
    found = _quantize.run(x, quantizer_of(text), -1, None, codes=True)
    return Side(found.values, found.scales, found.outer, quantizer_of(text))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    x, weight, ctx.a, ctx.w = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """That of the float matmul of the dequantized values, as `lowprec.matmul` has it."""
    x, weight = ctx.saved_tensors
    x_values, w_values = (
        t if text is None else fake_quantize(t, text, -1)
        for t, text in ((x, ctx.a), (weight, ctx.w))
    )
    to_x = gradient @ w_values.to(gradient.dtype) if ctx.needs_input_grad[0] else None
    to_w = gradient.mT @ x_values if ctx.needs_input_grad[1] else None
    return to_x, None if to_w is None else to_w.to(weight.dtype), None, None


matmul.register_autograd(_backward, setup_context=_save)
