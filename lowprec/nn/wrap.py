"""Put a model under a recipe and take it out again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from lowprec.errors import LowprecError, did_you_mean
from lowprec.nn.hf import Conv1D, QuantizedConv1D
from lowprec.nn.linear import Quantized, QuantizedLinear
from lowprec.spec import Recipe, Rule, load_recipe

# A subclass may compute something else, so only these very classes are replaced.
REPLACEMENTS: dict[type[nn.Module], type[Quantized]] = {
    nn.Linear: QuantizedLinear,
    Conv1D: QuantizedConv1D,
}
_RECIPE = "_lowprec_recipe"

Model = TypeVar("Model", bound=nn.Module)


def wrap(model: Model, recipe: Recipe | Mapping[str, Any] | str | Path) -> Model:
    """Quantize, in place, the operands of every nn.Linear and transformers Conv1D with a rule.

    Returns the same model; `unwrap` undoes it and `coverage` lists what is emulated and what not.
    Weights are quantized now, activations at every call; blocks run along K. Modules without a
    rule, or of any other class, stay as they are. A weight that other modules share is quantized
    for the module with the rule only.
    LowprecError: a model that is wrapped already; a rule that matches none of these modules, or
    rounds stochastically or to static scales; a module whose `forward` something else has replaced.
    """
    recipe = load_recipe(recipe)
    if recipe_of(model) is not None or any(isinstance(m, Quantized) for m in model.modules()):
        raise LowprecError("the model is wrapped already; unwrap it first")
    linears = {path: m for path, m in model.named_modules() if type(m) in REPLACEMENTS}
    for rule in recipe.unused(list(linears)):
        raise LowprecError(_unmatched(rule, recipe, linears))
    for rule in recipe.rules:
        if (lacks := _lacking(rule)) is not None:
            raise LowprecError(f"recipe {recipe.name!r}: rule {rule.match!r} {lacks}")
    todo = [(path, linears[path], recipe.rule_for(path)) for path in linears]
    todo = [(path, module, rule) for path, module, rule in todo if rule and not rule.keep]
    for path, module, _ in todo:
        if "forward" in vars(module):
            raise LowprecError(
                f"{path}: its forward was replaced (by accelerate's hooks, for example), which "
                "would bypass the quantizers"
            )
    try:
        for _, module, rule in todo:
            REPLACEMENTS[type(module)].adopt(module, rule)
    except BaseException:
        unwrap(model)
        raise
    setattr(model, _RECIPE, recipe)
    return model


def unwrap(model: Model) -> Model:
    """Undo `wrap`, in place: the original classes and weights, bit for bit and the same objects.

    A model that is not wrapped stays as it is.
    """
    for module in model.modules():
        if isinstance(module, Quantized):
            module.release()
    if recipe_of(model) is not None:
        delattr(model, _RECIPE)
    return model


def recipe_of(model: nn.Module) -> Recipe | None:
    """The recipe that `model` is wrapped with."""
    return getattr(model, _RECIPE, None)


def _unmatched(rule: Rule, recipe: Recipe, paths: Mapping[str, nn.Module]) -> str:
    text = f"recipe {recipe.name!r}: rule {rule.match!r} matches no nn.Linear or Conv1D"
    if not paths:
        return f"{text}; the model has none"
    known = [*paths, *(f"*.{path.rpartition('.')[2]}" for path in paths)]
    return text + (did_you_mean(rule.match, set(known)) or f", such as {known[0]!r}")


def _lacking(rule: Rule) -> str | None:
    """What quantizers of the rule need that modules cannot give them yet."""
    quantizers = [q for q in (rule.weight, rule.activation) if q]
    if any(q.projection.bits is not None for q in quantizers):
        return "rounds stochastically, which modules cannot do yet"
    if any(q.rule == "static" for q in quantizers):
        return "has static scales, which modules do not calibrate yet; 'fixed=0.5' is one number"
    return None
