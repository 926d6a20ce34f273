"""A site: one operation of one module, under its rule."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import fake_quantize
from lowprec.nn.weights import Weights
from lowprec.spec import BlockFormat, Format, Quantizer, Rule


class Site:
    """Quantizes the operands of one operation of the module at `path`, as `rule` says.

    scales: calibrated or delayed scales, by operand, of the quantizers whose rule is static.
    statistics: what a calibration pass measures here, while one runs. Copies of a site share no
    state that belongs to parameters.
    """

    def __init__(self, path: str, operation: str, rule: Rule) -> None:
        self.path, self.operation, self.rule = path, operation, rule
        self.scales: dict[str, Tensor] = {}
        self.statistics: Any = None
        self.weights = Weights()
        self._draws = 0

    def operand(self, name: str, x: Tensor, axis: int = -1) -> Tensor:
        """`x` as the rule quantizes that operand, blocks along `axis`; straight-through."""
        if self.statistics is not None:
            self.statistics.see(name, x, axis)
        quantizer: Quantizer | None = getattr(self.rule, name)
        return x if quantizer is None else self.quantize(name, quantizer, x, axis)

    def quantize(self, name: str, quantizer: Quantizer, x: Tensor, axis: int = -1) -> Tensor:
        """`x` under any quantizer, with this site's scale and random bits for `name`."""
        scale = None
        if quantizer.rule == "static":
            scale = self.scales.get(name)
            if scale is None:
                if self.statistics is not None:
                    return x  # a calibration pass runs unquantized where scales are missing
                raise LowprecError(
                    f"{self.path or 'the model'}: {name}={quantizer.spell()} has no scale yet; "
                    "run lowprec.calibrate(model, batches) first"
                )
        random = self._random(name, quantizer)
        try:
            return fake_quantize(x, quantizer, axis=axis, random=random, scale=scale)
        except LowprecError as error:
            raise LowprecError(f"{self.path or 'the model'}: {name}: {error}") from None

    def weight(self, weight: Tensor, axis: int) -> Tensor:
        """The quantized weight, blocks along `axis`: kept as code points between calls while no
        gradient is asked of the parameter. Straight-through."""
        if self.statistics is not None:
            self.statistics.see("weight", weight, axis)
        quantizer = self.rule.weight
        if quantizer is None:
            return weight
        if weight.dim() > 2 and spans_tensor(quantizer.format):
            # Every expert's matrix has its own scale.
            return torch.stack([self._quantized(w, quantizer, axis) for w in weight])
        return self._quantized(weight, quantizer, axis)

    def _quantized(self, weight: Tensor, quantizer: Quantizer, axis: int) -> Tensor:
        training = torch.is_grad_enabled() and weight.requires_grad
        if training or quantizer.projection.bits is not None or torch.compiler.is_compiling():
            return self.quantize("weight", quantizer, weight, axis)
        return self.weights.get(weight, quantizer, axis, self.scales.get("weight"))

    def _random(self, name: str, quantizer: Quantizer) -> int | None:
        """A new seed at every call; the same ones in every run."""
        if quantizer.projection.bits is None:
            return None
        self._draws += 1
        text = f"{self.rule.seed} {self.path} {self.operation} {name} {self._draws}"
        return zlib.crc32(text.encode())


def spans_tensor(fmt: Format) -> bool:
    """Whether one of the format's scales is the whole tensor's."""
    if not isinstance(fmt, BlockFormat):
        return False
    return fmt.block == "tensor" or (fmt.outer is not None and fmt.outer.block == "tensor")
