"""One matrix under a datapath times another, by the CPU core or by the definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowprec.kernels import matmul_core
from lowprec.kernels.dot import dot
from lowprec.spec.datapath import Datapath

# Elements of the products that the definition holds at a time.
_TILE = 1 << 20


def product(
    x: Tensor,
    y: Tensor,
    path: Datapath,
    formats: tuple[Any, Any],
    scales: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """(M, K) times (N, K), by the CPU core where it covers the case: the same bits."""
    if not x.numel() or not y.numel():
        return torch.zeros(len(x), len(y), device=x.device)
    sides = [(t, None if scales is None else scales[i]) for i, t in enumerate((x, y))]
    unlike = [~_all_rows(torch.isfinite, side) for side in sides]
    if not any(bool(rows.any()) for rows in unlike):
        d = matmul_core.multiply(x, y, path, formats, scales)
        return defined(x, y, path, formats, scales) if d is None else d
    (clean_x, scale_x), (clean_y, scale_y) = (_cleaned(*side) for side in sides)
    pair = None if scales is None else (scale_x, scale_y)
    d = matmul_core.multiply(clean_x, clean_y, path, formats, pair)
    if d is None:
        return defined(x, y, path, formats, scales)
    # NaN makes NaN of all that it meets; what Inf makes depends on the others.
    nan = [~_all_rows(_is_number, side) for side in sides]
    rows, columns = ((u & ~n).nonzero()[:, 0] for u, n in zip(unlike, nan, strict=True))
    at_rows, at_columns = (
        scales and (scales[0][rows], scales[1]),
        scales and (scales[0], scales[1][columns]),
    )
    if len(rows):
        d[rows] = defined(x[rows], y, path, formats, at_rows)
    if len(columns):
        d[:, columns] = defined(x, y[columns], path, formats, at_columns)
    d[nan[0]] = torch.nan
    d[:, nan[1]] = torch.nan
    return d


def _is_number(x: Tensor) -> Tensor:
    return ~x.isnan()


def _all_rows(test: Callable[[Tensor], Tensor], side: tuple[Tensor, Tensor | None]) -> Tensor:
    """Rows all of whose values and scales pass."""
    found = test(side[0]).all(-1)
    return found if side[1] is None else found & test(side[1]).all(-1)


def _cleaned(values: Tensor, scales: Tensor | None) -> tuple[Tensor, Tensor | None]:
    clean = torch.where(torch.isfinite(values), values, 0.0)
    return clean, None if scales is None else torch.where(torch.isfinite(scales), scales, 1.0)


def defined(
    x: Tensor,
    y: Tensor,
    path: Datapath,
    formats: tuple[Any, Any],
    scales: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """By the definition in torch, a tile of x and y at a time."""
    k = x.shape[-1]
    across = max(min(len(y), _TILE // k), 1)
    down = max(_TILE // (k * across), 1)
    parts = []
    for i in range(0, len(x), down):
        line = []
        for j in range(0, len(y), across):
            at = slice(i, i + down), slice(j, j + across)
            pair = None
            if scales is not None:
                shape = (len(x[at[0]]), len(y[at[1]]), scales[0].shape[-1])
                pair = scales[0][at[0], None].expand(shape), scales[1][None, at[1]].expand(shape)
            line.append(
                dot(x[at[0], None], y[None, at[1]], datapath=path, formats=formats, scales=pair)
            )
        parts.append(torch.cat(line, -1))
    return torch.cat(parts)
