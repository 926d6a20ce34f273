"""Signal-to-quantization-noise ratio of each operand, in the place where it occurs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from lowprec.kernels import fake_quantize
from lowprec.nn.wrap import REPLACEMENTS
from lowprec.spec import Quantizer, Recipe


def sqnr_db(x: torch.Tensor, quantizer: Quantizer, axis: int = -1) -> float:
    """``10 log10(sum x^2 / sum (x - Q(x))^2)`` in dB, the sums in float64.

    Inf where Q leaves `x` as it is; NaN where `x` or Q(x) holds NaN or Inf.
    """
    quantized = fake_quantize(x, quantizer, axis=axis)
    noise = (x.double() - quantized.double()).square().sum().item()
    signal = x.double().square().sum().item()
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


@torch.inference_mode()
def layer_sqnr(model: Any, recipe: Recipe, ids: torch.Tensor) -> list[dict[str, Any]]:
    """Per module that `recipe` quantizes, in the model's order: path, weight_db, activation_db.

    `model` is not wrapped: the activations are what the unquantized model has at each module for
    the tokens `ids` [n, L], so that a ratio speaks of one layer and not of those before it. None
    for an operand that the recipe leaves alone, or a module that the tokens did not reach.
    """
    found: dict[str, dict[str, Any]] = {}
    hooks = []
    for path, module in model.named_modules():
        rule = recipe.rule_for(path) if type(module) in REPLACEMENTS else None
        if rule is None or rule.keep:
            continue
        entry = found[path] = {"path": path, "weight_db": None, "activation_db": None}
        if rule.weight is not None:
            axis = REPLACEMENTS[type(module)].weight_axis
            entry["weight_db"] = sqnr_db(module.weight.detach(), rule.weight, axis)
        if rule.activation is not None:
            hooks.append(module.register_forward_pre_hook(_measure(entry, rule.activation)))
    try:
        if hooks:
            model(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return list(found.values())


def _measure(entry: dict[str, Any], quantizer: Quantizer) -> Any:
    def hook(_module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        entry["activation_db"] = sqnr_db(inputs[0], quantizer)

    return hook
