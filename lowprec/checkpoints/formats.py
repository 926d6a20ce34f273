"""Block formats as files describe them, and the codes of those with one element to a byte."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from lowprec.kernels import QTensor
from lowprec.kernels.layouts.common import qtensor
from lowprec.spec import build, list_formats, load_format
from lowprec.spec.block import Block, BlockFormat

# How the codes of a float are held, by its size.
CODES = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}
FLOATS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@cache
def block_format(
    element: str, block: Block, scale: str = "float32", zero_point: str | None = None
) -> BlockFormat:
    """The shipped format of the name that these make, or one like it with that name."""
    size = block if isinstance(block, str) else "x".join(map(str, block))
    size = f"g{size}" if size.isdecimal() else size
    parts = [element, "zp" if zero_point else "", size]
    parts += {"float32": [], "float8_e8m0fnu": ["e8m0"]}.get(scale, [scale])
    name = "_".join(filter(None, parts))
    if name in list_formats():
        return load_format(name)
    data = {"name": name, "block": block, "element": load_format(element)}
    data |= {"scale": load_format(scale)}
    data |= {"zero_point": load_format(zero_point)} if zero_point else {}
    return build(BlockFormat, data, name)


def one_byte(
    fmt: BlockFormat, elements: Tensor, scales: Tensor, zero_point: Tensor | None = None
) -> QTensor:
    """A matrix whose elements (and zero points) are stored one to a byte and as they are.

    scales: floats, or codes of one byte.
    """
    shape = fmt.scale_shape(tuple(elements.shape))
    return qtensor(
        fmt,
        elements.view(torch.uint8),
        scales.view(CODES[scales.itemsize]).reshape(shape),
        offset=None if zero_point is None else zero_point.view(torch.uint8).reshape(shape),
    )
