"""Which way tensor parallelism splits a module's matmul, by the name that libraries give it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from lowprec.perf.grouping import Group
from lowprec.spec import Attention, Matmul


class Role(Enum):
    """column: every chip has some of the outputs. row: some of the inputs, and the results are
    summed. head: the columns of the vocabulary, gathered. copied: every chip has all of it."""

    COLUMN = "column"
    ROW = "row"
    HEAD = "head"
    COPIED = "copied"


# Last parts of paths in Transformers' models. A matmul that is not named here is split by columns.
_NAMES: dict[Role, tuple[str, ...]] = {
    Role.ROW: (
        "o_proj", "out_proj", "down_proj", "c_proj", "wo", "w2", "fc2", "dense",
        "dense_4h_to_h", "o", "down",
    ),
    Role.HEAD: ("lm_head", "embed_out", "head", "output"),
    # Routers and the narrow projections into MLA's latent vectors, which all heads share.
    Role.COPIED: (
        "gate", "router", "shared_expert_gate", "q_a_proj", "kv_a_proj_with_mqa",
        "fused_qkv_a_proj", "wk", "weights_proj",
    ),
}  # fmt: skip
_ROLES = {name: role for role, names in _NAMES.items() for name in names}
_KEYS_VALUES = frozenset(("k_proj", "v_proj"))


def role(path: str) -> Role:
    """The role of the matmul whose module is at `path`; an expert's ends in its parameter."""
    return _ROLES.get(path.rpartition(".")[2], Role.COLUMN)


def kv_split(groups: Iterable[Group], tp: int) -> dict[str, int]:
    """By path, how far the projections onto keys and values split: chips beyond the number of
    their heads have copies."""
    heads = {g.op.path: g.op.kv_heads for g in groups if isinstance(g.op, Attention)}
    return {
        g.op.path: min(tp, heads[module])
        for g in groups
        if isinstance(g.op, Matmul)
        and g.op.path.rpartition(".")[2] in _KEYS_VALUES
        and (module := g.op.path.rpartition(".")[0]) in heads
    }


def inside_sharded(groups: Iterable[Group]) -> frozenset[str]:
    """Modules whose own operations work on split tensors: those with a split matmul in them. A
    layer, whose name is a number, is none: the residual stream is whole."""
    split = (
        g.op.path.rpartition(".")[0]
        for g in groups
        if isinstance(g.op, Matmul) and g.op.weight and role(g.op.path) in (Role.COLUMN, Role.ROW)
    )
    return frozenset(m for m in split if m and not m.rpartition(".")[2].isdecimal())
