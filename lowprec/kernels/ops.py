"""fake_quantize as an operator that autograd and torch.compile know."""

from __future__ import annotations

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import cpu
from lowprec.kernels.block import scaled
from lowprec.kernels.element import projector
from lowprec.kernels.word import word_of
from lowprec.spec.block import BlockFormat
from lowprec.spec.quantizer import Quantizer


def define(x: Tensor, quantizer: Quantizer, axis: int, random: Tensor | None) -> Tensor:
    """The definition in torch."""
    fmt = quantizer.format
    if x.numel() == 0:
        return x.clone()
    if isinstance(fmt, BlockFormat):
        return scaled(x.float(), quantizer, axis, random).values.to(x.dtype)
    word = word_of(x.dtype)
    return projector(fmt, quantizer.projection, word)(x.to(word.dtype), random).to(x.dtype)


def compute(
    x: Tensor, quantizer: Quantizer, axis: int, random: Tensor | None, out: Tensor | None
) -> Tensor:
    """The CPU core's answer where it has one, else the definition's: the same bits."""
    y = cpu.fake_quantize(x, quantizer, axis, out) if random is None else None
    if y is not None:
        return y
    y = define(x, quantizer, axis, random)
    return y if out is None else out.copy_(y)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, quantizer: Quantizer, axis: int, random: Tensor | None) -> Tensor:
        return compute(x, quantizer, axis, random, None)

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[object, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ARG004
        return gradient, None, None, None


def fake_quantize(
    x: Tensor, quantizer: Quantizer, axis: int, random: Tensor | None, out: Tensor | None
) -> Tensor:
    if out is not None:
        if out.shape != x.shape or out.dtype != x.dtype:
            raise LowprecError(
                f"out: {out.dtype} of shape {tuple(out.shape)}; expected {x.dtype} of shape "
                f"{tuple(x.shape)}"
            )
        if torch.is_grad_enabled() and (x.requires_grad or out.requires_grad):
            raise LowprecError("out= takes no part in autograd; use torch.no_grad()")
    if torch.is_grad_enabled() and x.requires_grad:
        return _StraightThrough.apply(x, quantizer, axis, random)
    return compute(x, quantizer, axis, random, out)
