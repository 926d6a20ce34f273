"""fake_quantize as an operator that autograd, vmap, torch.compile and torch.export know."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from lowprec.errors import LowprecError, unknown
from lowprec.kernels.calls import Call, call, compute, inside
from lowprec.kernels.word import check_out
from lowprec.spec.quantizer import Quantizer

GRADIENTS = ("straight-through", "saturation-mask")


class _StraightThrough(torch.autograd.Function):
    """The gradient outside torch.compile, torch.func's transforms included."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, *rest: Any) -> Tensor:
        return operator(x, *rest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _save(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _backward(ctx, gradient)


def fake_quantize(x: Tensor, c: Call, out: Tensor | None, gradient: str) -> Tensor:
    if gradient not in GRADIENTS:
        raise unknown("gradient", gradient, GRADIENTS)
    differentiable = torch.is_grad_enabled() and x.requires_grad
    if out is not None:
        check_out(out, x.shape, x.dtype)
        if differentiable or (torch.is_grad_enabled() and out.requires_grad):
            raise LowprecError("out= takes no part in autograd; use torch.no_grad()")
    masked = gradient == "saturation-mask"
    if differentiable or torch._C._are_functorch_transforms_active():
        y = _StraightThrough.apply(
            x, text_of(c.quantizer), c.axis, c.random, c.seed, c.scale, masked
        )
        return y if out is None else out.copy_(y)
    return compute(x, c, out)


@lru_cache(maxsize=256)
def text_of(quantizer: Quantizer) -> str:
    """The quantizer as the operator takes it: whole, so that an exported program needs no more."""
    return quantizer.model_dump_json()


@lru_cache(maxsize=256)
def _quantizer_of(text: str) -> Quantizer:
    return Quantizer.model_validate_json(text)


def _called(
    x: Tensor,
    quantizer: str,
    axis: int,
    random: Tensor | None,
    seed: int | None,
    scale: Tensor | None,
) -> Call:
    return call(x, _quantizer_of(quantizer), axis, random if seed is None else seed, scale)


@torch.library.custom_op("lowprec::fake_quantize", mutates_args=())
def operator(
    x: Tensor,
    quantizer: str,
    axis: int,
    random: Tensor | None = None,
    seed: int | None = None,
    scale: Tensor | None = None,
    masked: bool = False,  # noqa: ARG001
) -> Tensor:
    """What torch.compile, torch.export and torch.func see of `fake_quantize`."""
    return compute(x, _called(x, quantizer, axis, random, seed, scale))


@torch.library.custom_op("lowprec::inside", mutates_args=())
def inside_operator(
    x: Tensor,
    quantizer: str,
    axis: int,
    random: Tensor | None = None,
    seed: int | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    return inside(x, _called(x, quantizer, axis, random, seed, scale))


@operator.register_fake
def _(x: Tensor, *_: object, **__: object) -> Tensor:
    return torch.empty_like(x)


@inside_operator.register_fake
def _(x: Tensor, *_: object, **__: object) -> Tensor:
    return torch.empty_like(x, dtype=torch.bool)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    *arguments, masked = inputs
    ctx.save_for_backward(*([inside_operator(*arguments)] if masked else []))


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    masked = gradient * ctx.saved_tensors[0] if ctx.saved_tensors else gradient
    return masked, None, None, None, None, None, None


operator.register_autograd(_backward, setup_context=_save)


def _each_sample(op: Any) -> Any:
    """A vmap rule: one call for the batch where samples do not depend on each other, else a call
    for each; the same seed gives each sample the same bits."""

    def rule(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: Tensor,
        quantizer: str,
        axis: int,
        random: Tensor | None = None,
        seed: int | None = None,
        scale: Tensor | None = None,
        *rest: bool,
    ) -> tuple[Tensor, int]:
        # Arguments at their defaults are left out, and their dimensions with them.
        x_dim, _, _, random_dim, _, scale_dim = (*in_dims[:6], *[None] * (6 - len(in_dims)))

        def batched(t: Tensor | None, dim: int | None) -> Tensor | None:
            if t is None:
                return None
            return t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)

        random, scale = batched(random, random_dim), batched(scale, scale_dim)
        x = x.expand(info.batch_size, *x.shape) if x_dim is None else x.movedim(x_dim, 0)
        axis = axis if axis < 0 else axis - (x.dim() - 1)
        called = Call(_quantizer_of(quantizer), axis, random, seed, scale)
        if not (called.is_whole or seed is not None or scale is not None or x.dim() < 3):
            return op(x, quantizer, axis, random, seed, scale, *rest), 0
        samples = [
            op(
                x[i],
                quantizer,
                axis,
                None if random is None else random[i],
                seed,
                None if scale is None else scale[i],
                *rest,
            )
            for i in range(info.batch_size)
        ]
        return torch.stack(samples), 0

    return rule


operator.register_vmap(_each_sample(operator))
inside_operator.register_vmap(_each_sample(inside_operator))
