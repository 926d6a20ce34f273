"""The order in which NVIDIA's tensor cores read block scales, tiles of 128 x 4.

cuBLAS library documentation, "1D Block Scaling Factors Layout": the scale in row r and column c of
a tile lies at byte ``(r % 32) * 16 + (r // 32) * 4 + c`` of its 512; tiles follow each other in
row-major order. TransformerEngine's "swizzled" scales and torchao's `to_blocked` are the same.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lowprec.errors import LowprecError

_ROWS, _COLUMNS = 128, 4
# From the dimensions of `_tiles` to (tile row, tile column, r % 32, r // 32, c), and back.
_ORDER = (0, 3, 2, 1, 4)


def to_blocked_128x4(scales: Tensor) -> Tensor:
    """Codes of scales (rows, columns), one byte each, in that order: uint8 of rank 1.

    Rows and columns are filled with zero bytes to whole tiles. LowprecError for another rank or
    dtype than uint8.
    """
    if scales.dtype != torch.uint8 or scales.dim() != 2:
        raise LowprecError(
            f"128x4 scales: {scales.dtype} of rank {scales.dim()}; expected torch.uint8 of rank 2"
        )
    rows, columns = scales.shape
    whole = F.pad(scales, (0, -columns % _COLUMNS, 0, -rows % _ROWS))
    return whole.view(*_tiles(rows, columns)).permute(_ORDER).reshape(-1)


def from_blocked_128x4(blocked: Tensor, rows: int, columns: int) -> Tensor:
    """The scales (rows, columns) that `to_blocked_128x4` ordered; what filled them is dropped.

    LowprecError unless `blocked` is uint8 of exactly the bytes of their whole tiles.
    """
    tiles = _tiles(rows, columns)
    if blocked.dtype != torch.uint8 or blocked.numel() != math.prod(tiles):
        raise LowprecError(
            f"128x4 scales: {blocked.dtype}, {blocked.numel()} elements; {rows} x {columns} scales "
            f"are {math.prod(tiles)} of torch.uint8"
        )
    ordered = blocked.reshape([tiles[i] for i in _ORDER]).permute(_ORDER)
    whole = ordered.reshape(tiles[0] * _ROWS, tiles[3] * _COLUMNS)
    return whole[:rows, :columns].contiguous()


def _tiles(rows: int, columns: int) -> tuple[int, ...]:
    """Row-major scales as (tile row, r // 32, r % 32, tile column, c)."""
    return -(-rows // _ROWS), _ROWS // 32, 32, -(-columns // _COLUMNS), _COLUMNS
