"""A site: one operation of one module, under its rule."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from lowprec.errors import LowprecError
from lowprec.kernels import QTensor, fake_quantize, quantize
from lowprec.nn.calibration.scales import given
from lowprec.nn.calibration.transforms import SiteTransform
from lowprec.nn.training.delayed import History
from lowprec.nn.weights import Weights
from lowprec.spec import OPERANDS, Quantizer, Rule

# What the linear layers that read one tensor, such as q, k and v, make of it, while it lives: its
# version, the quantizer and the axis, and the result.
_quantized = WeakTensorKeyDictionary()


class Site:
    """Quantizes the operands of one operation of the module at `path`, as `rule` says.

    scales: calibrated scales, by operand, of the quantizers whose rule is static; histories: where
    the rule has delayed scales, those. draws: how often random bits were drawn.
    statistics: what a calibration pass measures here, while one runs. Copies of a site share no
    state that belongs to parameters.
    """

    def __init__(self, path: str, operation: str, rule: Rule) -> None:
        self.path, self.operation, self.rule = path, operation, rule
        self.scales: dict[str, Tensor] = {}
        self.statistics: Any = None
        self.weights = Weights()
        self.transform = SiteTransform(rule.transform, path) if rule.transform else None
        self.histories: dict[str, History] = {}
        self.draws = 0

    def quantizers(self) -> Iterator[tuple[str, Quantizer]]:
        """Those of the rule that this operation has operands for."""
        names = OPERANDS[self.operation]
        return ((name, q) for name, q in self.rule.quantizers() if name in names)

    @property
    def spelled(self) -> str:
        """Its operands and approximations, as a rule spells them."""
        units = self.rule.approximation
        words = [f"{name}={q.spell()}" for name, q in self.quantizers()]
        words += [f"{name}={how.spell()}" for name, how in units or () if how is not None]
        return " ".join(words)

    def operand(self, name: str, x: Tensor, axis: int = -1) -> Tensor:
        """`x` as the rule quantizes that operand, blocks along `axis`; straight-through."""
        if self.statistics is not None:
            self.statistics.see(name, x, axis)
        quantizer: Quantizer | None = getattr(self.rule, name)
        return x if quantizer is None else self.quantize(name, quantizer, x, axis)

    def activation(self, x: Tensor, axis: int) -> Tensor:
        """`operand` of that name; quantized once for all sites that read the very same tensor."""
        quantizer = self.rule.activation
        if self.statistics is not None or quantizer is None or not _repeats(quantizer, x):
            return self.operand("activation", x, axis)
        key = (x._version, quantizer, axis)
        kept = _quantized.get(x)
        if kept is not None and kept[0] == key:
            found: Tensor = kept[1]
            return found
        y = self.operand("activation", x, axis)
        _quantized[x] = key, y
        return y

    def quantize(self, name: str, quantizer: Quantizer, x: Tensor, axis: int = -1) -> Tensor:
        """`x` under any quantizer, with this site's scale and random bits for `name`;
        `x` itself while a calibration pass runs."""
        if self.statistics is not None:
            return x
        seed = self.seed_for(name, quantizer)
        return self.quantize_with(seed, name, quantizer, x, axis, torch.is_grad_enabled())

    def quantize_with(
        self,
        seed: int | None,
        name: str,
        quantizer: Quantizer,
        x: Tensor,
        axis: int,
        training: bool,
    ) -> Tensor:
        """`quantize` with a seed drawn before; `training`: a delayed scale's history grows."""
        if x.device.type == "meta":
            return x
        apply = partial(fake_quantize, axis=axis)
        found: Tensor = self._applied(apply, seed, name, quantizer, x, axis, training)
        return found

    def codes(self, name: str, quantizer: Quantizer, x: Tensor) -> QTensor:
        """The code points of what `quantize` gives; blocks along the last axis."""
        seed = self.seed_for(name, quantizer)
        return self.codes_with(seed, name, quantizer, x, torch.is_grad_enabled())

    def codes_with(
        self, seed: int | None, name: str, quantizer: Quantizer, x: Tensor, training: bool
    ) -> QTensor:
        """`codes` with a seed drawn before, as `quantize_with`."""
        found: QTensor = self._applied(quantize, seed, name, quantizer, x, -1, training)
        return found

    def _applied(
        self,
        apply: Callable[..., Any],
        seed: int | None,
        name: str,
        quantizer: Quantizer,
        x: Tensor,
        axis: int,
        training: bool,
    ) -> Any:
        """`apply` to `x` with the seed and this site's scale; an error names the operand."""
        scale = None
        if quantizer.rule == "static":
            scale = self._scale(name, quantizer, x, axis, training)
        try:
            return apply(x, quantizer, random=seed, scale=scale)
        except LowprecError as error:
            raise LowprecError(f"{self.path or 'the model'}: {name}: {error}") from None

    def _scale(
        self, name: str, quantizer: Quantizer, x: Tensor, axis: int, training: bool
    ) -> Tensor:
        """The scale of a static quantizer, of the shape that `x` asks for."""
        delayed = self.rule.delayed
        if delayed is not None:
            if name not in self.histories:
                self.histories[name] = History(delayed, x.device)
            return self.histories[name].scale_for(x, quantizer, training)
        kept = self.calibrated(name, quantizer)
        return given(kept.to(x.device), quantizer, tuple(x.shape), axis)

    def calibrated(self, name: str, quantizer: Quantizer) -> Tensor:
        """The kept scale of a static quantizer; LowprecError before calibration."""
        if name not in self.scales:
            raise LowprecError(
                f"{self.path or 'the model'}: {name}={quantizer.spell()} has no scale yet; "
                "run lowprec.calibrate(model, batches) first"
            )
        return self.scales[name]

    def weight(self, weight: Tensor, axis: int) -> Tensor:
        """The quantized weight, blocks along `axis`: kept as code points between calls while no
        gradient is asked of the parameter. Straight-through."""
        if self.statistics is not None:
            self.statistics.see("weight", weight, axis)
        quantizer = self.rule.weight
        if quantizer is None or self.statistics is not None:
            return weight
        if self.operation == "linear" and weight.dim() > 2 and quantizer.is_per_tensor:
            # Every expert's matrix has its own scale.
            parts = [
                self._quantized(f"weight.{i}", w, quantizer, axis) for i, w in enumerate(weight)
            ]
            return torch.stack(parts)
        return self._quantized("weight", weight, quantizer, axis)

    def _quantized(self, name: str, weight: Tensor, quantizer: Quantizer, axis: int) -> Tensor:
        if weight.device.type == "meta":
            return weight
        training = torch.is_grad_enabled() and weight.requires_grad
        delayed = quantizer.rule == "static" and self.rule.delayed is not None
        changing = training or delayed or quantizer.projection.bits is not None
        if changing or torch.compiler.is_compiling():
            return self.quantize(name, quantizer, weight, axis)
        return self.weights.get(weight, quantizer, axis, self.scales.get("weight"))

    def seed_for(self, name: str, quantizer: Quantizer) -> int | None:
        """A new seed at every call; the same ones in every run."""
        if quantizer.projection.bits is None:
            return None
        if torch.compiler.is_compiling():
            raise LowprecError(
                f"{self.path or 'the model'}: {name}={quantizer.spell()}: torch.compile would draw "
                "the same random bits at every call; run it without"
            )
        self.draws += 1
        text = f"{self.rule.seed} {self.path} {self.operation} {name} {self.draws}"
        return zlib.crc32(text.encode())


def _repeats(quantizer: Quantizer, x: Tensor) -> bool:
    """Whether the same tensor gives the same values at any site, and nothing else is asked."""
    if torch.compiler.is_compiling() or x.device.type == "meta" or x.is_inference():
        return False
    learns = torch.is_grad_enabled() and x.requires_grad
    return not learns and quantizer.rule != "static" and quantizer.projection.bits is None
