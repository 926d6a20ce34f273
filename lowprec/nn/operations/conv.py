"""Convolutions, as the implicit matrix products that hardware makes of them.

K of that product runs over the kernel's positions and, innermost, over the channels of a group.
Blocks lie within the channels of one position. Of a format with one scale per channel, a weight has
a scale for each output channel and an activation one for each position and group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from lowprec.nn.emulation import HANDLERS, Emulator
from lowprec.nn.operations.conv_datapath import Geometry, under
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
        rest = (stride, padding, dilation, groups)
        return _convolved(mode, site, function, (input, weight, bias), geometry, rest)

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
        rest = (stride, padding, output_padding, groups, dilation)
        return _convolved(mode, site, function, (input, weight, bias), geometry, rest)

    return handler


for _function in (F.conv1d, F.conv2d, F.conv3d):
    HANDLERS[_function] = _handler(_function)
for _function in (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d):
    HANDLERS[_function] = _handler_of_transposed(_function)


def _convolved(
    mode: Emulator,
    site: Site,
    function: Any,
    operands: tuple[Tensor, Tensor, Tensor | None],
    geometry: Geometry,
    rest: tuple[Any, ...],
) -> Tensor:
    """The convolution of x (N, C, *sizes) or (C, *sizes); `rest`: the function's last arguments."""
    x, weight, bias = operands
    channels = 1 - weight.dim()
    if site.rule.datapath is not None:
        with mode.emulating(site, geometry.flops(x, weight)):
            y = under(site, x, weight, geometry)
            y = y if bias is None else y + bias.view(-1, *[1] * len(geometry.kernel))
            return site.operand("output", y, channels)
    with mode.emulating(site):
        grouped = x.unflatten(channels, (geometry.groups, -1))
        xq = site.operand("activation", grouped, channels).flatten(channels - 1, channels)
        wq = _weight(site, weight, geometry.groups, geometry.transposed)
        return site.operand("output", function(xq, wq, bias, *rest), channels)


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
    inverse = sorted(range(4), key=order.__getitem__)
    return wq.permute(inverse).reshape(weight.shape).contiguous()


def _per_channel(quantizer: Quantizer | None) -> bool:
    fmt = None if quantizer is None else quantizer.format
    return isinstance(fmt, BlockFormat) and fmt.block == "channel"
