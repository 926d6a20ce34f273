"""What the layouts share: checks of what they get, and a `QTensor` of what a file holds."""

from __future__ import annotations

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels.qtensor import QTensor
from lowprec.spec import load_format
from lowprec.spec.block import BlockFormat
from lowprec.spec.quantizer import Quantizer


def qtensor(
    fmt: BlockFormat,
    codes: Tensor,
    scales: Tensor,
    outer_scale: Tensor | None = None,
    offset: Tensor | None = None,
    outer_offset: Tensor | None = None,
) -> QTensor:
    """A tensor of codes from a file, blocked along its last axis.

    The file does not say what rule chose its scales. They were given, hence ``static``; formats
    with a zero point or an offset have ``minmax`` only.
    """
    ranged = fmt.zero_point is not None or fmt.offset is not None
    return QTensor(
        codes=codes,
        scales=scales,
        outer_scale=outer_scale,
        inner=(),
        offset=offset,
        outer_offset=outer_offset,
        outlier=None,
        quantizer=Quantizer(format=fmt, rule="minmax" if ranged else "static"),
        axis=-1,
    )


def format_of(q: QTensor, layout: str) -> BlockFormat:
    """The block format of `q`; LowprecError unless it has one, blocked along its last axis."""
    fmt = q.quantizer.format
    if not isinstance(fmt, BlockFormat):
        raise LowprecError(f"{layout}: {fmt.name!r} is a scalar format; expected a block format")
    if q.axis != -1:
        raise LowprecError(f"{layout}: blocks along axis {q.axis}; expected the last, -1")
    return fmt


def require_shipped(q: QTensor, layout: str, name: str) -> None:
    """LowprecError unless the format of `q` is the shipped one of that name, whatever its own."""
    fmt, shipped = format_of(q, layout), load_format(name)
    if fmt.model_copy(update={"name": name}) != shipped:
        raise LowprecError(f"{layout}: format {fmt.name!r}; expected that of {name!r}")


def require_rank(shape: tuple[int, ...], least: int, layout: str) -> None:
    """LowprecError unless `shape` has `least` dimensions or more."""
    if len(shape) < least:
        raise LowprecError(f"{layout}: shape {tuple(shape)}; expected rank {least} or more")


def require_whole(count: int, block: int, layout: str) -> None:
    """LowprecError unless `count` elements along the last axis are whole blocks."""
    if count % block:
        raise LowprecError(
            f"{layout}: {count} elements along the last axis; expected whole {block}s"
        )


def require_bytes(data: Tensor, shape: tuple[int, ...], layout: str) -> None:
    """LowprecError unless `data` is uint8 of `shape`."""
    if data.dtype != torch.uint8 or tuple(data.shape) != shape:
        raise LowprecError(
            f"{layout}: {data.dtype} of shape {tuple(data.shape)}; expected torch.uint8 of {shape}"
        )
