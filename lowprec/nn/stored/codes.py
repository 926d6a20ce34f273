"""A matrix as the dense bits of its codes, dequantized in part or as a whole."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowprec.errors import LowprecError
from lowprec.kernels import Packed, QTensor, pack, unpack
from lowprec.spec.block import BlockFormat
from lowprec.spec.quantizer import Quantizer

# Elements that are unpacked at a time; temporaries beside the result are that large.
TILE = 1 << 20
# The arithmetic in here is none of the model's: no rule of a recipe for it to be found.
unwatched = torch._C.DisableTorchFunction
_STREAMS = ("elements", "scales", "outer_scale", "offset", "outer_offset", "outlier")


class Codes(nn.Module):
    """A matrix (N, K) as the dense bits of its codes, in buffers; see `lowprec.kernels.Packed`.

    Blocks run along K. The values are those of `lowprec.kernels.dequantize`. `to` and its kin
    change the dtype of the values that are asked for, never the codes.
    """

    def __init__(self, q: QTensor, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        if len(q.shape) != 2 or q.axis != -1:
            raise LowprecError(
                f"codes of shape {tuple(q.shape)} blocked along axis {q.axis}: expected a matrix, "
                "blocked along its last axis"
            )
        self._like: Tensor
        self.register_buffer("_like", torch.empty(0, dtype=dtype), persistent=False)
        packed = pack(q)
        for name in _STREAMS:
            # 8-bit codes would share the memory of `q`.
            stream = getattr(packed, name)
            self.register_buffer(name, None if stream is None else stream.clone())
        for i, stream in enumerate(packed.inner):
            self.register_buffer(f"inner_{i}", stream.clone())
        self._packed = replace(packed, **dict.fromkeys(_STREAMS), inner=())

    @property
    def quantizer(self) -> Quantizer:
        """Its format, and the rule that chose the scales; ``static`` where a file gave them."""
        return self._packed.quantizer

    @property
    def shape(self) -> tuple[int, int]:
        return self._packed.shape

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values unless another is asked for."""
        return self._like.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all codes, dense: elements, scales and what else the format has."""
        return self.packed().nbytes

    def packed(self) -> Packed:
        fmt = self.quantizer.format
        levels = len(fmt.inner) if isinstance(fmt, BlockFormat) else 0
        inner = tuple(getattr(self, f"inner_{i}") for i in range(levels))
        return replace(
            self._packed, **{name: getattr(self, name) for name in _STREAMS}, inner=inner
        )

    @torch.compiler.disable
    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The values (N, K), computed in tiles of rows."""
        n, k = self.shape
        y = torch.empty(n, k, dtype=dtype or self.dtype, device=self._like.device)
        if y.is_meta:
            return y
        packed = self.packed()
        with unwatched():
            for rows in _tiles(packed):
                y[rows] = unpack(_select(packed, rows)).dequantize(y.dtype)
        return y

    @torch.compiler.disable
    def rows(self, index: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The values (..., K) of the rows that `index` names, without the others."""
        n, k = self.shape
        packed = self.packed()
        if self._like.is_meta or not _is_sliceable(packed, 1):
            return F.embedding(index, self.dequantize(dtype))
        wrong = (index < 0) | (index >= n)
        if bool(wrong.any()):
            raise LowprecError(f"row {int(index[wrong][0])}: expected 0 to {n - 1}")
        with unwatched():
            found = unpack(_select(packed, index.reshape(-1))).dequantize(dtype or self.dtype)
        return found.reshape(*index.shape, k)

    def extra_repr(self) -> str:
        return f"{self.shape[0]}x{self.shape[1]}, {self.quantizer.format.name}"


def _lengths(packed: Packed) -> dict[str, tuple[int, int]]:
    """Of each stream: how many rows of the matrix share one of its rows (0: all do), and the bits
    of that."""
    fmt, shape = packed.quantizer.format, packed.shape
    if not isinstance(fmt, BlockFormat):
        return {"elements": (1, shape[1] * fmt.bits)}
    offset, outer = fmt.zero_point or fmt.offset, fmt.outer
    parts = {"elements": ((1,), fmt.element.bits), "scales": (fmt.block, fmt.scale.bits)}
    parts |= {"offset": (fmt.block, offset.bits)} if offset else {}
    parts |= {"outlier": (fmt.block, fmt.outlier.index_bits)} if fmt.outlier else {}
    parts |= {f"inner.{i}": (f.block, f.scale.bits) for i, f in enumerate(fmt.inner)}
    if outer:
        parts["outer_scale"] = (outer.block, outer.scale.bits)
        if offset:
            parts["outer_offset"] = (outer.block, outer.scale.bits)
    return {
        name: (
            0 if block == "tensor" else fmt.block_sizes(shape, -1, block)[0],
            fmt.scale_shape(shape, -1, block)[1] * bits,
        )
        for name, (block, bits) in parts.items()
    }


def _is_sliceable(packed: Packed, rows: int) -> bool:
    """Whether every `rows` rows are whole bytes of every stream."""
    each = ((n, bits) for n, bits in _lengths(packed).values() if n)
    return all(rows % n == 0 and rows // n * bits % 8 == 0 for n, bits in each)


def _tiles(packed: Packed) -> list[slice]:
    n, k = packed.shape
    # Eight rows of any stream are whole bytes.
    step = 8 * math.lcm(*(each for each, _ in _lengths(packed).values() if each))
    rows = max(step, TILE // max(k, 1) // step * step)
    return [slice(first, min(first + rows, n)) for first in range(0, n, rows)]


def _select(packed: Packed, rows: slice | Tensor) -> Packed:
    """Some rows: a slice that begins with whole bytes of every stream, or an index of such."""

    def part(name: str, stream: Tensor | None) -> Tensor | None:
        if stream is None or not lengths[name][0]:
            return stream
        each, bits = lengths[name]
        if isinstance(rows, Tensor):
            return stream.view(-1, bits // 8)[rows].reshape(-1)
        first, last = rows.start // each, -(-rows.stop // each)
        return stream[first * bits // 8 : -(-last * bits // 8)]

    lengths = _lengths(packed)
    count = rows.numel() if isinstance(rows, Tensor) else rows.stop - rows.start
    inner = tuple(part(f"inner.{i}", stream) for i, stream in enumerate(packed.inner))
    streams = {name: part(name, getattr(packed, name)) for name in _STREAMS}
    return replace(packed, **streams, inner=inner, shape=(count, packed.shape[1]))
