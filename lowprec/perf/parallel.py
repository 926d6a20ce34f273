"""Parallel: how a model is laid out over chips."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from lowprec.errors import LowprecError, unknown
from lowprec.spec import Attention, Matmul, Spec, Workload, load_format

Ways = Annotated[int, Field(ge=1)]


class Parallel(Spec):
    """Ways to split a model over chips; ``tp=8`` alone is eight chips that share every matmul.

    tp: tensor parallel, heads and columns or rows of every matmul over that many chips.
    attention_dp: attention and dense layers run that many different parts of the batch, on `tp`
    chips each, while the experts are shared by all of them. cp: the tokens of a prompt, or the
    cached tokens of a decode step, over that many chips. ep: the experts over that many groups of
    chips; the `tp * attention_dp * cp / ep` chips of a group share every expert's columns or rows.
    pp: stages of layers, which a pass goes through in `microbatches` parts of its batch. dp: copies
    of all this, each with its part of the batch, that exchange nothing.

    sequence: what lies between the matmuls is split over the tokens too (reduce-scatter and
    all-gather instead of all-reduce). skew: tokens of the busiest group of experts over the mean;
    routing: exponent of the power law by which the experts of a chip share its tokens, at the level
    "kernel" (0: evenly; traffic is near 1).
    overlap: share of the communication that is hidden behind other work. dispatch, combine:
    formats in which tokens travel to the experts and back, the model's own if left out.
    """

    tp: Ways = 1
    pp: Ways = 1
    ep: Ways = 1
    dp: Ways = 1
    cp: Ways = 1
    attention_dp: Ways = 1
    sequence: bool = False
    microbatches: Ways = 1
    skew: Annotated[float, Field(ge=1)] = 1.0
    routing: Annotated[float, Field(ge=0, le=3)] = 0.0
    overlap: Annotated[float, Field(ge=0, le=1)] = 0.0
    dispatch: str | None = None
    combine: str | None = None

    @model_validator(mode="after")
    def _divides(self) -> Parallel:
        if self.stage_chips % self.ep:
            raise ValueError(
                f"ep={self.ep} does not divide tp * attention_dp * cp = {self.stage_chips}"
            )
        return self

    @classmethod
    def of(cls, value: Parallel | Mapping[str, Any] | str | None) -> Parallel:
        """From a dict or a text such as ``tp=8,ep=8``. LowprecError: an unknown or wrong way."""
        if value is None or isinstance(value, Parallel):
            return value or cls()
        fields = _parsed(value) if isinstance(value, str) else dict(value)
        for name in fields:
            if name not in cls.model_fields:
                raise unknown("parallel way", name, cls.model_fields, "parallel")
        for name in ("dispatch", "combine"):
            if fields.get(name) is not None:
                load_format(fields[name], f"parallel.{name}")
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, ("parallel", *first["loc"])))
            got = f" (got {first['input']!r})" if first["loc"] else ""
            said = first["msg"].removeprefix("Value error, ")
            raise LowprecError(f"{where}: {said}{got}") from None

    def check(self, workload: Workload) -> None:
        """LowprecError if `workload` has fewer layers than stages or experts than groups, or heads
        that `tp` chips cannot share evenly."""
        experts = max((op.experts for op in _matmuls(workload) if op.top_k < op.experts), default=0)
        if 0 < experts < self.ep:
            raise LowprecError(f"parallel.ep: {self.ep} groups of {experts} experts")
        layers = len(set(_layers(workload))) if self.pp > 1 else 0
        if 0 < layers < self.pp:
            raise LowprecError(f"parallel.pp: {self.pp} stages of {layers} layers")
        for group in workload.groups if self.tp > 1 else ():
            if isinstance(op := group.op, Attention) and self.tp not in (ways := head_ways(op)):
                raise LowprecError(
                    f"parallel.tp: {self.tp} chips cannot share {op.heads} heads and "
                    f"{op.kv_heads} key heads evenly; expected one of {', '.join(map(str, ways))}"
                )

    @property
    def stage_chips(self) -> int:
        """Chips that run one stage of one copy."""
        return self.tp * self.attention_dp * self.cp

    @property
    def chips(self) -> int:
        return self.stage_chips * self.pp * self.dp

    @property
    def expert_tp(self) -> int:
        """Chips that share one expert."""
        return self.stage_chips // self.ep

    def spell(self) -> str:
        """``tp=8,ep=8``: what is not the default; ``tp=1`` if nothing is."""
        said = [
            name if value is True else f"{name}={value}"
            for name, value in self
            if value != type(self).model_fields[name].default
        ]
        return ",".join(said) or "tp=1"


def head_ways(op: Attention) -> list[int]:
    """Numbers of chips that share the heads evenly; those beyond the key heads have copies."""
    return [
        tp
        for tp in range(1, op.heads + 1)
        if op.heads % tp == 0 and (op.kv_heads % tp == 0 or tp % op.kv_heads == 0)
    ]


def _matmuls(workload: Workload) -> Iterator[Matmul]:
    return (group.op for group in workload.groups if isinstance(group.op, Matmul))


def _layers(workload: Workload) -> Iterator[str]:
    """The layer's number of every operation in one."""
    for path in (path for group in workload.groups for path in group.paths):
        yield from [part for part in path.split(".") if part.isdecimal()][:1]


def _parsed(text: str) -> dict[str, Any]:
    pairs = list(_parse(text))
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise LowprecError(f"parallel {text!r}: expected each way once")
    return fields


def _parse(text: str) -> Iterator[tuple[str, Any]]:
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            yield name, True
        elif name in ("skew", "routing", "overlap"):
            yield name, float(value) if value.replace(".", "", 1).isdecimal() else value
        else:
            yield name, int(value) if value.isdecimal() else value
