"""Put a model under a recipe and take it out again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from lowprec.errors import LowprecError, did_you_mean
from lowprec.nn.calibration.calibrate import Calibration, calibrate
from lowprec.nn.emulation import Emulated, Sites, adopt, release
from lowprec.nn.stored.modules import StoredExperts
from lowprec.spec import OPERANDS, Recipe, Rule, load_recipe

_RECIPE = "_lowprec_recipe"
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.Identity, nn.ParameterList)
_WEIGHTED = frozenset({"linear", "conv", "embedding"})
_FUSED = (nn.TransformerEncoder, nn.TransformerEncoderLayer)
_CONVOLUTIONS = nn.modules.conv._ConvNd

Model = TypeVar("Model", bound=nn.Module)


def wrap(
    model: Model,
    recipe: Recipe | Mapping[str, Any] | str | Path,
    strict: bool = False,
    calibration: Calibration | str | Path | None = None,
) -> Model:
    """Run, in place, the operations of the model's modules as the rules of a recipe say.

    Returns the same model; `unwrap` undoes it and `coverage` lists what is emulated and what not.
    A module that a rule speaks of becomes one of a subclass of its class: parameters, buffers,
    hooks, the keys of state_dict and its repr's fields stay. Untouched weights are shared; of a
    quantized one the code points are kept beside it. A weight that other modules share is quantized
    for the module with the rule only.
    strict: the first pass is audited, and the first matmul in it that no rule keeps or emulates is
    a LowprecError that names it.
    calibration: what `calibrate` found for this model and recipe, or its file.
    LowprecError: a model that is wrapped already; a rule that matches no module which could perform
    its operation; a module whose `forward` something other than accelerate has replaced.
    """
    if not isinstance(model, nn.Module):
        raise LowprecError(f"the model is a {type(model).__name__}; expected a torch.nn.Module")
    recipe = load_recipe(recipe)
    if recipe_of(model) is not None or any(isinstance(m, Emulated) for m in model.modules()):
        raise LowprecError("the model is wrapped already; unwrap it first")
    check(model, recipe)
    todo = _emulated(
        (module, sites_for(module, path, recipe, strict and module is model))
        for path, module in model.named_modules()
    )
    for module, sites in todo:
        if "forward" in vars(module) and "_old_forward" not in vars(module):
            raise LowprecError(
                f"{sites.path}: something has replaced its forward, which would bypass the recipe"
            )
    for module, sites in todo:
        adopt(module, sites)
    setattr(model, _RECIPE, recipe)
    if calibration is not None:
        try:
            calibrate(model, calibration)
        except LowprecError:
            unwrap(model)
            raise
    return model


def unwrap(model: Model) -> Model:
    """Undo `wrap`, in place: the original classes and weights, bit for bit and the same objects.

    A model that is not wrapped stays as it is.
    """
    for module in model.modules():
        if isinstance(module, Emulated):
            release(module)
    if recipe_of(model) is not None:
        delattr(model, _RECIPE)
    return model


def recipe_of(model: nn.Module) -> Recipe | None:
    """The recipe that `model` is wrapped with."""
    return getattr(model, _RECIPE, None)


def sites_for(module: nn.Module, path: str, recipe: Recipe, strict: bool = False) -> Sites:
    """What the rules make of a module at `path`."""
    names = [n for n, p in module.named_parameters(recurse=False) if p.dim() > 1 and n != "weight"]
    return Sites(type(module), possible(module), names, path, recipe, strict)


def _emulated(modules: Iterable[tuple[nn.Module, Sites]]) -> list[tuple[nn.Module, Sites]]:
    """Those that become emulated: with a site; kept ones below a site for an operation that they
    perform too, since what a plain module calls counts as its caller's; and modules of torch with
    one fused call for all that is below."""
    found: list[tuple[nn.Module, Sites]] = []
    everything = list(modules)
    operations = {sites.path: {site.operation for site in sites} for _, sites in everything}
    for module, sites in everything:
        parts = sites.path.split(".") if sites.path else []
        above = {op for n in range(len(parts)) for op in operations[".".join(parts[:n])]}
        below = isinstance(module, _FUSED) and any(
            path.startswith(f"{sites.path}.".lstrip("."))
            for path, some in operations.items()
            if some
        )
        if sites or sites.strict or below or above & possible(module):
            found.append((module, sites))
    return found


def possible(module: nn.Module) -> frozenset[str]:
    """The operations that a module of its class, without its children, may perform."""
    if isinstance(module, _CONTAINERS) and type(module).forward in (
        nn.Module.forward,
        nn.Sequential.forward,
        nn.Identity.forward,
    ):
        return frozenset()
    if isinstance(module, nn.Embedding):
        return frozenset({"embedding"})
    if isinstance(module, _CONVOLUTIONS):
        return frozenset({"conv"})
    if isinstance(module, nn.Linear):
        return frozenset({"linear"})
    weighted = any(p.dim() > 1 for p in module.parameters(recurse=False))
    weighted = weighted or any(isinstance(m, StoredExperts) for m in module.children())
    return frozenset(OPERANDS) if weighted else frozenset(OPERANDS) - _WEIGHTED


def check(model: nn.Module, recipe: Recipe, where: str = "") -> None:
    """LowprecError for a rule that matches no module which could perform what it speaks of."""
    able = {path: possible(module) for path, module in model.named_modules()}
    place = where or f"recipe {recipe.name!r}"
    for rule in recipe.rules:
        spoken = {operation for operation in OPERANDS if rule.speaks_of(operation)}
        paths = [path for path, operations in able.items() if operations & spoken]
        if "linear" in spoken:  # an expert's or a recurrent layer's weights have names of their own
            weights = ((path, p) for path, p in model.named_parameters() if p.dim() > 1)
            paths += [path for path, _ in weights if path.rpartition(".")[2] != "weight"]
        if not any(map(rule.matches, paths)):
            raise LowprecError(f"{place}: {_unmatched(rule, spoken, paths)}")


def _unmatched(rule: Rule, spoken: set[str], paths: list[str]) -> str:
    what = "" if rule.keep else f" for {' or '.join(sorted(spoken))}"
    text = f"rule {rule.match!r} matches no module{what}"
    if not paths:
        return f"{text}; the model has none"
    known = [path for path in paths if path] or paths
    near = did_you_mean(rule.match, {*known, *(f"*.{p.rpartition('.')[2]}" for p in known)})
    return text + (near or f", such as {known[0]!r}")
