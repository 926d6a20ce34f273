"""What every chip of a plan runs and sends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lowprec.errors import LowprecError
from lowprec.perf.collective import Kind
from lowprec.perf.grouping import Group
from lowprec.perf.parallel import Parallel
from lowprec.perf.roles import Role, inside_sharded, kv_split, role
from lowprec.perf.roofline import nbytes
from lowprec.spec import Attention, BlockFormat, Embedding, Format, Matmul, Vector, load_format
from lowprec.spec.workload import Op


@dataclass(frozen=True)
class Exchange:
    """`count` collectives of `nbytes` (as `collective` counts them) among `ranks` chips that
    stand `stride` apart."""

    kind: Kind
    path: str
    nbytes: float
    ranks: int
    stride: int
    count: int


@dataclass(frozen=True)
class Share:
    """What one chip runs of a pass, and what it exchanges."""

    groups: tuple[Group, ...]
    exchanges: tuple[Exchange, ...]


def share(groups: Sequence[Group], batch: int, plan: Parallel, dtype: Format) -> Share:
    """The busiest chip's part of `groups`, all stages of the pipeline, for one microbatch.

    batch: sequences of the whole pass.
    """
    parts = plan.dp * plan.microbatches
    split = _Split(
        plan,
        experts=-(-batch // parts) / batch,
        others=-(-batch // (parts * plan.attention_dp)) / batch,
        groups=groups,
        dtype=dtype,
    )
    sharded = tuple(replace(group, op=split.op(group)) for group in groups)
    exchanges = tuple(e for group in groups for e in split.exchanges(group) if e.ranks > 1)
    return Share(sharded, exchanges + tuple(split.sends()))


class _Split:
    """The rules of one plan. experts, others: the part of the batch that one copy's experts and
    one attention rank see."""

    def __init__(
        self,
        plan: Parallel,
        experts: float,
        others: float,
        groups: Sequence[Group],
        dtype: Format,
    ) -> None:
        self.plan, self.dtype = plan, dtype
        self.experts, self.others = experts, others
        self.groups = groups
        self.kv_split = kv_split(groups, plan.tp)
        self.sharded = inside_sharded(groups)

    def op(self, group: Group) -> Op:
        match group.op:
            case Matmul(weight=False) as op:
                return op.model_copy(update={"batch": _part(op.batch, self.others / self.plan.tp)})
            case Matmul() as op if _per_head(op):
                return self._heads(op)
            case Matmul() as op if op.experts > 1:
                return self._expert(op)
            case Matmul() as op:
                return self._matmul(op)
            case Attention() as op:
                return self._attention(op)
            case Vector() as op:
                ways = self._vector_ways(op.path)
                return op.model_copy(
                    update={"read": _part(op.read, ways), "written": _part(op.written, ways)}
                )
            case Embedding() as op:
                return op.model_copy(update={"rows": self._rows(op.rows)})
        raise TypeError(f"no operation: {group.op!r}")

    def _rows(self, rows: int) -> int:
        return _part(rows, self.others / self.plan.cp)

    def _matmul(self, op: Matmul) -> Matmul:
        update = {"m": self._rows(op.m)}
        match role(op.path):
            case Role.COLUMN | Role.HEAD:
                update["n"] = _part(op.n, 1 / self.kv_split.get(op.path, self.plan.tp))
            case Role.ROW:
                update["k"] = _part(op.k, 1 / self.plan.tp)
        return op.model_copy(update=update)

    def _heads(self, op: Matmul) -> Matmul:
        heads = _part(op.experts, 1 / self.plan.tp)
        rows = self._rows(op.m // op.experts)
        return op.model_copy(update={"m": rows * heads, "experts": heads, "top_k": heads})

    def _expert(self, op: Matmul) -> Matmul:
        """The busiest group's experts. Their expected number of distinct ones stays within 2 % of
        the whole's part, with top_k divided as far as it goes."""
        plan = self.plan
        top_k = max(1, round(op.top_k / plan.ep))
        rows = _part(op.m, self.experts * plan.skew / plan.ep)
        across = "k" if role(op.path) is Role.ROW else "n"
        return op.model_copy(
            update={
                "m": max(rows, top_k),
                "experts": max(-(-op.experts // plan.ep), top_k),
                "top_k": top_k,
                across: _part(getattr(op, across), 1 / plan.expert_tp),
            }
        )

    def _attention(self, op: Attention) -> Attention:
        plan = self.plan
        update = {
            "batch": _part(op.batch, self.others),
            "heads": _part(op.heads, 1 / plan.tp),
            "kv_heads": _part(op.kv_heads, 1 / plan.tp),
        }
        if plan.cp > 1 and op.queries >= plan.cp:
            # Each chip has as many early queries as late ones, so all see the mean of the keys.
            pairs = op.flops / (2 * op.batch * op.heads * (op.head_dim + op.value_dim))
            update |= {
                "queries": _part(op.queries, 1 / plan.cp),
                "keys": max(1, round(pairs / op.queries)),
                "causal": False,
            }
        elif plan.cp > 1:
            update["keys"] = _part(op.keys, 1 / plan.cp)
        return op.model_copy(update=update)

    def _vector_ways(self, path: str) -> float:
        plan = self.plan
        if "experts" in path.split("."):
            return self.experts / plan.stage_chips
        inside = path in self.sharded or path.rpartition(".")[0] in self.sharded
        return self.others / plan.cp / (plan.tp if inside or plan.sequence else 1)

    def exchanges(self, group: Group) -> Iterator[Exchange]:
        """What follows an operation so that the next one finds its operands."""
        plan = self.plan
        match group.op:
            case Embedding(rows=rows, width=width):
                yield self._tensor("all_reduce", group, self._rows(rows) * width, plan.tp)
            case Matmul() as op if _per_head(op):
                return
            case Matmul(experts=experts) as op if experts > 1 and role(op.path) is Role.ROW:
                yield from self._moe(group, op)
            case Matmul(weight=True) as op if role(op.path) is Role.ROW:
                if not self._joins_experts(group.path):
                    yield from self._sum(group, self._rows(op.m) * op.n, plan.tp)
            case Matmul(weight=True) as op if role(op.path) is Role.HEAD:
                yield self._tensor("all_gather", group, self._rows(op.m) * op.n, plan.tp)
            case Attention() as op if plan.cp > 1:
                yield self._context(group, op)

    def _sum(self, group: Group, elements: int, ranks: int) -> Iterator[Exchange]:
        kinds: tuple[Kind, ...] = (
            ("reduce_scatter", "all_gather") if self.plan.sequence else ("all_reduce",)
        )
        for kind in kinds:
            yield self._tensor(kind, group, elements, ranks)

    def _joins_experts(self, path: str) -> bool:
        """A shared expert's result is added to the experts' before they are summed once."""
        return "shared_expert" in path and self.plan.attention_dp == 1

    def _moe(self, group: Group, op: Matmul) -> Iterator[Exchange]:
        """With one attention rank every chip has all tokens, and one sum ends the layer. With
        several, tokens travel to the chips of their experts and back: each to as many groups as
        `top_k` uniform choices hit."""
        plan = self.plan
        tokens = op.m // op.top_k
        if plan.attention_dp == 1 and plan.cp == 1:
            yield from self._sum(group, _part(tokens, self.experts) * op.n, plan.stage_chips)
            return
        mine = _part(tokens, self.others / plan.cp)
        there, back = (
            load_format(name, "parallel") if name else self.dtype
            for name in (plan.dispatch, plan.combine)
        )
        if plan.expert_tp == 1:
            groups = plan.ep * (1 - (1 - 1 / plan.ep) ** op.top_k)
            for fmt in (there, back):
                size = nbytes(fmt, (max(1, round(mine * groups)), op.n))
                yield Exchange("all_to_all", group.path, size, plan.ep, 1, group.count)
            return
        rows = mine * plan.attention_dp * plan.cp
        both: tuple[tuple[Kind, Format | BlockFormat], ...] = (
            ("all_gather", there),
            ("reduce_scatter", back),
        )
        for kind, fmt in both:
            size = nbytes(fmt, (rows, op.n))
            yield Exchange(kind, group.path, size, plan.stage_chips, 1, group.count)

    def _context(self, group: Group, op: Attention) -> Exchange:
        """Prefill: every chip needs the keys and values of all. Decode: it sums partial results,
        with their two softmax statistics per head."""
        mine = self._attention(op)
        if op.queries >= self.plan.cp:
            elements = mine.batch * mine.kv_heads * op.queries * (op.head_dim + op.value_dim)
        else:
            elements = self.plan.cp * mine.batch * mine.heads * op.queries * (op.value_dim + 2)
        return self._tensor("all_gather", group, elements, self.plan.cp, self.plan.tp)

    def _tensor(
        self, kind: Kind, group: Group, elements: int, ranks: int, stride: int = 1
    ) -> Exchange:
        size = nbytes(self.dtype, (elements,))
        return Exchange(kind, group.path, size, ranks, stride, group.count)

    def sends(self) -> Iterator[Exchange]:
        """The residual stream from each stage to the next: an embedding's rows and width."""
        first = next((g.op for g in self.groups if isinstance(g.op, Embedding)), None)
        if self.plan.pp == 1:
            return
        if first is None:
            raise LowprecError("parallel: pp: the workload has no embedding, so no residual width")
        size = nbytes(self.dtype, (self._rows(first.rows), first.width))
        apart = self.plan.stage_chips
        yield Exchange("send", "stages", size, 2, apart, self.plan.pp - 1)


def _per_head(op: Matmul) -> bool:
    """A weight per head that every row is multiplied by (of latent attention), and no experts."""
    return op.experts > 1 and op.experts == op.top_k


def _part(count: int, factor: float) -> int:
    """`count` times `factor`, rounded up, at least 1 of what is not empty."""
    return math.ceil(count * factor - 1e-9) if count else 0
