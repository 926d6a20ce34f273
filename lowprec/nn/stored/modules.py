"""Modules whose weight is kept as codes: dequantized at every use, and dropped again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowprec.errors import LowprecError
from lowprec.kernels import fake_quantize
from lowprec.nn.emulation import Emulated, sites_of
from lowprec.nn.stored.codes import Codes, unwatched
from lowprec.spec.block import BlockFormat
from lowprec.spec.quantizer import Quantizer


@dataclass(frozen=True)
class Activation:
    """How a module's input is quantized, along its last axis. scale: for the rule static, the
    one scale of the whole tensor (with an outer scale: that one), float32 of rank 0."""

    quantizer: Quantizer
    scale: Tensor | None = None


class StoredLinear(nn.Linear):
    """nn.Linear with its weight as codes, and perhaps a quantizer of its input.

    Forward: ``F.linear(x', w, bias)`` with w the values of `codes` in the dtype of x, computed at
    every call, and x' = fake_quantize(x) if there is an `activation`. No gradient to the weight.
    Under a recipe, a rule's activation takes the place of its own, and a rule's weight quantizes
    the values of the codes once more.
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
        """x', of which K is the last axis; left to the recipe where that quantizes it."""
        activation = self.activation
        site = sites_of(self).get("linear") if isinstance(self, Emulated) else None
        if activation is None or x.is_meta or (site and site.rule.activation):
            return x
        fmt, scale = activation.quantizer.format, activation.scale
        if scale is not None and not (isinstance(fmt, BlockFormat) and fmt.outer):
            scale = scale.reshape((1,) * x.dim())
        with unwatched():
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
