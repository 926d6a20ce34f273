"""Operations of a workload that differ in their layer's number only, each group with its rule."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lowprec.errors import LowprecError
from lowprec.perf.roofline import nbytes, operands, stored_bytes
from lowprec.spec import Attention, Embedding, Format, Matmul, Recipe, Rule, Workload
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


# Answers that are kept, with the recipe that they are of, which its id alone would not tell.
_MOST = 1 << 14
_RULES: dict[tuple[Any, ...], tuple[Recipe, tuple[tuple[Rule | None, tuple[str, ...]], ...]]] = {}
_USED: dict[tuple[Any, ...], Recipe] = {}
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
    seen: set[tuple[str, int, int]] = set()
    merged: dict[tuple[Any, ...], Group] = {}
    for equal in workload.groups:
        op = equal.op
        for rule, paths in _by_rule(op, equal.paths, recipe, workload.phase):
            stored = 0
            if isinstance(op, Matmul) and op.weight:
                fresh = {(op.tied_to or path, op.n, op.k) for path in paths} - seen
                stored, seen = len(fresh), seen | fresh
            pattern = _pattern(paths[0]) if len(paths) > 1 else paths[0]
            key = (_pattern(paths[0]), _shape(op), id(rule))
            if key in merged:
                old = merged[key]
                merged[key] = Group(
                    old.op, rule, old.count + len(paths), key[0], old.stored + stored
                )
            else:
                first = op if op.path == paths[0] else op.model_copy(update={"path": paths[0]})
                merged[key] = Group(first, rule, len(paths), pattern, stored)
    return tuple(merged.values())


def _shape(op: Op) -> tuple[Any, ...]:
    return tuple(value for name, value in op.__dict__.items() if name != "path")


def _by_rule(
    op: Op, paths: tuple[str, ...], recipe: Recipe, phase: str
) -> tuple[tuple[Rule | None, tuple[str, ...]], ...]:
    """`paths` by the rule that decides about `op` there. The same model at other sizes asks the
    same, so answers are kept."""
    experts = isinstance(op, Matmul) and op.experts > 1
    weight = isinstance(op, Matmul) and op.weight
    key = (id(recipe), phase, op.kind, experts, weight, paths)
    if (kept := _RULES.get(key)) and kept[0] is recipe:
        return kept[1]
    found: dict[int, tuple[Rule | None, list[str]]] = {}
    for path in paths:
        rule = rule_of(op, path, recipe, phase)
        found.setdefault(id(rule), (rule, []))[1].append(path)
    result = tuple((rule, tuple(members)) for rule, members in found.values())
    if len(_RULES) > _MOST:
        _RULES.clear()
    _RULES[key] = recipe, result
    return result


def _check_used(workload: Workload, recipe: Recipe) -> None:
    matmuls = [g for g in workload.groups if isinstance(g.op, Matmul | Attention)]
    key = (id(recipe), tuple((g.paths[0], g.paths[-1], g.count) for g in matmuls))
    if _USED.get(key) is recipe:
        return
    paths = [path for group in matmuls for path in group.paths]
    for rule in recipe.rules:
        if any(rule.matches(p) or rule.matches(p.rpartition(".")[0]) for p in paths):
            continue
        seen = f"such as {paths[0]!r}" if paths else "which has none"
        raise LowprecError(
            f"recipe {recipe.name!r}: rule {rule.match!r} matches no matmul of "
            f"{workload.model!r}, {seen}"
        )
    if len(_USED) > _MOST:
        _USED.clear()
    _USED[key] = recipe


def rule_of(op: Op, path: str, recipe: Recipe, phase: str) -> Rule | None:
    """What `recipe` says of a matmul or an attention at `path`; an expert's weight has a name
    behind its module's."""
    match op:
        case Attention():
            return recipe.rule_for(path, "attention", phase)
        case Matmul(weight=False):
            return recipe.rule_for(path, "matmul", phase)
        case Matmul(experts=1):
            return recipe.rule_for(path, "linear", phase)
        case Matmul():
            module, _, name = path.rpartition(".")
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


def table_bytes(groups: Iterable[Group], dtype: Format) -> int:
    """Embedding tables whose size is known and which no matmul is tied to."""
    groups = tuple(groups)
    tied = {group.op.tied_to for group in groups if isinstance(group.op, Matmul)}
    return sum(
        nbytes(dtype, (group.op.table, group.op.width))
        for group in groups
        if isinstance(group.op, Embedding) and not any(t and group.op.path in t for t in tied)
    )


def kv_bytes(groups: Iterable[Group], dtype: Format) -> int:
    """The KV cache that the attention reads, in the formats that the rules keep it in."""
    return sum(
        group.count * stored_bytes(group.op, group.rule, dtype)
        for group in groups
        if isinstance(group.op, Attention)
    )
