"""Linear operations under the datapath of their rule."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import QTensor, matmul
from lowprec.nn.site import Site
from lowprec.nn.training.backward import multiplied

Codes = QTensor | Tensor


def linear(site: Site, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.mT + bias for x (..., M, K) and weight (N, K), or (..., N, K): the product bit for
    bit as `lowprec.kernels.matmul` gives it, the bias added in float32, and the sum rounded to the
    dtype of x.

    Gradients are those of the float matmul of the quantized operands, or as the rule's
    input_gradient and weight_gradient say. LowprecError for operands that the datapath does not
    take, and for transforms that have no codes: outliers, gptq.
    """
    changed, transformed = _transformed(site, x, weight)
    if torch.compiler.is_compiling() or x.device.type == "meta":
        rule = site.rule
        wide = (t if t.dtype == torch.float64 else t.float() for t in (changed, transformed))
        y = matmul(*wide, a=rule.activation, w=rule.weight, datapath=rule.datapath)
        return _finished(y, bias, x.dtype)
    a, w = _activation(site, changed), _weight(site, transformed, learning=_learns(weight))
    y = _product(site, a, w)
    if not torch.is_grad_enabled() or not (x.requires_grad or weight.requires_grad):
        return _finished(y, bias, x.dtype)
    operands = _values(a, x.dtype), _values(w, weight.dtype).mT
    y = multiplied(site, lambda *_: y, (changed, transformed.mT), operands, always=True)
    return _finished(y, bias, x.dtype)


def grouped(site: Site, x: Tensor, weight: Tensor, offsets: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` of each expert's rows of x (T, K), which end at `offsets`, and its weight (N, K) of
    (E, N, K). Rows behind the last end are zeros."""
    y = x.new_zeros(len(x), weight.shape[-2])
    if x.device.type == "meta":
        return y
    for expert, (start, end) in enumerate(pairwise([0, *offsets.tolist()])):
        own = None if bias is None else bias[expert]
        y[start:end] = linear(site, x[start:end], weight[expert], own)
    return y


def _finished(y: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    return (y if bias is None else y + bias.to(y.dtype)).to(dtype)


def _transformed(site: Site, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    transform = site.transform
    if transform is None:
        return x, weight
    if transform.spec.gptq or transform.spec.outliers:
        raise LowprecError(f"{site.path}: gptq and outliers are not emulated under a datapath")
    transform.require_calibration(x)
    return transform.activation(x, -1), transform.weight(weight, -1)


def _learns(weight: Tensor) -> bool:
    return torch.is_grad_enabled() and weight.requires_grad


def _activation(site: Site, x: Tensor) -> Codes:
    return x if site.rule.activation is None else site.codes("activation", site.rule.activation, x)


def _weight(site: Site, weight: Tensor, learning: bool) -> Codes:
    quantizer = site.rule.weight
    if quantizer is None:
        return weight
    kept = not learning and site.transform is None and quantizer.projection.bits is None
    found = site.weights.codes(weight, quantizer, -1, site.scales.get("weight")) if kept else None
    return site.codes("weight", quantizer, weight) if found is None else found


def _product(site: Site, a: Codes, w: Codes) -> Tensor:
    path = site.rule.datapath
    try:
        with torch.no_grad():
            return matmul(a, w, datapath=path)
    except LowprecError as error:
        raise LowprecError(f"{site.path or 'the model'}: {error}") from None


def _values(codes: Codes, dtype: torch.dtype) -> Tensor:
    return codes.dequantize().to(dtype) if isinstance(codes, QTensor) else codes.detach()
