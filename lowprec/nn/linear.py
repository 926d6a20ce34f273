"""Linear modules whose operands lie on a format's grid."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowprec.kernels import fake_quantize
from lowprec.nn.product import (
    SMALLEST,
    bfloat16_products,
    fits_bfloat16,
    has_bfloat16_units,
    smallest,
)
from lowprec.spec import Rule


class Quantized(nn.Module):
    """What `wrap` makes of a module with a `weight`: the same object, of a subclass of its class.

    Forward: y = x' @ w'.T + bias in the operands' dtype, with x' = fake_quantize(x) along the
    last axis (K) at every call and w' = fake_quantize(weight) along its axis K, computed when
    wrapped and again after the parameter changes. Parameters, buffers, hooks and the keys of
    state_dict stay as they are: `weight` is the unquantized parameter, w' a second tensor beside
    it. So a wrapped weight takes twice its memory. NaN, Inf and overflow: see `Quantizer`.

    Gradients pass the quantizers straight through, to x and to the unquantized weight.
    """

    weight_axis: int  # axis K of the weight
    rule: Rule
    _cache: tuple[int, Tensor] | None
    _smallest: tuple[Tensor, float] | None

    @classmethod
    def adopt(cls, module: nn.Module, rule: Rule) -> None:
        """Turn `module`, exactly of the class that `cls` extends, into one of `cls`."""
        module.__class__ = cls
        module.rule = rule
        module._cache = module._smallest = None
        module.quantized_weight()

    def release(self) -> None:
        """Undo `adopt`: the module is again of its own class, with its own weight."""
        del self.rule, self._cache, self._smallest
        self.__class__ = type(self).__mro__[2]

    def multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        """The product as the unquantized module computes it."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        if self.rule.activation is not None:
            x = fake_quantize(x, self.rule.activation)
        weight = self.quantized_weight()
        # Asked of the cached tensor: the one that carries gradients is another at every call.
        exact = self._exact_in_bfloat16(x, weight)
        if self.weight.requires_grad and torch.is_grad_enabled():
            weight = _StraightThrough.apply(self.weight, weight)
        if exact:
            with bfloat16_products():
                return self.multiply(x, weight)
        return self.multiply(x, weight)

    def _exact_in_bfloat16(self, x: Tensor, weight: Tensor) -> bool:
        """Whether the processor has bfloat16 units and they lose nothing on these operands."""
        if not has_bfloat16_units() or x.device.type != "cpu" or torch.compiler.is_compiling():
            return False
        if x.dtype != torch.float32 or not (
            fits_bfloat16(self.rule.weight) and fits_bfloat16(self.rule.activation)
        ):
            return False
        if self._smallest is None or self._smallest[0] is not weight:
            self._smallest = weight, smallest(weight)
        return self._smallest[1] * smallest(x) >= SMALLEST

    def quantized_weight(self) -> Tensor:
        """w', detached; the parameter itself where the rule leaves the weight alone."""
        weight = self.weight.detach()
        if self.rule.weight is None:
            return weight
        # Every in-place change counts the version up, an optimizer's or load_state_dict's too.
        version = 0 if self.weight.is_inference() else self.weight._version
        if self._cache is None or self._cache[0] != version:
            self._cache = version, fake_quantize(weight, self.rule.weight, axis=self.weight_axis)
        return self._cache[1]

    def _apply(self, fn: Any, recurse: bool = True) -> Quantized:
        # Another device or dtype: the parameter moves without a new version.
        self._cache = self._smallest = None
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        # A copy's parameter counts its versions anew, so the cache's would mean something else.
        return {**self.__dict__, "_cache": None, "_smallest": None}

    def extra_repr(self) -> str:
        operands = {"weight": self.rule.weight, "activation": self.rule.activation}
        spelled = [f"{name}={q.spell()}" for name, q in operands.items() if q is not None]
        return ", ".join([super().extra_repr(), *spelled])


class QuantizedLinear(Quantized, nn.Linear):
    """nn.Linear with quantized operands; see `Quantized`."""

    weight_axis = -1

    def multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight, self.bias)


class _StraightThrough(torch.autograd.Function):
    """The quantized values forwards, the parameter's gradient backwards."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, quantized: Tensor) -> Tensor:  # noqa: ARG004
        return quantized.view_as(quantized)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return gradient, None
