"""Sweeps: an estimate as a function of what the machine is, where it turns, and what pays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowprec.errors import LowprecError
from lowprec.perf.accelerator import Machine
from lowprec.perf.estimates import Estimate, estimate
from lowprec.perf.hardware import machine as load_machine
from lowprec.spec import Recipe, Workload, load_recipe

# Smaller is better of these; of everything else more is.
_COSTS = ("launch", "latency")
# A rate is cores x clock x FLOP per clock of a core.
_MAKE_RATES = ("cores", "clock")
# What no time depends on: elasticities would all be zero.
_NO_TIME = "tco."
MAX_POINTS = 1_000_000


@dataclass(frozen=True)
class Parameter:
    """A quantity of the machine by its path, and the values that it takes, in SI base units."""

    path: str
    values: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Parameter:
        """``memory.bandwidth=4e12:16e12:x2`` (times 2, ends included), ``cores=100:200:+20``, or
        ``clock=1e9,1.5e9``. LowprecError says what was expected."""
        path, _, values = text.partition("=")
        if not path or not values:
            raise LowprecError(f"sweep {text!r}: expected PATH=FIRST:LAST:xFACTOR, :+STEP or A,B,C")
        return cls(path.strip(), _values(values, text))


def _values(values: str, text: str) -> tuple[float, ...]:
    if ":" not in values:
        return tuple(_number(value, text) for value in values.split(","))
    parts = values.split(":")
    if len(parts) != 3 or parts[2][:1] not in ("x", "+"):
        raise LowprecError(f"sweep {text!r}: expected FIRST:LAST:xFACTOR or FIRST:LAST:+STEP")
    first, last, step = (
        _number(parts[0], text),
        _number(parts[1], text),
        _number(parts[2][1:], text),
    )
    times = parts[2][0] == "x"
    if not (0 < first <= last) or step <= (1 if times else 0):
        raise LowprecError(f"sweep {text!r}: expected 0 < FIRST <= LAST and steps that grow")
    count = math.log(last / first, step) if times else (last - first) / step
    count = int(count + 1e-9) + 1
    if count > MAX_POINTS:
        raise LowprecError(f"sweep {text!r}: more than {MAX_POINTS} values")
    return tuple(first * step**i if times else first + i * step for i in range(count))


def _number(value: str, text: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise LowprecError(f"sweep {text!r}: {value!r} is no number") from None


@dataclass(frozen=True)
class Case:
    """One point of a sweep: which workload, recipe and machine, the values that were set, and
    what came of it. label: the recipe as it was asked for."""

    workload: Workload
    label: str
    recipe: Recipe
    machine: Machine
    values: Mapping[str, float]
    estimate: Estimate


@dataclass(frozen=True)
class Crossover:
    """Where something changes between two neighbouring values of `path`, all else equal.

    what: "bound" (the binding resource) or "recipe" (the faster one); value: of the parameter,
    within 0.1 %; before and after: the resources, or the recipes.
    """

    what: str
    path: str
    value: float
    before: str
    after: str
    case: Case


def sweep(
    workloads: Workload | Sequence[Workload],
    recipes: Sequence[Recipe | Mapping[str, Any] | str | Path],
    machines: Sequence[Machine | str | Path],
    parameters: Sequence[Parameter] = (),
    **options: Any,
) -> list[Case]:
    """All combinations of workloads, recipes, machines and the parameters' values, priced.

    options: those of `estimate` (level, parallel, system). The last parameter varies fastest.
    LowprecError: a machine without the parameter, and whatever `estimate` raises.
    """
    several = [workloads] if isinstance(workloads, Workload) else list(workloads)
    rules = [(_label(recipe), load_recipe(recipe)) for recipe in recipes]
    chips = [m if isinstance(m, Machine) else load_machine(m) for m in machines]
    counts = [len(p.values) for p in parameters]
    if math.prod([len(several), len(rules), len(chips), *counts]) > MAX_POINTS:
        raise LowprecError(f"sweep: more than {MAX_POINTS} points")
    variants = [v for chip in chips for v in _variants(chip, parameters)]
    return [
        Case(workload, label, recipe, chip, values, estimate(workload, recipe, chip, **options))
        for workload in several
        for label, recipe in rules
        for chip, values in variants
    ]


def _label(recipe: Recipe | Mapping[str, Any] | str | Path) -> str:
    return str(recipe) if isinstance(recipe, str | Path) else load_recipe(recipe).name


def _variants(
    chip: Machine, parameters: Sequence[Parameter]
) -> Iterable[tuple[Machine, dict[str, float]]]:
    paths = [parameter.path for parameter in parameters]
    if len(set(paths)) != len(paths):
        raise LowprecError(f"sweep: one parameter twice among {', '.join(paths)}")
    for combination in itertools.product(*(parameter.values for parameter in parameters)):
        changed = chip
        for path, value in zip(paths, combination, strict=True):
            changed = changed.what_if(path, value)
        yield changed, dict(zip(paths, combination, strict=True))


def crossovers(cases: Sequence[Case], path: str, **options: Any) -> list[Crossover]:
    """Where, along `path`, the binding resource changes or one recipe overtakes another.

    Looks between neighbouring values of the sweep and halves the gap until it is 0.1 % wide; a
    change and its opposite between two neighbours go unseen. options: those of the sweep.
    """
    curves: dict[tuple[Any, ...], dict[float, list[Case]]] = {}
    for case in cases:
        fixed = tuple(v for k, v in case.values.items() if k != path)
        curve = curves.setdefault((id(case.workload), case.machine.name, fixed), {})
        curve.setdefault(case.values[path], []).append(case)
    found = []
    for curve in curves.values():
        for low, high in itertools.pairwise(curve[value] for value in sorted(curve)):
            for a, b in zip(low, high, strict=True):
                if a.estimate.bound != b.estimate.bound:
                    found.append(_turn(a, b, path, options))
            for (a, c), (b, d) in itertools.combinations(zip(low, high, strict=True), 2):
                if _ahead(a, b) * _ahead(c, d) < 0:
                    found.append(_overtaking((a, b), (c, d), path, options))
    return sorted(found, key=lambda turn: turn.value)


def _ahead(a: Case, b: Case) -> float:
    return a.estimate.seconds - b.estimate.seconds


def _moved(case: Case, path: str, value: float, options: Mapping[str, Any]) -> Case:
    chip = case.machine.what_if(path, value)
    found = estimate(case.workload, case.recipe, chip, **options)
    values = {**case.values, path: value}
    return Case(case.workload, case.label, case.recipe, chip, values, found)


def _turn(low: Case, high: Case, path: str, options: Mapping[str, Any]) -> Crossover:
    before = low.estimate.bound
    while high.values[path] / low.values[path] > 1.001:
        middle = _moved(low, path, math.sqrt(low.values[path] * high.values[path]), options)
        low, high = (middle, high) if middle.estimate.bound == before else (low, middle)
    return Crossover("bound", path, high.values[path], before, high.estimate.bound, high)


def _overtaking(
    low: tuple[Case, Case], high: tuple[Case, Case], path: str, options: Mapping[str, Any]
) -> Crossover:
    first, last = low[0].values[path], high[0].values[path]
    sign = _ahead(*low)
    while last / first > 1.001:
        value = math.sqrt(first * last)
        middle = [_moved(case, path, value, options) for case in low]
        first, last = (value, last) if _ahead(*middle) * sign > 0 else (first, value)
    faster, slower = (low[1], low[0]) if sign > 0 else low
    # `faster` was so below the crossing.
    names = faster.label, slower.label
    return Crossover("recipe", path, last, *names, _moved(low[0], path, last, options))


@dataclass(frozen=True)
class Elasticity:
    """What a better parameter buys: `gain` is the share by which tokens/s grow when it gets `by`
    better (larger, or smaller of a latency)."""

    path: str
    value: float
    by: float
    gain: float


def elasticities(
    workload: Workload,
    recipe: Recipe | Mapping[str, Any] | str | Path,
    machine: Machine | str | Path,
    by: float = 0.1,
    **options: Any,
) -> list[Elasticity]:
    """What each of the machine's parameters that matters would buy, the most first.

    One parameter at a time, all else equal, except that more cores, or a faster clock, are more or
    faster ones of the same kind: they bring all datapaths' rates with them.
    """
    recipe = load_recipe(recipe)
    chip = machine if isinstance(machine, Machine) else load_machine(machine)
    base = estimate(workload, recipe, chip, **options).tokens_per_second_per_chip
    found = []
    for path, quantity in chip.parameters().items():
        if path.startswith(_NO_TIME):
            continue
        changed = estimate(workload, recipe, _better(chip, path, by), **options)
        gain = changed.tokens_per_second_per_chip / base - 1
        found.append(Elasticity(path, quantity.value, by, gain))
    return sorted((e for e in found if e.gain != 0), key=lambda e: -e.gain)


def _better(chip: Machine, path: str, by: float) -> Machine:
    if path.endswith(_COSTS):
        return chip.scaled(path, 1 / (1 + by))
    changed = chip.scaled(path, 1 + by)
    for name in chip.parameters() if path in _MAKE_RATES else ():
        if name.startswith("datapaths."):
            changed = changed.scaled(name, 1 + by)
    return changed
