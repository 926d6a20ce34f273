"""Modules whose weight is kept as codes: dequantized at every use, and dropped again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowprec.errors import LowprecError
from lowprec.kernels import Packed, QTensor, fake_quantize, pack, unpack
from lowprec.spec.block import BlockFormat
from lowprec.spec.quantizer import Quantizer

# Elements that are unpacked at a time; temporaries beside the result are that large.
TILE = 1 << 20
# The arithmetic in here is none of the model's: no rule of a recipe for it to be found.
_unwatched = torch._C.DisableTorchFunction
_STREAMS = ("elements", "scales", "outer_scale", "offset", "outer_offset", "outlier")


@dataclass(frozen=True)
class Activation:
    """How a module's input is quantized, along its last axis. scale: for the rule static, the
    one scale of the whole tensor (with an outer scale: that one), float32 of rank 0."""

    quantizer: Quantizer
    scale: Tensor | None = None


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
        with _unwatched():
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
        with _unwatched():
            found = unpack(_select(packed, index.reshape(-1))).dequantize(dtype or self.dtype)
        return found.reshape(*index.shape, k)

    def extra_repr(self) -> str:
        return f"{self.shape[0]}x{self.shape[1]}, {self.quantizer.format.name}"


class StoredLinear(nn.Linear):
    """nn.Linear with its weight as codes, and perhaps a quantizer of its input.

    Forward: ``F.linear(x', w, bias)`` with w the values of `codes` in the dtype of x, computed at
    every call, and x' = fake_quantize(x) if there is an `activation`. No gradient to the weight.
    """

    codes: Codes
    input_scale: Tensor | None
    _input: Quantizer | None

    @classmethod
    def from_codes(
        cls, codes: Codes, bias: Tensor | None = None, activation: Activation | None = None
    ) -> StoredLinear:
        """A module of its own; `adopt` turns one of a model into it."""
        n, k = codes.shape
        linear = nn.Linear(k, n, bias=bias is not None, device="meta")
        if bias is not None:
            linear.bias = nn.Parameter(bias)
        return cls.adopt(linear, codes, activation)

    @classmethod
    def adopt(
        cls, module: nn.Linear, codes: Codes, activation: Activation | None = None
    ) -> StoredLinear:
        """Turn `module`, an nn.Linear, into one that has `codes` for its weight."""
        _become(module, cls, codes)
        module.activation = activation
        return module

    @property
    def weight(self) -> Tensor:
        """The values of the weight (N, K), computed anew each time it is asked for."""
        return self.codes.dequantize()

    @property
    def quantizer(self) -> Quantizer:
        return self.codes.quantizer

    @property
    def nbytes(self) -> int:
        """Bytes of the weight's codes."""
        return self.codes.nbytes

    @property
    def activation(self) -> Activation | None:
        """How the input is quantized; can be set, to None for not at all."""
        if self._input is None:
            return None
        scale = self.input_scale
        return Activation(
            self._input, None if scale is None else scale.view(torch.float32).reshape(())
        )

    @activation.setter
    def activation(self, activation: Activation | None) -> None:
        self._input = None if activation is None else activation.quantizer
        scale = None if activation is None else activation.scale
        if scale is not None:
            # As bytes, so that no change of the model's dtype rounds it.
            scale = scale.detach().to(torch.float32).reshape(1).view(torch.uint8).clone()
        self.register_buffer("input_scale", scale)

    def quantized_input(self, x: Tensor) -> Tensor:
        """x', of which K is the last axis."""
        activation = self.activation
        if activation is None or x.is_meta:
            return x
        fmt, scale = activation.quantizer.format, activation.scale
        if scale is not None and not (isinstance(fmt, BlockFormat) and fmt.outer):
            scale = scale.reshape((1,) * x.dim())
        with _unwatched():
            return fake_quantize(x, activation.quantizer, scale=scale)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.quantized_input(x), self.codes.dequantize(x.dtype), self.bias)

    def extra_repr(self) -> str:
        spelled = "" if self._input is None else f", activation={self._input.spell()}"
        return super().extra_repr() + spelled


class StoredEmbedding(nn.Embedding):
    """nn.Embedding with its table as codes, of which the rows asked for are dequantized."""

    codes: Codes

    @classmethod
    def adopt(cls, module: nn.Embedding, codes: Codes) -> StoredEmbedding:
        """Turn `module`, an nn.Embedding without `max_norm`, into one with `codes` as its table."""
        if module.max_norm is not None:
            raise LowprecError("an embedding with max_norm rescales its table; codes cannot be")
        return _become(module, cls, codes)

    @property
    def weight(self) -> Tensor:
        """The values of the whole table, computed anew each time it is asked for."""
        return self.codes.dequantize()

    @property
    def quantizer(self) -> Quantizer:
        return self.codes.quantizer

    @property
    def nbytes(self) -> int:
        """Bytes of the table's codes."""
        return self.codes.nbytes

    def forward(self, input: Tensor) -> Tensor:
        return self.codes.rows(input)


class StoredExperts(nn.Module):
    """The matrices of all experts (E, N, K) as codes, in place of a parameter of that shape.

    ``experts[e]`` are the values of expert e (N, K); (K, N) where `transposed`. Each expert's are
    those of one or more matrices below each other: the projections that a model holds as one.
    activation: how a file wants their input quantized; whoever multiplies has to do it.
    """

    def __init__(
        self,
        experts: Sequence[Sequence[Codes]],
        transposed: bool = False,
        activation: Activation | None = None,
    ) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.ModuleList(parts) for parts in experts)
        self.transposed = transposed
        self.activation = activation

    @property
    def shape(self) -> tuple[int, int, int]:
        n = sum(part.shape[0] for part in self.experts[0])
        k = self.experts[0][0].shape[1]
        return (len(self.experts), k, n) if self.transposed else (len(self.experts), n, k)

    @property
    def quantizer(self) -> Quantizer:
        return self.experts[0][0].quantizer

    @property
    def nbytes(self) -> int:
        """Bytes of the codes of all experts."""
        return sum(part.nbytes for parts in self.experts for part in parts)

    def __len__(self) -> int:
        return len(self.experts)

    def __getitem__(self, expert: int | Tensor) -> Tensor:
        values = [part.dequantize() for part in self.experts[int(expert)]]
        value = values[0] if len(values) == 1 else torch.cat(values)
        # The memory order of the parameter it stands for: a product's bits may depend on it.
        return value.mT.contiguous() if self.transposed else value

    @property
    def weight(self) -> Tensor:
        """The values of all experts, as the parameter would hold them."""
        return torch.stack([self[i] for i in range(len(self))])


def _become(module: Any, cls: type[nn.Module], codes: Codes) -> Any:
    """`module` with `codes` for its parameter `weight`, of class `cls` below its own."""
    if tuple(module._parameters["weight"].shape) != codes.shape:
        raise LowprecError(
            f"codes of shape {codes.shape} for a weight of {tuple(module.weight.shape)}"
        )
    del module._parameters["weight"]
    own = type(module)
    # A subclass may compute more, and calls what is above it or reads `weight`.
    plain = own in cls.__bases__
    module.__class__ = cls if plain else type(f"Stored{own.__name__}", (own, cls), {})
    module.codes = codes
    return module


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
