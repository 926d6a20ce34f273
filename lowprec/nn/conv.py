"""Convolutions, as the implicit matrix products that hardware makes of them.

K of that product runs over the kernel's positions and, innermost, over the channels of a group.
Blocks lie within the channels of one position. Of a format with one scale per channel, a weight has
a scale for each output channel and an activation one for each position and group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lowprec.nn.conv_datapath import Geometry, under
from lowprec.nn.emulation import HANDLERS, Emulator
from lowprec.nn.site import Site
from lowprec.spec import BlockFormat, Quantizer

Sizes = int | tuple[int, ...]


def _handler(function: Any) -> Callable[..., Any]:
    def handler(
        mode: Emulator,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> Any:
        site = mode.site("conv", weight)
        if site is None:
            return NotImplemented
        geometry = Geometry.of(weight, stride, padding, dilation, groups)
        with mode.emulating(site):
            if site.rule.datapath is not None:
                y = under(site, input, weight, geometry)
                y = y if bias is None else y + bias.view(-1, *[1] * (weight.dim() - 2))
            else:
                x, w = _operands(site, input, weight, groups, transposed=False)
                y = function(x, w, bias, stride, padding, dilation, groups)
            return site.operand("output", y, 1 - weight.dim())

    return handler


def _handler_of_transposed(function: Any) -> Callable[..., Any]:
    def handler(
        mode: Emulator,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        dilation: Sizes = 1,
    ) -> Any:
        site = mode.site("conv", weight)
        if site is None:
            return NotImplemented
        geometry = Geometry.of(weight, stride, padding, dilation, groups, output_padding)
        with mode.emulating(site):
            if site.rule.datapath is not None:
                y = under(site, input, weight, geometry)
                y = y if bias is None else y + bias.view(-1, *[1] * (weight.dim() - 2))
            else:
                x, w = _operands(site, input, weight, groups, transposed=True)
                y = function(x, w, bias, stride, padding, output_padding, groups, dilation)
            return site.operand("output", y, 1 - weight.dim())

    return handler


for _function in (F.conv1d, F.conv2d, F.conv3d):
    HANDLERS[_function] = _handler(_function)
for _function in (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d):
    HANDLERS[_function] = _handler_of_transposed(_function)


def _operands(
    site: Site, x: Tensor, weight: Tensor, groups: int, transposed: bool
) -> tuple[Tensor, Tensor]:
    """Activation (N, C, *sizes) and weight of a convolution, quantized."""
    channels = 1 - weight.dim()
    grouped = x.unflatten(channels, (groups, -1))
    xq = site.operand("activation", grouped, channels).flatten(channels - 1, channels)
    return xq, _weight(site, weight, groups, transposed)


def _weight(site: Site, weight: Tensor, groups: int, transposed: bool) -> Tensor:
    """(O, C, *kernel), or (groups C, O, *kernel) of a transposed one, blocks along C."""
    split = weight.unflatten(0, (groups, -1)).flatten(3)
    order = (0, 3, 2, 1) if transposed else (0, 3, 1, 2)
    w = split.permute(order)  # (groups, positions, outputs, C)
    if _per_channel(site.rule.weight):
        rows = w.transpose(1, 2)
        wq = site.weight(rows.flatten(2), -1).view(rows.shape).transpose(1, 2)
    else:
        wq = site.weight(w, -1)
    inverse = torch.tensor(order).argsort().tolist()
    return wq.permute(inverse).reshape(weight.shape)


def _per_channel(quantizer: Quantizer | None) -> bool:
    fmt = None if quantizer is None else quantizer.format
    return isinstance(fmt, BlockFormat) and fmt.block == "channel"
