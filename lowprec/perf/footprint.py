"""What a training step keeps in a chip's memory, and how the step is run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field

from lowprec.perf.grouping import Group
from lowprec.perf.parallel import Parallel
from lowprec.perf.roles import Role, role
from lowprec.perf.roofline import nbytes
from lowprec.spec import Embedding, Format, Matmul, Spec

Ways = Annotated[int, Field(ge=1)]
Recompute = Literal["none", "selective", "operations", "full"]
Sharding = Literal["none", "optimizer", "parameters"]

# Bytes per parameter that Adam keeps: the master weight and two moments, float32.
_ADAM_KEPT = 12


class Schedule(Spec):
    """How a step runs.

    recompute: what the backward pass computes a second time: nothing, what attention keeps between
    its matmuls ("selective", arXiv 2205.05198), all elementwise operations and every second matmul
    ("operations", torchtitan's selective op), or every layer from its input ("full").
    interleave: chunks of layers per stage of the pipeline. sharding: what the data-parallel copies
    keep a part of only: nothing (gradients are summed everywhere), the optimizer's states
    (ZeRO-1), or the parameters too (FSDP, ZeRO-3), which are gathered before the forward and the
    backward pass. gradient: the format that gradients are summed in; gather: the one that
    parameters travel in, the model's own if left out. overlap: the share of that traffic which
    hides behind the passes as long as they last. software: whose slowdown over the kernels alone a
    step has at the level "kernel" (calibration/training.toml).
    """

    recompute: Recompute = "none"
    interleave: Ways = 1
    sharding: Sharding = "optimizer"
    gradient: str = "float32"
    gather: str | None = None
    overlap: Annotated[float, Field(ge=0, le=1)] = 1.0
    software: str = "megatron"


def parameters(groups: Iterable[Group], plan: Parallel) -> int:
    """Elements of the weights that one chip of one stage works with; `groups` are its share of all
    stages, tables are split by tensor parallelism."""
    total = 0
    for group in groups:
        if isinstance(group.op, Matmul):
            total += group.stored * group.op.weight_elements
        elif isinstance(group.op, Embedding):
            total += group.op.weight_elements // plan.tp
    return -(-total // plan.pp)


def closing(groups: Iterable[Group]) -> Iterator[Matmul]:
    """The matmuls that end a block: their results are the residual stream."""
    for group in groups:
        if isinstance(group.op, Matmul) and role(group.op.path) is Role.ROW:
            yield group.op


def footprint(groups: Sequence[Group], plan: Parallel, how: Schedule, dtype: Format) -> int:
    """Bytes on one chip: weights and gradients in the model's type, the optimizer's states, and
    the activations of all microbatches that are on their way through the stages."""
    count = parameters(groups, plan)
    own = plan.dp if how.sharding == "parameters" else 1
    states = plan.dp if how.sharding != "none" else 1
    weights = 2 * nbytes(dtype, (count,)) / own + _ADAM_KEPT * count / states
    alive = min(plan.microbatches, plan.pp) / plan.pp
    return round(weights + alive * sum(_kept(groups, how, dtype)))


def _kept(groups: Iterable[Group], how: Schedule, dtype: Format) -> Iterator[float]:
    """Of every layer: full recomputation keeps its input, half of what its two blocks end with;
    "operations" every second matmul's input; otherwise all of them, and of an attention that is
    not one kernel the scores."""
    for group in groups:
        if not isinstance(op := group.op, Matmul):
            continue
        if how.recompute == "full":
            if role(op.path) is Role.ROW:
                yield group.count * nbytes(dtype, (op.m, op.n)) / 2
        elif op.weight:
            half = 2 if how.recompute == "operations" else 1
            yield group.count * nbytes(dtype, (op.m, op.k)) / half
        elif how.recompute == "none":
            yield group.count * nbytes(dtype, (op.batch, op.m, op.n))
