"""What a report shows, ready to print: the numbers, and for each where it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lowprec.spec.block import BlockFormat
from lowprec.spec.quantizer import Quantizer
from lowprec.spec.recipe import Recipe
from lowprec.spec.record import Metric, Record


@dataclass(frozen=True)
class Candidate:
    """A recipe under its name in the study, and its accuracy record where one was measured.
    corrected: the p-value of "dnll is 0" after Holm and after Benjamini and Hochberg, over all
    recipes of the study."""

    name: str
    recipe: Recipe
    record: Record | None
    corrected: tuple[float, float] | None = None

    def metric(self, name: str) -> Metric | None:
        return self.record.metrics.get(name) if self.record else None

    def interval(self, name: str) -> tuple[float, float] | None:
        """The 95 % interval of a metric, or None where it has none."""
        ends = self.record.details["intervals"].get(name) if self.record else None
        return (ends[0], ends[1]) if ends else None

    @property
    def weight(self) -> str:
        """Quantizers of the weights, spelled in full; "kept" where there is none."""
        return _spell([rule.weight for rule in self.recipe.rules])

    @property
    def activation(self) -> str:
        return _spell([rule.activation for rule in self.recipe.rules])

    @property
    def bits(self) -> tuple[float | None, float | None]:
        """The fewest bits per weight and per activation, scales included; None: kept."""
        rules = self.recipe.rules
        return _bits([rule.weight for rule in rules]), _bits([rule.activation for rule in rules])

    @property
    def scope(self) -> str:
        """Which operands the recipe quantizes."""
        weight, activation = self.bits
        if weight is None:
            return "none" if activation is None else "activations only"
        return "weights only" if activation is None else "weights and activations"


@dataclass(frozen=True)
class Price:
    """A modelled throughput, per chip of the `chips` that hold the model.

    front_kl, front_dnll: on the Pareto front of its model, machine and workload, by KL divergence
    and by difference of the negative log-likelihood. native: every product runs on a datapath
    that takes the operands as stored.
    """

    candidate: str
    model: str
    machine: str
    workload: str
    tokens_per_second: float
    chips: int
    bound: str
    native: bool
    front_kl: bool
    front_dnll: bool


@dataclass(frozen=True)
class Source:
    """One figure of a machine and where it stands."""

    machine: str
    key: str
    value: str
    kind: str
    source: str


@dataclass(frozen=True)
class Failed:
    """A cell without a record, by what it is called in the study, and why."""

    what: str
    error: str


@dataclass(frozen=True)
class Report:
    """All of it. shown: (model, machine, workload) that the main chart opens with. protocol:
    (what, how) lines; digests: (what, digest) lines; failed: cells that are missing. sensitivity,
    searched, tasks, training: rows of `lowprec sensitivity`, `lowprec search`,
    `lowprec eval --tasks` and ``evals/pretrain.py`` in the study's folder, as JSON; curves:
    Vega-Lite of the last."""

    title: str
    candidates: tuple[Candidate, ...]
    prices: tuple[Price, ...]
    sources: tuple[Source, ...]
    shown: tuple[str, str, str] | None
    protocol: tuple[tuple[str, str], ...]
    digests: tuple[tuple[str, str], ...]
    failed: tuple[Failed, ...] = ()
    sensitivity: tuple[dict[str, Any], ...] = ()
    searched: tuple[dict[str, Any], ...] = ()
    tasks: tuple[dict[str, Any], ...] = ()
    training: tuple[dict[str, Any], ...] = ()
    curves: dict[str, Any] | None = None


def _spell(quantizers: list[Quantizer | None]) -> str:
    return ", ".join(dict.fromkeys(q.spell() for q in quantizers if q is not None)) or "kept"


def _bits(quantizers: list[Quantizer | None]) -> float | None:
    return min((_bits_of(q) for q in quantizers if q is not None), default=None)


def _bits_of(quantizer: Quantizer) -> float:
    fmt = quantizer.format
    return fmt.bits_per_element if isinstance(fmt, BlockFormat) else float(fmt.bits)
