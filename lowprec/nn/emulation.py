"""How the operations of a wrapped module are found: by watching the functions that it calls.

A module under a recipe keeps its class's own `forward`; while that runs, every torch function it
calls passes through an `Emulator`, and those of `HANDLERS` multiply (or add, or normalise) as the
module's rules say. So a Linear, an attention written with SDPA or with matmuls, and experts of any
implementation need no wrapper each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from lowprec.nn.attention.attends import attends, cache_parameter
from lowprec.nn.attention.hf_cache import with_codes
from lowprec.nn.attention.pairing import SOFTMAX, Pairing
from lowprec.nn.audit import Audit
from lowprec.nn.operations.whole import Whole, is_vector, run_whole, whole
from lowprec.nn.site import Site
from lowprec.spec import Recipe, Rule

# A torch function: what computes it, given the emulator and the call's arguments. It may answer
# NotImplemented: then the function runs as it is.
HANDLERS: dict[Any, Callable[..., Any]] = {}
_ATTRIBUTE = "_lowprec"


def handles(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the handler of torch functions."""

    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        HANDLERS.update(dict.fromkeys(functions, handler))
        return handler

    return register


class Sites:
    """The sites of one module, by operation, weight and phase; `original` is its own class.

    names: its parameters other than ``weight`` that it may multiply by, such as an expert's.
    strict: the next pass that begins with this module is audited, and refused if it has holes.
    """

    def __init__(
        self,
        original: type[nn.Module],
        operations: Iterable[str],
        names: Iterable[str],
        path: str,
        recipe: Recipe,
        strict: bool = False,
    ) -> None:
        self.original, self.path, self.recipe, self.strict = original, path, recipe, strict
        self.attends, self.cache = attends(original), cache_parameter(original)
        self.whole = whole(original)
        self._sites: dict[tuple[str, str, str | None], Site] = {}
        for operation in operations:
            for parameter in ("weight", *(names if operation == "linear" else ())):
                for phase in (None, "prefill", "decode"):
                    rule = recipe.rule_for(path, operation, phase or "prefill", parameter)
                    if rule is not None and not rule.keep:
                        found = self._shared(operation, parameter, rule)
                        self._sites[operation, parameter, phase] = found

    def _shared(self, operation: str, parameter: str, rule: Rule) -> Site:
        """One site for all phases under the same rule."""
        for (its, name, _), site in self._sites.items():
            if (its, name) == (operation, parameter) and site.rule is rule:
                return site
        path = self.path if parameter == "weight" else f"{self.path}.{parameter}".lstrip(".")
        return Site(path, operation, rule)

    def get(
        self, operation: str, phase: str | None = None, parameter: str = "weight"
    ) -> Site | None:
        return self._sites.get((operation, parameter, phase))

    @contextmanager
    def watched(self, module: nn.Module) -> Iterator[None]:
        """Where strict: an audit around the pass, until one has gone through."""
        if not self.strict or torch.compiler.is_compiling():
            yield
            return
        with Audit(module, self.recipe, strict=True).watching():
            yield
        self.strict = False

    def __iter__(self) -> Iterator[Site]:
        return iter(dict.fromkeys(self._sites.values()))

    def named(self) -> Iterator[tuple[str, str, Site]]:
        """Every site with its parameter's name and a name of its own, such as
        ``model.layers.0.mlp.up_proj linear``; one of a phase alone ends in ``:decode``."""
        for site in self:
            operation, parameter, phase = next(k for k, v in self._sites.items() if v is site)
            yield parameter, f"{site.path} {operation}{':' + phase if phase else ''}", site

    def __bool__(self) -> bool:
        return bool(self._sites)


class Emulator(TorchFunctionMode):
    """Active while a wrapped module runs; `module` is the innermost one that does."""

    def __init__(self, module: nn.Module, phase: str | None) -> None:
        super().__init__()
        self.module, self.phase = module, phase
        self.pairing: Pairing | None = None
        self.within: Whole | None = None
        modes = [] if torch.compiler.is_compiling() else _get_current_dispatch_mode_stack()
        audits = [m for m in modes if isinstance(m, Audit)]
        self.audit = audits[-1] if audits else None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self.pairing is not None and SOFTMAX.get(func):
            self.pairing.softmaxed(*args, **(kwargs or {}))
        handler = HANDLERS.get(func)
        if handler is not None:
            out = handler(self, *args, **(kwargs or {}))
            if out is not NotImplemented:
                return out
        return func(*args, **(kwargs or {}))

    def site(self, operation: str, weight: Tensor | None = None) -> Site | None:
        """The running module's site for `operation`, by that weight; None where it is kept."""
        owner = None if weight is None else self.parameter(weight)
        if owner is not None:
            # A module may multiply by a weight of its child's, as torch's attention does.
            for module in (self.module, *self.module.children()):
                for name, parameter in module._parameters.items():
                    if parameter is owner and isinstance(module, Emulated):
                        return sites_of(module).get(operation, self.phase, name)
                    if parameter is owner:
                        return None
        if self.within is not None and self.within.module is self.module and is_vector(operation):
            return None
        return sites_of(self.module).get(operation, self.phase)

    def run(self, own: Any, module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> Any:
        """The forward `own` of `module`, which is the running one meanwhile."""
        outer, sites = (self.module, self.pairing), sites_of(module)
        self.module = module
        if sites.attends:
            self.pairing = Pairing(module)
        try:
            if sites.cache is not None and (site := self.site("attention")) is not None:
                args, kwargs = with_codes(site, module, sites.cache, args, kwargs)
            one = sites.whole is not None and not module._modules
            if one and (site := self.site(sites.whole)) is not None:
                return run_whole(self, site, own, module, args, kwargs)
            out = own(module, *args, **kwargs)
            if sites.attends and self.pairing is not None:
                self.pairing.finish()
            return out
        finally:
            self.module, self.pairing = outer

    @contextmanager
    def emulating(self, site: Site, flops: int | None = None) -> Iterator[None]:
        """What runs inside is the work of `site`: for the audit. flops: of all that runs, where no
        operation of torch's shows them."""
        if self.audit is None:
            yield
            return
        with self.audit.credited(site, flops):
            yield

    def parameter(self, tensor: Tensor) -> nn.Parameter | None:
        """The running module's parameter that `tensor` is or is a view of."""
        if isinstance(tensor, nn.Parameter):
            return tensor
        base = tensor._base
        return base if isinstance(base, nn.Parameter) else None


class Emulated(nn.Module):
    """What `wrap` makes of a module: the same object, of a subclass of its class."""

    def extra_repr(self) -> str:
        words: list[str] = []
        for site in sites_of(self):
            if site.spelled:
                vector = f"{site.operation} " if is_vector(site.operation) else ""
                words.append(vector + site.spelled.replace(" ", ", "))
        return ", ".join([super().extra_repr(), *dict.fromkeys(words)]).lstrip(", ")


@functools.cache
def emulated(cls: type[nn.Module]) -> type[Emulated]:
    """The subclass of `cls` whose forward runs under the rules."""
    own = cls.forward

    @functools.wraps(own)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        mode = _get_current_function_mode()
        if not isinstance(mode, Emulator):
            with sites_of(self).watched(self):
                mode = Emulator(self, _phase(args, kwargs))
                with mode:  # torch.compile gives no name to `as mode`
                    return mode.run(own, self, args, kwargs)
        return mode.run(own, self, args, kwargs)

    body = {"forward": forward, "__module__": cls.__module__, "__doc__": cls.__doc__}
    return type(cls.__name__, (Emulated, cls), body)


def adopt(module: nn.Module, sites: Sites) -> None:
    """Turn `module` into an `Emulated` one."""
    vars(module)[_ATTRIBUTE] = sites
    module.__class__ = emulated(sites.original)
    _rebind(module)


def release(module: nn.Module) -> None:
    """Undo `adopt`: the module is again of its own class."""
    module.__class__ = sites_of(module).original
    del vars(module)[_ATTRIBUTE]
    _rebind(module)


def _rebind(module: nn.Module) -> None:
    # accelerate's hooks replace `forward` and call what they found before as `_old_forward`.
    if "_old_forward" in vars(module):
        vars(module)["_old_forward"] = MethodType(type(module).forward, module)


def sites_of(module: nn.Module) -> Sites:
    found: Sites = vars(module)[_ATTRIBUTE]
    return found


def _phase(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """decode where one token each follows cached ones, else prefill."""
    cache = kwargs.get("past_key_values", kwargs.get("cache"))
    tokens = next((t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)), None)
    one = tokens is not None and tokens.dim() > 1 and tokens.shape[1] == 1
    return "decode" if one and _is_filled(cache) else "prefill"


def _is_filled(cache: Any) -> bool:
    """Whether a transformers cache holds positions; one of states alone does not count them."""
    if not hasattr(cache, "get_seq_length"):
        return False
    try:
        return bool(cache.get_seq_length() > 0)
    except ValueError:
        return True
