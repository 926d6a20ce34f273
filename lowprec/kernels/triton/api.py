"""The public functions: text or spec objects in, tensors out."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import ops as definition
from lowprec.kernels.calls import Call, Random, call
from lowprec.kernels.qtensor import QTensor
from lowprec.kernels.triton import ops
from lowprec.kernels.triton.numbers import numbers
from lowprec.spec import load_quantizer
from lowprec.spec.block import BlockFormat
from lowprec.spec.quantizer import Quantizer


def fake_quantize(
    x: Tensor, quantizer: Quantizer | str, axis: int = -1, random: Random | None = None
) -> Tensor:
    """`lowprec.fake_quantize` by the Triton kernel: the same bits, the gradient straight through.

    x: float32, bfloat16 or float16. random: as there, for stochastic rounding. LowprecError for
    quantizers that the kernel does not cover, and on devices that run no Triton. Under
    torch.compile random bits are a tensor.
    """
    if torch.compiler.is_compiling():
        if not (random is None or isinstance(random, Tensor)):
            raise LowprecError("triton: under torch.compile random bits are a tensor")
        return ops.fake_quantize(x, _text(quantizer), axis, random)
    text, c = _prepared(x, quantizer, axis, random)
    return ops.fake_quantize(x, text, c.axis, c.bits_for(x))


def quantize(
    x: Tensor, quantizer: Quantizer | str, axis: int = -1, random: Random | None = None
) -> QTensor:
    """`lowprec.quantize` by the Triton kernel: the same code points. No gradient."""
    text, c = _prepared(x, quantizer, axis, random)
    codes, scales, outer = ops.quantize(x.detach(), text, c.axis, c.bits_for(x))
    fmt = c.quantizer.format
    if not isinstance(fmt, BlockFormat):
        _refuse_nan(x, fmt.has_nan, fmt.name)
        return QTensor(codes, None, None, c.quantizer, c.axis)
    if fmt.outer is None:
        _refuse_nan(x, fmt.scale.has_nan, fmt.scale.name, infinite=True)
    return QTensor(codes, scales, None if fmt.outer is None else outer, c.quantizer, c.axis)


def matmul(
    x: Tensor | QTensor,
    weight: Tensor | QTensor,
    /,
    *,
    a: Quantizer | str | None = None,
    w: Quantizer | str | None = None,
) -> Tensor:
    """y = x @ weight.T of quantized operands, scales applied along K, in one kernel.

    x: (..., K); weight: (N, K); y: (..., N) in the dtype of x, float32 where x is a `QTensor`.
    a, w: quantizers along K; None leaves an operand as it is. See `matmul.datapath_of` for what it
    is bit for bit. The gradient is that of the float matmul of the dequantized values; a `QTensor`
    has none.
    """
    if len(weight.shape) != 2 or not x.shape or x.shape[-1] != weight.shape[1]:
        raise LowprecError(
            f"triton: matmul: x of shape {list(x.shape)} and weight of shape {list(weight.shape)}: "
            f"expected (..., K) and (N, K)"
        )
    leading = x.shape[:-1]
    if not isinstance(x, QTensor) and not isinstance(weight, QTensor):
        texts = (None if q is None else _text_of_plain(q) for q in (a, w))
        y = ops.matmul(_rows(x), weight, *texts)
        return y.reshape(*leading, weight.shape[0])
    dtype = torch.float32 if isinstance(x, QTensor) else x.dtype
    left, right = _parts(x, a), _parts(weight, w)
    y = ops.scaled_matmul(*left[:3], *right[:3], left[3], right[3], dtype)
    return y.reshape(*leading, weight.shape[0])


def _rows(x: Tensor) -> Tensor:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _parts(
    x: Tensor | QTensor, quantizer: Quantizer | str | None
) -> tuple[Tensor, Tensor | None, Tensor | None, str | None]:
    """Codes (rows, K), scales, t, and the quantizer as text."""
    if isinstance(x, QTensor):
        if quantizer is not None:
            raise LowprecError("triton: matmul: an operand is quantized already")
        if x.axis != -1 and len(x.shape) > 1:
            raise LowprecError("triton: matmul: blocks run along another axis than K, the last")
        q = x
    elif quantizer is None:
        return _rows(x), None, None, None
    else:
        q = quantize(x, quantizer)
    numbers(q.quantizer)  # LowprecError for a QTensor that the kernel does not read.
    return _rows(q.codes), q.scales, q.outer_scale, definition.text_of(q.quantizer)


@torch.compiler.assume_constant_result
def _text(quantizer: Quantizer | str) -> str:
    """The quantizer as the operators take it; LowprecError for what they do not cover."""
    found = _loaded(quantizer) if isinstance(quantizer, str) else quantizer
    numbers(found)
    return definition.text_of(found)


@torch.compiler.assume_constant_result
def _text_of_plain(quantizer: Quantizer | str) -> str:
    found = _loaded(quantizer) if isinstance(quantizer, str) else quantizer
    if found.projection.bits is not None:
        raise LowprecError(
            f"triton: matmul: {found.spell()} needs random bits; hand over quantize(..., random=)"
        )
    return _text(found)


@lru_cache(maxsize=256)
def _loaded(text: str) -> Quantizer:
    return load_quantizer(text)


def _prepared(
    x: Tensor, quantizer: Quantizer | str, axis: int, random: Random | None
) -> tuple[str, Call]:
    found = _loaded(quantizer) if isinstance(quantizer, str) else quantizer
    return _text(found), call(x, found, axis, random)


def _refuse_nan(x: Tensor, has_nan: bool, name: str, infinite: bool = False) -> None:
    lost = ~x.isfinite() if infinite else x.isnan()
    if not has_nan and bool(lost.any()):
        raise LowprecError(f"{name}: NaN has no code point")
