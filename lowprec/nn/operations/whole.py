"""Modules that are one vector operation as a whole, though their forward is written in several."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from lowprec.errors import LowprecError
from lowprec.nn.site import Site

if TYPE_CHECKING:
    from lowprec.nn.emulation import Emulator

_NORM = re.compile(r"Norm(?![a-z])")
_VECTOR = frozenset({"norm", "softmax", "elementwise", "add"})


@functools.cache
def whole(cls: type[nn.Module]) -> str | None:
    """norm for a class named ...Norm..., elementwise for one named ...Activation, as transformers
    names them, whose modules without children are one operation; None for others and for torch's
    own, which call one function."""
    if cls.__module__.startswith("torch."):
        return None
    if _NORM.search(cls.__name__):
        return "norm"
    return "elementwise" if cls.__name__.endswith("Activation") else None


def is_vector(operation: str) -> bool:
    """Whether `operation` is no product of matrices."""
    return operation in _VECTOR


@dataclass
class Whole:
    """A module that runs as one operation, and whether a part of it was approximated."""

    module: nn.Module
    site: Site
    approximated: bool = False


def run_whole(
    mode: Emulator,
    site: Site,
    own: Callable[..., Any],
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """The forward `own`, its float tensors quantized on the way in and out."""
    outer, mode.within = mode.within, Whole(module, site)
    try:
        with mode.emulating(site):
            args = tuple(_quantized(site, "input", x) for x in args)
            kwargs = {name: _quantized(site, "input", x) for name, x in kwargs.items()}
            y = own(module, *args, **kwargs)
            if site.rule.approximation is not None and not mode.within.approximated:
                raise LowprecError(
                    f"{site.path or 'the model'}: {type(module).__name__} calls no function of "
                    f"{site.operation} that can be approximated"
                )
            if isinstance(y, tuple):
                return tuple(_quantized(site, "output", part) for part in y)
            return _quantized(site, "output", y)
    finally:
        mode.within = outer


def _quantized(site: Site, name: str, x: Any) -> Any:
    return site.operand(name, x) if isinstance(x, Tensor) and x.is_floating_point() else x
