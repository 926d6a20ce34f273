"""Matmuls with a weight, and products of two activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lowprec.nn.attention.calls import product
from lowprec.nn.calibration.transforms import with_outliers
from lowprec.nn.emulation import Emulator, handles
from lowprec.nn.operations import under
from lowprec.nn.operations.product import exactly
from lowprec.nn.site import Site
from lowprec.nn.training.backward import multiplied


@handles(F.linear)
def _linear(mode: Emulator, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    site = mode.site("linear", weight)
    if site is None:
        return NotImplemented
    with mode.emulating(site, _flops(site, input, weight)):
        return linear(site, input, weight, bias)


@handles(torch.addmm, torch.Tensor.addmm)
def _addmm(mode: Emulator, input: Tensor, mat1: Tensor, mat2: Tensor, **scaled: Any) -> Any:
    site = mode.site("linear", mat2)
    if site is None or scaled or mode.parameter(mat2) is None:
        return NotImplemented
    with mode.emulating(site, _flops(site, mat1, mat2.mT)):
        if _under(site):
            return site.operand("output", under.linear(site, mat1, mat2.mT, input))
        x, w = operands(site, mat1, mat2, axis=-2)
        with exactly(site.rule, x, w):
            y = multiplied(
                site, lambda x, w: torch.addmm(input, x, w), (mat1, mat2), (x, w), bias=input
            )
        y = with_outliers(site, y, (mat1, mat2), (-1, -2), torch.mm)
        return site.operand("output", y)


@handles(
    torch.matmul,
    torch.Tensor.matmul,
    torch.Tensor.__matmul__,
    torch.mm,
    torch.Tensor.mm,
    torch.bmm,
    torch.Tensor.bmm,
)
def _matmul(mode: Emulator, input: Tensor, other: Tensor) -> Any:
    weights = mode.parameter(input) is not None, mode.parameter(other) is not None
    weight = other if weights[1] else input
    axis = contracted(other, -2)
    if not any(weights):
        return product(mode, input, other, axis, torch.matmul, lambda y: y)
    site = mode.site("linear", weight)
    if site is None:
        return NotImplemented
    if _under(site):
        return _matmul_under(mode, site, input, other, weights[1])
    with mode.emulating(site):
        if weights[1]:
            a, b = operands(site, input, other, axis)
        else:
            b, a = operands(site, other, input, axis=-1, x_axis=axis)
        with exactly(site.rule, a, b):
            if weights[1]:
                y = multiplied(site, torch.matmul, (input, other), (a, b))
            else:
                y = _weight_first(site, (input, other), (a, b))
        if weights[1]:
            y = with_outliers(site, y, (input, other), (-1, axis), torch.matmul)
        else:
            y = with_outliers(site, y, (other, input), (axis, -1), lambda x, w: w @ x)
        return site.operand("output", y)


@handles(F.grouped_mm, torch._grouped_mm)
def _grouped(mode: Emulator, mat_a: Tensor, mat_b: Tensor, **options: Any) -> Any:
    return grouped(mode, F.grouped_mm, mat_a, mat_b, **options)


def grouped(
    mode: Emulator, function: Callable[..., Tensor], mat_a: Tensor, mat_b: Tensor, **options: Any
) -> Any:
    """mat_a (T, K), rows of one expert after the other's, by mat_b (E, K, N); `function` multiplies
    so."""
    site = mode.site("linear", mat_b)
    if site is None:
        return NotImplemented
    with mode.emulating(site, _flops(site, mat_a, mat_b.mT)):
        if _under(site):
            y = under.grouped(site, mat_a, mat_b.mT, options["offs"], options.get("bias"))
            return site.operand("output", y)
        x, w = operands(site, mat_a, mat_b, axis=-2)
        with exactly(site.rule, x, w):
            y = multiplied(
                site,
                lambda x, w: function(x, w, **options),
                (mat_a, mat_b),
                (x, w),
                bias=options.get("bias"),
                offsets=options.get("offs"),
            )
        y = with_outliers(
            site, y, (mat_a, mat_b), (-1, -2), lambda x, w: function(*_aligned(x, w), **options)
        )
        return site.operand("output", y)


def _aligned(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """x (T, K) and w (E, K, N) with zeros to a K whose rows are multiples of 16 bytes long, which
    torch's grouped matmul asks for."""
    lacking = -x.shape[-1] % (16 // x.itemsize)
    return F.pad(x, (0, lacking)), F.pad(w, (0, 0, 0, lacking))


def _under(site: Site) -> bool:
    """Whether the rule's datapath multiplies; a calibration pass runs in float."""
    return site.rule.datapath is not None and site.statistics is None


def _flops(site: Site, x: Tensor, weight: Tensor) -> int | None:
    """FLOP of x @ weight.mT where no operation that the audit knows performs them."""
    return 2 * x.numel() * weight.shape[-2] if _under(site) and weight.dim() > 1 else None


def _matmul_under(
    mode: Emulator, site: Site, input: Tensor, other: Tensor, weight_second: bool
) -> Tensor:
    """input @ other, the weight being `other` or else `input`."""
    row, column = input.dim() < 2, other.dim() < 2
    left, right = input[None] if row else input, other[:, None] if column else other
    x, w = (left, right.mT) if weight_second else (right.mT, left)
    with mode.emulating(site, _flops(site, x, w)):
        y = under.linear(site, x, w)
        y = y if weight_second else y.mT
        y = y.squeeze(-1) if column else y
        return site.operand("output", y.squeeze(-2 + column) if row else y)


def _weight_first(
    site: Site, operands: tuple[Tensor, Tensor], quantized: tuple[Tensor, Tensor]
) -> Tensor:
    """w @ x as the transpose of x.T @ w.T."""
    (w, x), (wq, xq) = operands, quantized
    if x.dim() == 1:
        return multiplied(site, lambda x, w: w.mT @ x, (x, w.mT), (xq, wq.mT))
    transposed = (x.mT, w.mT), (xq.mT, wq.mT)
    return multiplied(site, lambda x, w: (w.mT @ x.mT).mT, *transposed).mT


def contracted(tensor: Tensor, axis: int) -> int:
    """`axis`, K of a matrix or a batch of them; the only one of a vector."""
    return axis if tensor.dim() > 1 else -1


def linear(site: Site, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x' @ w'.T + bias for x (..., K) and w (N, K), both quantized along K."""
    if _under(site):
        return site.operand("output", under.linear(site, x, weight, bias))
    xq, wq = operands(site, x, weight, axis=-1)
    if weight.dim() > 1:
        weight, wq = weight.mT, wq.mT
    with exactly(site.rule, xq, wq):
        y = multiplied(
            site,
            lambda x, w: F.linear(x, w.mT if w.dim() > 1 else w, bias),
            (x, weight),
            (xq, wq),
            bias,
        )
    y = with_outliers(site, y, (x, weight), (-1, contracted(weight, -2)), torch.matmul)
    return site.operand("output", y)


def operands(
    site: Site, x: Tensor, weight: Tensor, axis: int, x_axis: int = -1
) -> tuple[Tensor, Tensor]:
    """Activation and weight, transformed and quantized; K is `x_axis` and `axis`."""
    axis = contracted(weight, axis)
    if site.transform is not None:
        return site.transform.operands(site, x, weight, x_axis, axis)
    return site.activation(x, x_axis), site.weight(weight, axis)
