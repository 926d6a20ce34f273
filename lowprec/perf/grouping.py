"""Operations of a workload that differ in their layer's number only, each group with its rule."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lowprec.errors import LowprecError
from lowprec.perf.roofline import cache_bytes, nbytes, operands
from lowprec.spec import Attention, Format, Matmul, Recipe, Rule, Workload
from lowprec.spec.workload import Op


@dataclass(frozen=True)
class Group:
    """`count` operations like `op` under one rule. path: of the one operation, or with ``*`` for
    the numbers that they differ in. stored: how many distinct weights they have, since a module
    that runs twice is stored once; 0 for operations without one."""

    op: Op
    rule: Rule | None
    count: int
    path: str
    stored: int


_KEPT: dict[tuple[int, int], tuple[Any, Any, tuple[Group, ...]]] = {}


def grouped(workload: Workload, recipe: Recipe) -> tuple[Group, ...]:
    """The groups of `workload` under `recipe`, in the order of their first operations.

    Found once per pair of objects and kept as long as both live: both are immutable.
    LowprecError: a rule that matches no matmul.
    """
    key = (id(workload), id(recipe))
    if (kept := _KEPT.get(key)) and kept[0]() is workload and kept[1]() is recipe:
        return kept[2]
    found = _groups(workload, recipe)

    def forget(_: Any) -> None:
        _KEPT.pop(key, None)

    _KEPT[key] = (weakref.ref(workload, forget), weakref.ref(recipe, forget), found)
    return found


def _groups(workload: Workload, recipe: Recipe) -> tuple[Group, ...]:
    _check_used(workload, recipe)
    members: dict[tuple[Any, ...], list[Op]] = {}
    rules: dict[tuple[Any, ...], Rule | None] = {}
    seen: set[tuple[str, int, int]] = set()
    stored: dict[tuple[Any, ...], int] = {}
    for op in workload.ops:
        rule = rule_of(op, recipe, workload.phase)
        shape = tuple(value for name, value in op.__dict__.items() if name != "path")
        key = (_pattern(op.path), shape, id(rule))
        members.setdefault(key, []).append(op)
        rules[key] = rule
        if isinstance(op, Matmul) and op.weight and (weight := (op.path, op.n, op.k)) not in seen:
            seen.add(weight)
            stored[key] = stored.get(key, 0) + 1
    return tuple(
        Group(
            ops[0],
            rules[key],
            len(ops),
            ops[0].path if len(ops) == 1 else key[0],
            stored.get(key, 0),
        )
        for key, ops in members.items()
    )


def _check_used(workload: Workload, recipe: Recipe) -> None:
    paths = [op.path for op in workload.ops if isinstance(op, Matmul | Attention)]
    modules = {p for path in paths for p in (path, path.rpartition(".")[0])}
    for rule in recipe.unused(sorted(modules)):
        seen = f"such as {paths[0]!r}" if paths else "which has none"
        raise LowprecError(
            f"recipe {recipe.name!r}: rule {rule.match!r} matches no matmul of "
            f"{workload.model!r}, {seen}"
        )


def rule_of(op: Op, recipe: Recipe, phase: str) -> Rule | None:
    """What `recipe` says of a matmul or an attention; an expert's weight has a name behind its
    module's."""
    match op:
        case Attention():
            return recipe.rule_for(op.path, "attention", phase)
        case Matmul(weight=False):
            return recipe.rule_for(op.path, "matmul", phase)
        case Matmul(experts=1):
            return recipe.rule_for(op.path, "linear", phase)
        case Matmul():
            module, _, name = op.path.rpartition(".")
            return recipe.rule_for(module, "linear", phase, parameter=name)
    return None


def _pattern(path: str) -> str:
    """`path` with ``*`` for every part that is a number."""
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


def weight_bytes(groups: Iterable[Group], dtype: Format) -> int:
    """Stored weights of all matmuls."""
    total = 0
    for group in groups:
        if isinstance(op := group.op, Matmul) and group.stored:
            _, weight = operands(op, group.rule, dtype)
            total += group.stored * op.experts * nbytes(weight, (op.n, op.k))
    return total


def kv_bytes(groups: Iterable[Group], dtype: Format) -> int:
    """The KV cache that the attention reads, in the formats that the rules keep it in."""
    return sum(
        group.count * cache_bytes(group.op, group.rule, dtype)
        for group in groups
        if isinstance(group.op, Attention)
    )
