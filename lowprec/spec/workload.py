"""Workload: the operations that a model performs, recorded from the model itself."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any, Literal

from pydantic import TypeAdapter, model_validator

from lowprec.errors import LowprecError
from lowprec.spec.base import Spec
from lowprec.spec.law import Sizes
from lowprec.spec.operation import Attention, Count, Embedding, Matmul, Op, Size, Vector
from lowprec.spec.schedule import (
    AnyOp,
    Group,
    Schedule,
    fold,
    kind_of_pass,
    template,
)

__all__ = ["Attention", "Embedding", "Group", "Matmul", "Op", "Vector", "Workload"]
_BY_HAND = "its operations are given one by one, not as laws"


class Workload(Spec):
    """One forward pass: `batch` sequences of `tokens` new tokens behind `context` cached ones.

    Its operations are kept as `schedules`, whose sizes are laws in batch, tokens and context, so
    that `at` gives the same model's workload at other sizes. One made of `ops`, operation by
    operation, has no laws. logits: of the last position of each sequence, as serving needs, or of
    all, as training does. parameters: elements of all the model's parameters, norms and biases
    included; 0: not known. fixed: why there are no laws, or None.
    """

    model: str
    phase: Literal["prefill", "decode"]
    batch: Size
    tokens: Size
    context: Count
    dtype: str
    logits: Literal["last", "all"] = "last"
    parameters: Count = 0
    fixed: str | None = None
    schedules: tuple[Schedule, ...]

    @model_validator(mode="before")
    @classmethod
    def _of_ops(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or "ops" not in data:
            return _tuples(data)
        ops = _adapter().validate_python(_tuples(data["ops"]))
        rest = {key: value for key, value in data.items() if key != "ops"}
        made = fold(map(template, ops), passes=())
        return {"fixed": _BY_HAND} | rest | {"schedules": (made,)}

    def at(
        self,
        batch: int | None = None,
        tokens: int | None = None,
        context: int | None = None,
        logits: Literal["last", "all"] | None = None,
    ) -> Workload:
        """The workload of the same model at other sizes; None: as here.

        Equal, operation by operation, to what a new trace at these sizes records. It is a decode
        pass where tokens is 1 and context is not 0, else a prefill.
        LowprecError: a size out of range, or no laws (`fixed` says why).
        """
        batch = self.batch if batch is None else batch
        tokens = self.tokens if tokens is None else tokens
        context = self.context if context is None else context
        logits = logits or self.logits
        if (batch, tokens, context, logits) == self._place:
            return self
        for name, value in (("batch", batch), ("tokens", tokens), ("context", context)):
            if value < (least := 0 if name == "context" else 1):
                raise LowprecError(f"at: {name}: expected {least} or more, got {value}")
        if self.fixed:
            raise LowprecError(f"{self.model!r} can't be re-priced at other sizes: {self.fixed}")
        decode = kind_of_pass(tokens, context) == "decode"
        return self.model_copy(
            update={
                "phase": "decode" if decode else "prefill",
                "batch": batch,
                "tokens": tokens,
                "context": context,
                "logits": logits,
            }
        )

    @property
    def _place(self) -> tuple[int, int, int, str]:
        return self.batch, self.tokens, self.context, self.logits

    @property
    def sizes(self) -> Sizes:
        """What the laws are of, at this workload."""
        rows = 1 if self.logits == "last" else self.tokens
        return Sizes(self.batch, self.tokens, self.context, rows)

    @cached_property
    def _schedule(self) -> Schedule:
        if self.fixed and len(self.schedules) == 1:
            return self.schedules[0]
        kind = kind_of_pass(self.tokens, self.context)
        for schedule in self.schedules:
            if kind in schedule.passes:
                return schedule
        known = ", ".join(name for schedule in self.schedules for name in schedule.passes)
        raise LowprecError(f"{self.model!r}: no laws for a pass of the kind {kind}; has {known}")

    @cached_property
    def _blocks(self) -> tuple[tuple[AnyOp, ...], ...]:
        return self._schedule.at(self.sizes)

    @cached_property
    def ops(self) -> tuple[AnyOp, ...]:
        """All operations, in order."""
        return tuple(self._schedule.ops(self._blocks))

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The same operations, those together that are equal but for their paths."""
        return self._schedule.groups(self._blocks)

    def __copy__(self) -> Workload:
        """Without what was derived, which a changed copy must not keep."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_construct(_fields_set=set(self.model_fields_set), **fields)

    @property
    def flops(self) -> int:
        return sum(group.count * group.op.flops for group in self.groups)

    @property
    def new_tokens(self) -> int:
        """Tokens that one pass produces or consumes: the denominator of tokens per second."""
        return self.batch * self.tokens

    @cached_property
    def weights(self) -> dict[str, int]:
        """Elements of each stored matrix or table, by the path that names it: a module that runs
        twice is stored once, and so is a head that is tied to the embedding."""
        found: dict[tuple[str, int, int], int] = {}
        for group in self.groups:
            op = group.op
            for path in group.paths:
                if isinstance(op, Matmul) and op.weight:
                    found[op.tied_to or path, op.n, op.k] = op.weight_elements
                elif isinstance(op, Embedding):
                    found[path, op.table, op.width] = op.weight_elements
        total: dict[str, int] = {}
        for (path, *_), elements in found.items():
            total[path] = total.get(path, 0) + elements
        return total

    @property
    def weight_elements(self) -> int:
        """Elements of all parameters; without norms and biases where `parameters` is 0."""
        return self.parameters or sum(self.weights.values())

    @property
    def cache_elements(self) -> int:
        """Elements of the KV caches of all layers and sequences once the pass is over."""
        return sum(
            group.count * group.op.cache_elements
            for group in self.groups
            if isinstance(group.op, Attention)
        )

    @property
    def state_elements(self) -> int:
        """Elements of the recurrent states of all layers and sequences."""
        return sum(g.count * g.op.state for g in self.groups if isinstance(g.op, Vector))

    @property
    def activation_elements(self) -> int:
        """Estimate of the activations that are alive at the worst moment: what the largest
        operation reads and writes."""
        return max(group.op.activation_elements for group in self.groups)


def _tuples(data: Any) -> Any:
    """JSON has lists, the frozen types have tuples."""
    if isinstance(data, Mapping):
        return {key: _tuples(value) for key, value in data.items()}
    return tuple(map(_tuples, data)) if isinstance(data, list | tuple) else data


@cache
def _adapter() -> TypeAdapter[tuple[AnyOp, ...]]:
    return TypeAdapter(tuple[Op, ...])
