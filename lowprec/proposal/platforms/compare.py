"""The table: every machine under every recipe, with what is known and what is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lowprec.errors import LowprecError, unknown
from lowprec.perf import Estimate, Machine, estimate
from lowprec.perf.fleet import Fleet, fleet
from lowprec.perf.price import Level
from lowprec.proposal.evidence import Evidence
from lowprec.proposal.platforms.accuracy import Accuracy, accuracy_of
from lowprec.spec import Recipe, Workload, load_recipe

# Layouts that are tried in turn where none is given: the first that fits is taken.
PLANS = ("tp=1", "tp=2", "tp=4", "tp=8", "tp=8,pp=2", "tp=8,pp=4")


@dataclass(frozen=True)
class Platform:
    """A recipe on a machine. found: its estimate, or `refused` says why there is none; power:
    watts and dollars, or `unpowered` says what is not known."""

    machine: Machine
    recipe: str
    accuracy: tuple[Accuracy, ...]
    found: Estimate | None
    refused: str = ""
    power: Fleet | None = None
    unpowered: str = ""

    @property
    def tokens_per_dollar(self) -> float | None:
        cost = self.power.cost_per_million_tokens if self.power else None
        return 1e6 / cost.value if cost else None

    @property
    def memory(self) -> float | None:
        """The share of the fullest chip's memory that is used."""
        if self.found is None:
            return None
        return self.found.chip_bytes / self.machine.memory.capacity.value

    @property
    def fallbacks(self) -> dict[str, float]:
        """Why operations run on another datapath than their formats', with the share of the time
        that they take."""
        found: dict[str, float] = {}
        for term in self.found.terms if self.found else ():
            if not term.native:
                share = term.seconds / self.found.seconds  # type: ignore[union-attr]
                found[term.reason] = found.get(term.reason, 0.0) + share
        return found

    @property
    def risks(self) -> tuple[str, ...]:
        """What the row's figures do not say, the gravest first."""
        if self.found is None:
            return (self.refused,)
        risks = [each.words for each in self.accuracy if not each.own]
        converted = sum(self.fallbacks.values())
        if converted:
            risks.append(f"{converted:.0%} of the time is spent on formats that it converts")
        if self.found.level == "bound":
            risks.append("the datasheet's roofline: no kernel reaches it")
        else:
            risks.append(f"constants {self.found.calibration}; {self.interval}")
        memory = self.memory or 0.0
        if memory > NEARLY_FULL:
            risks.append(f"{memory:.0%} of the memory is taken")
        if self.unpowered:
            risks.append(self.unpowered)
        elif self.power and self.tokens_per_dollar is None:
            risks.append("no dollars per hour are known")
        return tuple(risks)

    @property
    def interval(self) -> str:
        """The interval of the time, as ratios."""
        assert self.found is not None
        ends = self.found.low / self.found.seconds, self.found.high / self.found.seconds
        return f"the time is within {ends[0]:.2f} to {ends[1]:.2f} times this in 90 % of cases"

    def to_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {"machine": self.machine.name, "recipe": self.recipe}
        row["accuracy"] = [each.to_json() for each in self.accuracy]
        if self.found is None:
            return row | {"refused": self.refused}
        e, power = self.found, self.power
        return row | {
            "chips": e.chips,
            "parallel": e.parallel,
            "tokens_per_second": e.tokens_per_second,
            "tokens_per_second_per_chip": e.tokens_per_second_per_chip,
            "seconds": {"value": e.seconds, "low": e.low, "high": e.high},
            "tokens_per_joule": power.tokens_per_joule.value if power else None,
            "tokens_per_dollar": self.tokens_per_dollar,
            "memory": self.memory,
            "level": e.level,
            "calibration": e.calibration,
            "bound": e.bound,
            "fallbacks": self.fallbacks,
            "risks": list(self.risks),
            "notes": list(e.notes) + list(power.notes if power else ()),
        }


# Of a chip's memory; beyond it fragments and buffers leave no room.
NEARLY_FULL = 0.9


def compare(
    workload: Workload,
    recipes: Mapping[str, Recipe],
    machines: Sequence[Machine],
    *,
    level: Level = "kernel",
    parallel: str | None = None,
    evidence: Evidence | None = None,
) -> list[Platform]:
    """A row per machine and recipe, under the layout `parallel` or the smallest of PLANS that fits.

    What cannot be priced is a row that says why. evidence: the study whose records speak of
    accuracy.
    """
    return [
        _platform(workload, name, recipe, machine, level, parallel, evidence)
        for machine in machines
        for name, recipe in recipes.items()
    ]


def _platform(
    workload: Workload,
    name: str,
    recipe: Recipe,
    machine: Machine,
    level: Level,
    parallel: str | None,
    evidence: Evidence | None,
) -> Platform:
    accuracy = tuple(accuracy_of(recipe, machine, evidence))
    try:
        found = _estimate(workload, recipe, machine, level, parallel)
    except LowprecError as error:
        return Platform(machine, name, accuracy, None, str(error))
    try:
        return Platform(machine, name, accuracy, found, power=fleet(found, machine))
    except LowprecError as error:
        return Platform(machine, name, accuracy, found, unpowered=str(error))


def _estimate(
    workload: Workload, recipe: Recipe, machine: Machine, level: Level, parallel: str | None
) -> Estimate:
    """Under the first plan that fits; the error of the smallest where none does."""
    refused: LowprecError | None = None
    for plan in [parallel] if parallel else PLANS:
        try:
            return estimate(workload, recipe, machine, level=level, parallel=plan)
        except LowprecError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def named_recipes(texts: Sequence[str], evidence: Evidence | None) -> dict[str, Recipe]:
    """Recipes by name: those of the study (all of them where none is asked for), files, shipped
    ones, or their text. LowprecError for no recipe at all."""
    named = {cell.candidate.name: cell.recipe for cell in evidence.cells} if evidence else {}
    if not texts and not named:
        raise LowprecError("--recipe: expected one or more, or a --study whose recipes are taken")
    found = {}
    for text in texts or named:
        if text in named:
            found[text] = named[text]
            continue
        try:
            found[text] = load_recipe(text, "--recipe")
        except LowprecError as error:
            if named and not any(mark in text for mark in ":;=/."):
                raise unknown("recipe", text, named, "--recipe") from error
            raise
    return found
