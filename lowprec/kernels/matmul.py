"""Matmuls of quantized operands, in float or bit for bit as a datapath computes them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import ops
from lowprec.kernels.matmul_product import product
from lowprec.kernels.operand import Operand, operand
from lowprec.kernels.qtensor import QTensor
from lowprec.kernels.word import check_out
from lowprec.spec import load_datapath, load_quantizer
from lowprec.spec.datapath import Datapath
from lowprec.spec.format import IntFormat
from lowprec.spec.quantizer import Quantizer

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def matmul(
    x: Tensor | QTensor,
    weight: Tensor | QTensor,
    /,
    *,
    a: Quantizer | str | None = None,
    w: Quantizer | str | None = None,
    datapath: Datapath | str | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """y = x @ weight.mT, of quantized operands, as a datapath multiplies and adds them.

    x: (..., M, K) or (K,); weight: (N, K), or (..., N, K) with leading dimensions that broadcast
    with those of x. y: (..., M, N), or (N,). a, w: quantizers of x and weight along K; None leaves
    an operand as it is. Either may be a `QTensor` instead.

    Without a datapath: a float matmul of the dequantized values in the dtype of x.

    With one, every element of y is what `lowprec.kernels.dot` gives for a row of x and a row of
    weight from c = 0, bit for bit; see `lowprec.spec.Datapath` for NaN, Inf and overflow. Operands
    are the elements' values, which must be of the datapath's inputs; what an operand is not, is
    cast explicitly: a="bfloat16/cast". Scales meet them where the hardware has them:
      per K-block        by the datapath's `scaling`, inside or outside its sums; a block that is a
                         multiple of the datapath's is handed over several times. An operand without
                         scales has scales of one. LowprecError if the datapath has no such scaling.
      per channel, token or tensor, and the outer scale of nvfp4
                         in the epilogue, after the matmul: y = RN(RN(d * s_w) * s_a), each product
                         rounded to float32, of an operand's two levels first the finer; an int32
                         sum is rounded to float32 before. The order is that of `ScaledEpilogue` in
                         vLLM (csrc/cutlass_extensions/epilogue/scaled_mm_epilogues_c3x.hpp): a
                         float32 product of b's scale and the accumulator, then one with a's scale,
                         both to nearest; it has no second level.
    y has the dtype of x, to which the result is rounded to nearest; if that is no float of 16 to 64
    bits, float32 (float64 for int32).

    The gradient is straight through: that of the float matmul of the dequantized values. out: takes
    no part in autograd. Memory beside operands and result is bounded by tiles.
    """
    _check_shapes(x.shape, weight.shape)
    for q, t, what in ((a, x, "a"), (w, weight, "w")):
        if q is not None and isinstance(t, QTensor):
            raise LowprecError(f"matmul: {what}: the operand is quantized already")
    texts = _text_of(a, "a"), _text_of(w, "w")
    if datapath is None:
        y = _float_matmul(_values(x, texts[0]), _values(weight, texts[1]))
    elif isinstance(x, QTensor) or isinstance(weight, QTensor):
        y = _under(x, weight, *texts, _text_of_path(datapath))
    else:
        y = operator(x, weight, *texts, _text_of_path(datapath))
    if out is None:
        return y
    check_out(out, y.shape, y.dtype)
    if torch.is_grad_enabled() and (y.requires_grad or out.requires_grad):
        raise LowprecError("out= takes no part in autograd; use torch.no_grad()")
    return out.copy_(y)


@torch.compiler.assume_constant_result
def _text_of(q: Quantizer | str | None, what: str) -> str | None:
    """The quantizer as the operator takes it."""
    if q is None:
        return None
    found = _loaded(q) if isinstance(q, str) else q
    if found.projection.bits is not None or found.rule == "static":
        raise LowprecError(
            f"matmul: {what}={found.spell()} needs random bits or scales; hand over "
            f"lp.quantize(..., random=, scale=) instead"
        )
    return ops.text_of(found)


@lru_cache(maxsize=256)
def _loaded(text: str) -> Quantizer:
    return load_quantizer(text)


@torch.compiler.assume_constant_result
def _text_of_path(path: Datapath | str) -> str:
    return _dumped(load_datapath(path) if isinstance(path, str) else path)


@lru_cache(maxsize=256)
def _dumped(path: Datapath) -> str:
    return path.model_dump_json()


@lru_cache(maxsize=256)
def _path_of(text: str) -> Datapath:
    return Datapath.model_validate_json(text)


@lru_cache(maxsize=256)
def _quantizer_of(text: str) -> Quantizer:
    return Quantizer.model_validate_json(text)


def _check_shapes(x: torch.Size, weight: torch.Size) -> None:
    shapes = f"matmul: x of shape {list(x)} and weight of shape {list(weight)}"
    if len(x) < 1 or len(weight) < 2:
        raise LowprecError(f"{shapes}: expected (..., M, K) and (..., N, K)")
    if x[-1] != weight[-1]:
        raise LowprecError(f"{shapes}: K differs")
    try:
        torch.broadcast_shapes(x[:-2], weight[:-2])
    except RuntimeError:
        raise LowprecError(f"{shapes}: the leading dimensions do not broadcast") from None


def _values(x: Tensor | QTensor, text: str | None) -> Tensor:
    if isinstance(x, QTensor):
        return x.dequantize()
    return x if text is None else ops.operator(x, text, -1)


def _float_matmul(x: Tensor, weight: Tensor) -> Tensor:
    if weight.dim() == 2:
        return torch.nn.functional.linear(x, weight.to(x.dtype))
    return torch.matmul(x, weight.to(x.dtype).mT)


@torch.library.custom_op("lowprec::matmul", mutates_args=())
def operator(x: Tensor, weight: Tensor, a: str | None, w: str | None, datapath: str) -> Tensor:
    """What autograd and torch.compile see of `matmul` under a datapath."""
    return _under(x, weight, a, w, datapath)


@operator.register_fake
def _(x: Tensor, weight: Tensor, a: str | None, w: str | None, datapath: str) -> Tensor:  # noqa: ARG001
    return x.new_empty(_shape(x.shape, weight.shape), dtype=_dtype(x.dtype, _path_of(datapath)))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    x, weight, ctx.a, ctx.w, _ = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    # Quantized anew: cheaper than two more tensors kept from the forward pass on.
    x_values, w_values = (
        t if text is None else ops.operator(t, text, -1)
        for t, text in ((x, ctx.a), (weight, ctx.w))
    )
    g = gradient if x.dim() > 1 else gradient[None]
    x_values = x_values if x.dim() > 1 else x_values[None]
    to_x = torch.matmul(g, w_values.to(g.dtype)) if ctx.needs_input_grad[0] else None
    to_w = torch.matmul(g.mT, x_values) if ctx.needs_input_grad[1] else None
    return (
        None if to_x is None else _summed(to_x, x.shape),
        None if to_w is None else _summed(to_w, weight.shape).to(weight.dtype),
        None, None, None,
    )  # fmt: skip


def _summed(gradient: Tensor, shape: torch.Size) -> Tensor:
    """Over the dimensions that were broadcast."""
    return (
        gradient.sum_to_size(shape)
        if gradient.shape[-2:] == shape[-2:]
        else gradient.reshape(shape)
    )


operator.register_autograd(_backward, setup_context=_save)


def _shape(x: torch.Size, weight: torch.Size) -> list[int]:
    return [*torch.broadcast_shapes(x[:-2], weight[:-2]), *x[-2:-1], weight[-2]]


def _dtype(dtype: torch.dtype, path: Datapath) -> torch.dtype:
    if dtype in _FLOATS:
        return dtype
    wide = isinstance(path.output, IntFormat) and path.output.bits > 24
    return torch.float64 if wide else torch.float32


def _under(
    x: Tensor | QTensor, weight: Tensor | QTensor, a: str | None, w: str | None, datapath: str
) -> Tensor:
    path = _path_of(datapath)
    quantizers = [None if text is None else _quantizer_of(text) for text in (a, w)]
    left, right = operand(x, quantizers[0], path, "a"), operand(weight, quantizers[1], path, "w")
    shape = _shape(x.shape, weight.shape)
    dtype = _dtype(torch.float32 if isinstance(x, QTensor) else x.dtype, path)
    d = _batched(left, right, path, shape)
    for factor in reversed(right.factors):
        d = d.float() * (factor.mT if factor.dim() > 1 else factor)
    for factor in reversed(left.factors):
        d = d.float() * (factor if len(x.shape) > 1 else factor[..., 0])
    return d.to(dtype)


def _batched(left: Operand, right: Operand, path: Datapath, shape: list[int]) -> Tensor:
    scales = _scales(left, right, path)
    formats = left.format, right.format
    # A vector is a matrix of one row.
    values = left.values if left.values.dim() > 1 else left.values[None]
    if scales is not None and scales[0].dim() == 1:
        scales = scales[0][None], scales[1]
    if right.values.dim() == 2:
        pair = scales and (scales[0].flatten(0, -2), scales[1])
        return product(values.flatten(0, -2), right.values, path, formats, pair).reshape(shape)
    batch = torch.broadcast_shapes(values.shape[:-2], right.values.shape[:-2])
    sides = [values, right.values, *(scales or ())]
    sides = [t.expand(*batch, *t.shape[-2:]).reshape(-1, *t.shape[-2:]) for t in sides]
    parts = [
        product(x, y, path, formats, (s[0], s[1]) if s else None)
        for x, y, *s in zip(*sides, strict=True)
    ]
    if not parts:
        return torch.zeros(shape)
    return torch.stack(parts).reshape(shape)


def _scales(left: Operand, right: Operand, path: Datapath) -> tuple[Tensor, Tensor] | None:
    if path.scaling is None:
        return None
    blocks = -(-left.values.shape[-1] // path.scaling.block)
    found = [
        t.values.new_ones(*t.values.shape[:-1], blocks) if t.scales is None
        else t.scales.expand(*t.values.shape[:-1], blocks)
        for t in (left, right)
    ]  # fmt: skip
    return found[0], found[1]
