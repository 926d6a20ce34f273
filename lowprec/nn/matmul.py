"""Matmuls with a weight, and products of two activations."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lowprec.nn.emulation import Emulator, handles
from lowprec.nn.product import exactly
from lowprec.nn.site import Site


@handles(F.linear)
def _linear(mode: Emulator, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    site = mode.site("linear", weight)
    if site is None:
        return NotImplemented
    with mode.emulating(site):
        return linear(site, input, weight, bias)


@handles(torch.addmm, torch.Tensor.addmm)
def _addmm(mode: Emulator, input: Tensor, mat1: Tensor, mat2: Tensor, **scaled: Any) -> Any:
    site = mode.site("linear", mat2)
    if site is None or scaled or mode.parameter(mat2) is None:
        return NotImplemented
    with mode.emulating(site):
        x, w = operands(site, mat1, mat2, axis=-2)
        with exactly(site.rule, x, w):
            return site.operand("output", torch.addmm(input, x, w))


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
    site = mode.site("linear", weight) if any(weights) else mode.site("matmul")
    if site is None:
        return NotImplemented
    axis = contracted(other, -2)
    with mode.emulating(site):
        if weights[1]:
            a, b = operands(site, input, other, axis)
        elif weights[0]:
            a, b = site.weight(input, -1), site.operand("activation", other, axis)
        else:
            a, b = site.operand("left", input), site.operand("right", other, axis)
        with exactly(site.rule, a, b):
            return site.operand("output", torch.matmul(a, b))


@handles(*filter(None, (getattr(F, "grouped_mm", None), torch._grouped_mm)))
def _grouped(mode: Emulator, mat_a: Tensor, mat_b: Tensor, **options: Any) -> Any:
    site = mode.site("linear", mat_b)
    if site is None:
        return NotImplemented
    with mode.emulating(site):
        x, w = operands(site, mat_a, mat_b, axis=-2)
        with exactly(site.rule, x, w):
            return site.operand("output", F.grouped_mm(x, w, **options))


def contracted(tensor: Tensor, axis: int) -> int:
    """`axis`, K of a matrix or a batch of them; the only one of a vector."""
    return axis if tensor.dim() > 1 else -1


def linear(site: Site, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x' @ w'.T + bias for x (..., K) and w (N, K), both quantized along K."""
    x, w = operands(site, x, weight, axis=-1)
    with exactly(site.rule, x, w):
        return site.operand("output", F.linear(x, w, bias))


def operands(site: Site, x: Tensor, weight: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Activation, blocked along its last axis, and weight, along `axis`."""
    return site.operand("activation", x), site.weight(weight, contracted(weight, axis))
