"""Signal-to-quantization-noise ratio of each operand, in the place where it occurs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from lowprec.kernels import fake_quantize
from lowprec.nn.emulation import Emulated, sites_of
from lowprec.nn.wrap import possible
from lowprec.spec import Quantizer, Recipe


def sqnr_db(x: torch.Tensor, quantized: torch.Tensor) -> float:
    """``10 log10(sum x^2 / sum (x - quantized)^2)`` in dB, the sums in float64.

    Inf where both are equal, -Inf where only `x` is all zero, NaN where one holds NaN or Inf.
    """
    noise = (x.double() - quantized.double()).square().sum().item()
    signal = x.double().square().sum().item()
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def weight_sqnr(model: nn.Module) -> dict[str, float]:
    """By path, the dB of each linear layer's weight that the wrapped `model` has quantized."""
    found: dict[str, float] = {}
    for path, module in model.named_modules():
        site = sites_of(module).get("linear") if isinstance(module, Emulated) else None
        weight = module._parameters.get("weight")
        if site is not None and site.rule.weight is not None and weight is not None:
            with torch.no_grad():
                found[path] = sqnr_db(weight, site.weight(weight, -1))
    return found


@torch.inference_mode()
def activation_sqnr(model: Any, recipe: Recipe, ids: torch.Tensor) -> dict[str, float]:
    """By path, the dB of each linear layer's input that `recipe` quantizes, for `ids` [n, L].

    `model` is not wrapped: the inputs are those of the unquantized model, so that a ratio speaks
    of one layer and not of those before it. A module that is called several times has its last
    call's; one that the tokens do not reach has none.
    """
    found: dict[str, float] = {}
    hooks = []
    for path, module in model.named_modules():
        rule = recipe.rule_for(path) if "linear" in possible(module) else None
        if rule is None or rule.activation is None or rule.activation.rule == "static":
            continue
        if "weight" in module._parameters:
            measure = _hook(rule.activation, partial(found.__setitem__, path))
            hooks.append(module.register_forward_pre_hook(measure))
    try:
        if hooks:
            model(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _hook(quantizer: Quantizer, keep: Callable[[float], None]) -> Any:
    def measure(_module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        keep(sqnr_db(inputs[0], fake_quantize(inputs[0], quantizer)))

    return measure
