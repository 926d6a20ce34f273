"""Kernels as serving libraries run them: fewer than the modules that a model is written in.

Matmuls of one module that read the same activation are one matmul (vLLM's QKVParallelLinear and
MergedColumnParallelLinear, TensorRT-LLM's fused qkv and gate_up), which also quantizes it once. The
residual's addition is part of the norm that follows (vLLM's fused_add_rms_norm, FlashInfer's
fused_add_rmsnorm), and what one module does elementwise around its attention is one kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from lowprec.perf.grouping import Group
from lowprec.perf.roles import Role, role
from lowprec.spec import Matmul, Vector


def fused(groups: Sequence[Group]) -> tuple[Group, ...]:
    """`groups` with what runs as one kernel in one group, where the first of it was."""
    kept: dict[tuple[Any, ...], Group] = {}
    for i, group in enumerate(groups):
        key = _key(group) or (i,)
        kept[key] = _merge(kept[key], group) if key in kept else group
    return _additions_in_norms(list(kept.values()))


def _key(group: Group) -> tuple[Any, ...] | None:
    """What groups that are one kernel have in common."""
    module = group.path.rpartition(".")[0]
    match group.op:
        case Matmul(weight=True, experts=1) as op if module and role(op.path) in (
            Role.COLUMN,
            Role.COPIED,
        ):
            return ("matmul", module, op.m, op.k, id(group.rule), group.count)
        case Vector() as op if not _is_residual(group):
            return ("vector", group.path, group.count)
    return None


def _merge(a: Group, b: Group) -> Group:
    path = a.path
    match a.op, b.op:
        case Matmul() as first, Matmul() as second:
            op: Any = first.model_copy(update={"n": first.n + second.n})
            path = f"{a.path}+{b.path.rpartition('.')[2]}"
        case Vector() as one, Vector() as other:
            op = one.model_copy(
                update={
                    "name": f"{one.name} {other.name}",
                    "read": one.read + other.read,
                    "written": one.written + other.written,
                }
            )
        case _:
            raise TypeError(f"no kernel of {a.op!r} and {b.op!r}")
    return replace(a, op=op, path=path, stored=a.stored)


def _is_residual(group: Group) -> bool:
    """An addition of a layer itself, whose path ends in its number."""
    last = group.path.rpartition(".")[2]
    return isinstance(group.op, Vector) and last == "*" and group.op.name == "add"


def _is_norm(group: Group) -> bool:
    last = group.path.rpartition(".")[2]
    return (
        isinstance(group.op, Vector)
        and "rsqrt" in group.op.name
        and ("_norm" not in last or last.endswith("layernorm"))
    )


def _additions_in_norms(groups: list[Group]) -> tuple[Group, ...]:
    """Adds of the residual inside the layers' norms: those read one more tensor and write the sum;
    the add's other read is the norm's own. Left alone unless there is a norm for every add."""
    adds = [g for g in groups if _is_residual(g)]
    norms = [g for g in groups if _is_norm(g)]
    if not adds or _count(adds) > _count(norms):
        return tuple(groups)
    width = adds[0].op
    assert isinstance(width, Vector)
    return tuple(
        _with_addition(group, width) if _is_norm(group) else group
        for group in groups
        if not _is_residual(group)
    )


def _with_addition(group: Group, add: Vector) -> Group:
    op = group.op
    assert isinstance(op, Vector)
    more = {"read": op.read + add.written, "written": op.written + add.written}
    return replace(group, op=op.model_copy(update={"name": f"add {op.name}"} | more))


def _count(groups: Iterable[Group]) -> int:
    return sum(group.count for group in groups)
