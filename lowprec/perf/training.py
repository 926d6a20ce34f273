"""A training step: forward, backward, recomputation, optimizer, gradients, pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lowprec.errors import LowprecError
from lowprec.perf.backward import backward, casts
from lowprec.perf.capacity import gigabytes
from lowprec.perf.collective import Kind, collective
from lowprec.perf.estimates import CALIBRATIONS, Pricing, Term, find_system, scalar_dtype
from lowprec.perf.footprint import Schedule, closing, footprint, parameters
from lowprec.perf.framework import AS_PRICED, framework
from lowprec.perf.grouping import Group, grouped
from lowprec.perf.hardware import Machine
from lowprec.perf.hardware import machine as load_machine
from lowprec.perf.parallel import Parallel
from lowprec.perf.price import Level
from lowprec.perf.roles import Role, role
from lowprec.perf.roofline import nbytes
from lowprec.perf.sharding import Share, share
from lowprec.perf.system import System
from lowprec.perf.validation.point import Calibration
from lowprec.spec import (
    Attention,
    Format,
    Matmul,
    Recipe,
    Spec,
    Vector,
    Workload,
    load_format,
    load_recipe,
)

# Bytes per parameter that one step of Adam moves: master weight and two moments, float32, read and
# written, the float32 gradient read and the model's own copy written in 16 bits.
_ADAM_MOVED = 3 * 4 * 2 + 4 + 2


class Step(Spec):
    """Seconds of one step, which adds up from `parts`. flops: of the model, 3 times its forward
    pass, without recomputation; utilisation: those over what the chips' fastest datapath for the
    model's type could have done. chip_bytes: of the fullest chip."""

    machine: str
    model: str
    recipe: str
    parallel: str
    level: Level
    calibration: Calibration
    chips: int
    tokens: int
    seconds: float
    low: float
    high: float
    parts: dict[str, float]
    tokens_per_second: float
    tokens_per_second_per_chip: float
    flops: float
    utilisation: float
    chip_bytes: int


def training_step(
    workload: Workload,
    recipe: Recipe | Mapping[str, Any] | str | Path,
    machine: Machine | str | Path,
    *,
    parallel: Parallel | Mapping[str, Any] | str | None = None,
    schedule: Schedule | None = None,
    level: Level = "kernel",
    system: System | str | Path | None = None,
) -> Step:
    """One optimizer step. `workload` is the forward pass of one microbatch of one copy, with the
    logits of all tokens; `parallel` says how many copies (dp) and microbatches there are.

    The backward pass has two products per matmul with a weight, in the formats that the recipe
    gives gradients, weights and activations there, and 2.5 times the forward's attention
    (FlashAttention-2: five products for two). Stages run one forward and one backward in turn
    (1F1B), so that (pp - 1) / interleave of their passes are waited for.
    LowprecError: what `estimate` refuses, or a step that does not fit the chips' memory.
    """
    recipe = load_recipe(recipe)
    if not isinstance(machine, Machine):
        machine = load_machine(machine)
    plan, how = Parallel.of(parallel), schedule or Schedule()
    plan.check(workload)
    one = plan.model_copy(update={"dp": 1, "microbatches": 1, "pp": 1})
    run = _Run(
        machine,
        scalar_dtype(workload),
        plan,
        how,
        level,
        find_system(system, machine),
        _without_gathered_logits(
            share(grouped(workload, recipe), workload.batch, one, scalar_dtype(workload))
        ),
    )
    return run.step(workload, recipe)


def _without_gathered_logits(part: Share) -> Share:
    """The loss is computed on the parts of the vocabulary (arXiv 1909.08053, section 3)."""
    return replace(
        part, exchanges=tuple(e for e in part.exchanges if role(e.path) is not Role.HEAD)
    )


@dataclass(frozen=True)
class _Run:
    machine: Machine
    dtype: Format
    plan: Parallel
    how: Schedule
    level: Level
    system: System
    part: Share

    @property
    def parameters(self) -> int:
        return parameters(self.part.groups, self.plan)

    @property
    def _casts(self) -> float:
        return casts(self.part, self.dtype) / self.machine.memory.bandwidth.value

    def step(self, workload: Workload, recipe: Recipe) -> Step:
        passes = {
            "forward": self._terms(self.part),
            "backward": self._terms(backward(self.part)),
            "recompute": self._terms(self._again()),
        }
        plan = self.plan
        per_stage = {name: self._slowest_stage(terms) for name, terms in passes.items()}
        sends = self._sends(workload)
        slowdown = framework(self.how.software) if self.level == "kernel" else AS_PRICED
        per_stage = {name: slowdown.slowdown * value for name, value in per_stage.items()}
        one = sum(per_stage.values()) + sends
        busy = plan.microbatches * one
        exposed = self._copies(busy)
        parts = {name: plan.microbatches * value for name, value in per_stage.items()}
        parts |= {
            "stages": plan.microbatches * sends,
            "bubble": (plan.pp - 1) / self.how.interleave * one,
            "copies": exposed,
            "casts": slowdown.slowdown * plan.microbatches * self._casts / plan.pp,
            "optimizer": self._optimizer(),
        }
        seconds = sum(parts.values())
        terms = [term for each in passes.values() for term in each]
        tokens = workload.new_tokens * plan.microbatches * plan.dp
        flops = 3.0 * workload.flops * plan.microbatches * plan.dp
        held = footprint(self.part.groups, self.plan, self.how, self.dtype)
        self._check(held)
        return Step(
            machine=self.machine.name,
            model=workload.model,
            recipe=recipe.name,
            parallel=plan.spell(),
            level=self.level,
            calibration=min((t.calibration for t in terms), key=CALIBRATIONS.index),
            chips=plan.chips,
            tokens=tokens,
            seconds=seconds,
            low=slowdown.interval[0] * seconds,
            high=slowdown.interval[1] * seconds,
            parts=parts,
            tokens_per_second=tokens / seconds,
            tokens_per_second_per_chip=tokens / seconds / plan.chips,
            flops=flops,
            utilisation=flops / (seconds * plan.chips * self._rate()),
            chip_bytes=held,
        )

    def _terms(self, part: Share) -> tuple[Term, ...]:
        one = self.plan.model_copy(update={"dp": 1, "microbatches": 1, "pp": 1})
        pricing = Pricing(self.machine, self.dtype, self.level, one, self.system, "library")
        return pricing.terms(part)

    def _slowest_stage(self, terms: Sequence[Term]) -> float:
        """Layers are dealt out evenly; the last stage has the head and the loss besides."""
        inside = _seconds([term for term in terms if _in_layer(term.path)])
        return inside / self.plan.pp + _seconds(terms) - inside

    def _again(self) -> Share:
        match self.how.recompute:
            case "none":
                return Share((), ())
            case "full":
                layers = tuple(g for g in self.part.groups if _in_layer(g.path))
                exchanges = tuple(e for e in self.part.exchanges if _in_layer(e.path))
                return Share(layers, exchanges)
            case "selective":
                return Share(tuple(g for g in self.part.groups if _between(g)), ())
            case "operations":
                inside = [g for g in self.part.groups if _in_layer(g.path)]
                vectors = [g for g in inside if isinstance(g.op, Vector)]
                matmuls = [g for g in inside if isinstance(g.op, Matmul)]
                return Share((*vectors, *matmuls[1::2]), ())

    def _sends(self, workload: Workload) -> float:
        """Activations to the next stage and their gradients back, per microbatch and stage: every
        tensor-parallel chip sends its part over links of its own (arXiv 2104.04473, section 4.1).
        """
        if self.plan.pp == 1:
            return 0.0
        width = next((op.n for op in closing(self.part.groups)), None)
        if width is None:
            raise LowprecError("parallel: pp: the workload has no row-parallel matmul, so no width")
        rows = -(-workload.new_tokens // self.plan.tp)
        size = nbytes(self.dtype, (rows, width))
        apart = self.plan.stage_chips
        one = collective("send", size, 2, self.system, stride=apart, software="library")
        return 2 * self.how.interleave * one.seconds

    def _copies(self, busy: float) -> float:
        """Seconds of the data-parallel traffic that the passes do not hide."""
        if self.plan.dp == 1:
            return 0.0
        return max(0.0, sum(self._copy_traffic()) - self.how.overlap * busy)

    def _copy_traffic(self) -> Iterator[float]:
        gradient = nbytes(load_format(self.how.gradient), (self.parameters,))
        gather = load_format(self.how.gather) if self.how.gather else self.dtype
        weights = nbytes(gather, (self.parameters,))
        match self.how.sharding:
            case "none":
                yield self._among_copies("all_reduce", gradient)
            case "optimizer":
                yield self._among_copies("reduce_scatter", gradient)
                yield self._among_copies("all_gather", weights)
            case "parameters":
                yield 2 * self._among_copies("all_gather", weights)
                yield self._among_copies("reduce_scatter", gradient)

    def _among_copies(self, kind: Kind, size: int) -> float:
        plan = self.plan
        apart = plan.stage_chips * plan.pp
        return collective(
            kind, size, plan.dp, self.system, stride=apart, software="library"
        ).seconds

    def _optimizer(self) -> float:
        shared = self.plan.dp if self.how.sharding != "none" else 1
        moved = self.parameters / shared * _ADAM_MOVED
        return moved / self.machine.memory.bandwidth.value

    def _check(self, held: int) -> None:
        capacity = self.machine.memory.capacity.value
        if held > capacity:
            raise LowprecError(
                f"machine {self.machine.name!r}: parallel {self.plan.spell()}: a step needs "
                f"{gigabytes(held)} per chip of {gigabytes(capacity)}: "
                f"{gigabytes(held - capacity)} too much; more tp or pp, recompute or sharding "
                "would take less"
            )

    def _rate(self) -> float:
        paths = [p for p in self.machine.datapaths if p.multiplies(self.dtype, self.dtype)]
        return max(path.rate.value for path in paths)


def _seconds(terms: Sequence[Term]) -> float:
    return sum(term.seconds for term in terms)


def _in_layer(path: str) -> bool:
    return any(part == "*" or part.isdecimal() for part in path.split("."))


def _between(group: Group) -> bool:
    """What attention keeps between its matmuls: scores, softmax, dropout; or the fused kernel."""
    match group.op:
        case Matmul(weight=False) | Attention():
            return True
        case Vector(name=name):
            return "softmax" in name
    return False
