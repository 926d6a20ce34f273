"""Throughput cells: each recipe on each model and machine, for all workloads of the study."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from lowprec.errors import LowprecError
from lowprec.perf import Machine, estimate, machine
from lowprec.spec.recipe import Recipe
from lowprec.spec.record import Metric, Record
from lowprec.spec.workload import Workload
from lowprec.studies.code import THROUGHPUT, code_digest
from lowprec.studies.recipes import format_digests
from lowprec.studies.shapes import Shape
from lowprec.studies.study import Study, WorkloadGrid


@dataclass(frozen=True)
class Job:
    """One forward pass that is priced: `batch` sequences of `tokens` new tokens each."""

    phase: str
    batch: int
    tokens: int
    context: int

    @property
    def name(self) -> str:
        """As tables and charts have it."""
        if self.phase == "decode":
            return f"decode, batch {self.batch}, context {self.context}"
        behind = f" after {self.context}" if self.context else ""
        return f"{self.phase}, batch {self.batch}, {self.tokens} tokens{behind}"


def jobs(grids: tuple[WorkloadGrid, ...]) -> tuple[Job, ...]:
    """All passes of the study, in its order, each once."""
    found = (Job(g.phase, batch, g.tokens, g.context) for g in grids for batch in g.batch)
    return tuple(dict.fromkeys(found))


def load_machines(plan: Study, where: str) -> list[Machine]:
    """The machines that the study names; LowprecError names file and key of an unknown one."""
    found = []
    for i, name in enumerate(plan.throughput.machines if plan.throughput else ()):
        try:
            found.append(machine(name))
        except LowprecError as error:
            raise LowprecError(f"{where}: throughput.machines.{i}: {error}") from None
    return found


def subject(
    recipe: Recipe, shape: Shape, machine: Machine, todo: tuple[Job, ...]
) -> dict[str, Any]:
    """All that determines a cell; see `Record`."""
    return {
        "model": {"name": shape.name, "digest": shape.digest},
        "recipe": recipe.spell(),
        "formats": format_digests(recipe),
        "machine": {"name": machine.name, "digest": machine.digest},
        "workloads": [asdict(job) for job in todo],
        "code": code_digest(THROUGHPUT),
    }


def tracer(shape: Shape) -> Callable[[Job], Workload]:
    """The workloads of one model: recorded at their first use, once for all jobs of a model that
    has laws."""

    @cache
    def traced(job: Job) -> Workload:
        base = symbolic(job)
        if base.fixed:
            return recorded(job)
        return base.at(job.batch, job.tokens, job.context)

    first: list[Job] = []

    def symbolic(job: Job) -> Workload:
        if isinstance(shape.source, Workload):
            return shape.source
        first.append(job)
        return recorded(first[0])

    @cache
    def recorded(job: Job) -> Workload:
        from lowprec.nn import trace

        workload: Workload = trace(
            shape.source, batch=job.batch, tokens=job.tokens, context=job.context
        )
        return workload.model_copy(update={"model": shape.name})

    return traced


def price(
    recipe: Recipe,
    shape: Shape,
    machine: Machine,
    todo: tuple[Job, ...],
    traced: Callable[[Job], Workload],
) -> Record:
    """The record of one recipe, model and machine: a metric and a line of details per workload."""
    metrics, lines = {}, []
    for job in todo:
        found = estimate(traced(job), recipe, machine, level="bound")
        metrics[f"tokens_per_second_per_chip: {job.name}"] = Metric(
            value=found.tokens_per_second_per_chip
        )
        lines.append(
            {
                "workload": job.name,
                "tokens_per_second_per_chip": found.tokens_per_second_per_chip,
                "seconds": found.seconds,
                "chips": found.chips,
                "bound": found.bound,
                "shares": dict(found.shares),
                "weight_bytes": found.weight_bytes,
                "cache_bytes": found.cache_bytes,
                "fallbacks": sorted({term.reason for term in found.terms if not term.native}),
                "notes": list(found.notes),
            }
        )
    return Record(
        kind="throughput",
        subject=subject(recipe, shape, machine, todo),
        metrics=metrics,
        details={"calibration": found.calibration, "workloads": lines},
        environment={},
    )
