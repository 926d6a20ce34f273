"""What a wrapped model's sites remember from step to step, to save and to restore."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from lowprec.errors import LowprecError, did_you_mean
from lowprec.nn.emulation import Emulated, sites_of
from lowprec.nn.site import Site
from lowprec.nn.training.delayed import History


def training_state(model: nn.Module) -> dict[str, Tensor]:
    """How often each site drew random bits, and the histories of delayed scales, by name.

    With the model's and the optimizer's own states, all that a training run needs to go on as if it
    had never stopped. The tensors are copies.
    """
    found: dict[str, Tensor] = {}
    for name, site in _sites(model):
        if site.draws:
            found[f"{name}/draws"] = torch.tensor(site.draws)
        for operand, history in site.histories.items():
            found[f"{name}/{operand}/amaxes"] = history.amaxes.clone()
            found[f"{name}/{operand}/scale"] = history.scale.clone()
    return found


def load_training_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Restore what `training_state` gave, in a model that is wrapped with the same recipe.

    LowprecError: the model has no such site, or its history is of another length.
    """
    sites = dict(_sites(model))
    for site in sites.values():
        site.draws, site.histories = 0, {}
    for key, value in state.items():
        name, *operand, what = key.split("/")
        site = sites.get(name)
        if site is None:
            raise LowprecError(f"training state {key!r}: no such site{did_you_mean(name, sites)}")
        if what == "draws":
            site.draws = int(value)
        else:
            _restore(site, operand[0], what, value)


def _restore(site: Site, operand: str, what: str, value: Tensor) -> None:
    delayed = site.rule.delayed
    if delayed is None or what not in ("amaxes", "scale"):
        raise LowprecError(f"training state: {site.path} keeps no {what} of {operand}")
    history = site.histories.setdefault(operand, History(delayed, value.device))
    if getattr(history, what).shape != value.shape:
        raise LowprecError(
            f"training state: {site.path}: {what} of {operand} is {list(value.shape)}, expected "
            f"{list(getattr(history, what).shape)}"
        )
    setattr(history, what, value.clone())


def _sites(model: nn.Module) -> Iterator[tuple[str, Site]]:
    """Each site with a name of its own: path, operation, and its number within the module."""
    for path, module in model.named_modules():
        if isinstance(module, Emulated):
            for number, site in enumerate(sites_of(module)):
                yield f"{path}:{site.operation}:{number}", site
