"""torch's modules, each under a rule of its own: ``lp.nn.Linear(64, 32, weight="mxfp4/floor")``.

A class here takes the arguments of the torch class it is named after, and as keywords the fields
of a `Rule`: operands, ``datapath``, ``transform``, ``approximation`` and so on, as text, dicts or
spec objects. It is a subclass of the torch class, with the same state_dict; `unwrap` makes the
torch module of it again.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch import nn

from lowprec.errors import LowprecError
from lowprec.nn.emulation import adopt, emulated
from lowprec.nn.hf import Conv1D as _Conv1D
from lowprec.nn.operations.experts import Experts as _Experts
from lowprec.nn.wrap import check, sites_for
from lowprec.spec import Recipe, Rule, load_recipe

_FIELDS = frozenset(Rule.model_fields) - {"match", "operation", "layers", "keep"}

Module = TypeVar("Module", bound=nn.Module)


class _Standalone(type):
    """Of a class whose modules are those of `plain` under a rule about `operation`."""

    plain: type[nn.Module]
    operation: str | None

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        operands = {name: kwargs.pop(name) for name in tuple(kwargs) if name in _FIELDS}
        return cls._under(cls.plain(*args, **kwargs), operands)

    def from_float(cls, module: nn.Module, **operands: Any) -> Any:
        """A module with the parameters of `module`, themselves and not copies, under a rule.

        LowprecError for a module of another class, or a word that is no field of a rule.
        """
        if type(module) is not cls.plain:
            raise LowprecError(
                f"{cls.__name__}.from_float takes a {cls.plain.__name__}, not a "
                f"{type(module).__name__}; lowprec.wrap takes any module"
            )
        wrong = next((name for name in operands if name not in _FIELDS), None)
        if wrong is not None:
            raise LowprecError(
                f"{cls.__name__}.from_float: unknown keyword {wrong!r}; expected one of "
                + ", ".join(sorted(_FIELDS))
            )
        return cls._under(_sharing(module), operands)

    def _under(cls, module: Module, operands: dict[str, Any]) -> Module:
        recipe = _recipe(cls.__name__, cls.operation, operands)
        if operands:
            check(module, recipe, cls.__name__)
        for path, part in list(module.named_modules()):
            sites = sites_for(part, path, recipe)
            if sites or part is module:
                adopt(part, sites)
        module.__class__ = cls  # type: ignore[assignment]
        return module


def _recipe(name: str, operation: str | None, operands: dict[str, Any]) -> Recipe:
    rule: dict[str, Any] = {"match": "*", **operands}
    if not operands:
        rule["keep"] = True
    elif operation is not None:
        rule["operation"] = operation
    return load_recipe({"name": name, "rules": [rule]}, name)


def _sharing(module: Module) -> Module:
    """Another module of the same parameters and buffers."""
    twin: Module = module.__class__.__new__(module.__class__)
    parts = {
        name: copy.copy(value) if isinstance(value, dict | list | set) else value
        for name, value in vars(module).items()
    }
    parts["_modules"] = {name: child and _sharing(child) for name, child in module._modules.items()}
    vars(twin).update(parts)
    return twin


def _standalone(plain: type[nn.Module], operation: str | None) -> Any:
    doc = f"{plain.__module__}.{plain.__qualname__} under a rule, see `lowprec.nn.modules`."
    body = {"plain": plain, "operation": operation, "__module__": __name__, "__doc__": doc}
    return _Standalone(plain.__name__, (emulated(plain),), body)


Linear = _standalone(nn.Linear, "linear")
Conv1D = _standalone(_Conv1D, "linear")
Conv1d = _standalone(nn.Conv1d, "conv")
Conv2d = _standalone(nn.Conv2d, "conv")
Conv3d = _standalone(nn.Conv3d, "conv")
ConvTranspose1d = _standalone(nn.ConvTranspose1d, "conv")
ConvTranspose2d = _standalone(nn.ConvTranspose2d, "conv")
ConvTranspose3d = _standalone(nn.ConvTranspose3d, "conv")
Embedding = _standalone(nn.Embedding, "embedding")
EmbeddingBag = _standalone(nn.EmbeddingBag, "embedding")
MultiheadAttention = _standalone(nn.MultiheadAttention, None)
Experts = _standalone(_Experts, "linear")
LSTMCell = _standalone(nn.LSTMCell, "linear")
GRUCell = _standalone(nn.GRUCell, "linear")
RNNCell = _standalone(nn.RNNCell, "linear")
LSTM = _standalone(nn.LSTM, "linear")
GRU = _standalone(nn.GRU, "linear")
RNN = _standalone(nn.RNN, "linear")
LayerNorm = _standalone(nn.LayerNorm, "norm")
RMSNorm = _standalone(nn.RMSNorm, "norm")
GroupNorm = _standalone(nn.GroupNorm, "norm")
Softmax = _standalone(nn.Softmax, "softmax")
GELU = _standalone(nn.GELU, "elementwise")
SiLU = _standalone(nn.SiLU, "elementwise")

__all__ = [
    "GELU",
    "GRU",
    "LSTM",
    "RNN",
    "Conv1D",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Embedding",
    "EmbeddingBag",
    "Experts",
    "GRUCell",
    "GroupNorm",
    "LSTMCell",
    "LayerNorm",
    "Linear",
    "MultiheadAttention",
    "RMSNorm",
    "RNNCell",
    "SiLU",
    "Softmax",
]
