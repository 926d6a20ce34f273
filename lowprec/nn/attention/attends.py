"""Which modules compute attention in their own code, found by reading it."""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn

_WHOLE = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward"})
_PRODUCTS = frozenset({"matmul", "bmm", "baddbmm", "einsum", "@"})
_BASES = (nn.Module, object)
_CACHES = ("cache", "layer_past", "past_key_values", "past_key_value")


@functools.cache
def attends(cls: type[nn.Module]) -> bool:
    """Whether `forward` of the class, with the methods and the functions of its file that it calls,
    multiplies matrices and applies a softmax, or calls torch's own attention."""
    names = _names(cls)
    return bool(names & _WHOLE) or ("softmax" in names and bool(names & _PRODUCTS))


@functools.cache
def cache_parameter(cls: type[nn.Module]) -> tuple[str, tuple[str, ...]] | None:
    """The parameter of `forward` by which an attention gets the cache that it updates, and the
    names of all after self; None where it has none."""
    if not attends(cls) or "update" not in _names(cls):
        return None
    names = tuple(inspect.signature(cls.forward).parameters)[1:]
    return next(((name, names) for name in _CACHES if name in names), None)


@functools.cache
def _names(cls: type[nn.Module]) -> frozenset[str]:
    """What the code that `forward` reaches calls or reads, by name; ``@`` for that operator."""
    todo: list[Any] = [cls.forward]
    seen: set[FunctionType] = set()
    names: set[str] = set()
    while todo:
        function = inspect.unwrap(todo.pop())
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        own = set().union(*map(_words, _codes(function.__code__)))
        names |= own
        for name in own:
            # Those of every class, for super().
            todo += [
                vars(base)[name]
                for base in cls.__mro__
                if name in vars(base) and base not in _BASES
            ]
            known = function.__globals__.get(name)
            if getattr(known, "__module__", None) == function.__module__:
                todo.append(known)
    return frozenset(names)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _words(code: CodeType) -> set[str]:
    multiplies = any(i.opname == "BINARY_OP" and i.argrepr[:1] == "@" for i in dis.Bytecode(code))
    return {*code.co_names, *(["@"] if multiplies else [])}
