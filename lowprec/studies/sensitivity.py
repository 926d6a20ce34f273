"""Sensitivity: what each layer's operand costs alone, and what it saves when it alone is spared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lowprec.errors import LowprecError
from lowprec.eval.significance import Z
from lowprec.report.progress import Progress, SilentProgress
from lowprec.spec.recipe import Recipe
from lowprec.spec.record import Record
from lowprec.studies.accuracy import load_bench
from lowprec.studies.cells import Cells, Executor
from lowprec.studies.plan import Search
from lowprec.studies.proxies import PROXIES, Noise
from lowprec.studies.searching import Searching, rule_of
from lowprec.studies.store import Store
from lowprec.studies.study import NamedRecipe

Mode = Literal["one", "others"]


@dataclass(frozen=True)
class Sensitivity:
    """Of one operand of one layer. one: the record with that alone quantized; others: with all
    searched operands but that; None where it was not asked for or its cell failed."""

    path: str
    operand: str
    noise: Noise
    one: Record | None
    others: Record | None

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"path": self.path, "operand": self.operand} | vars(self.noise)
        for name in ("one", "others"):
            record: Record | None = getattr(self, name)
            if record is not None:
                data[name] = {
                    "cell": record.name,
                    "kl": record.metrics["kl"].value,
                    "interval": record.details["intervals"]["kl"],
                }
        return data


@dataclass(frozen=True)
class Rank:
    """Spearman's rank correlation, and the ends of its 95 % interval over the layers by Bonett and
    Wright (Psychometrika 65, 2000)."""

    value: float
    low: float
    high: float

    @staticmethod
    def of(x: Sequence[float], y: Sequence[float]) -> Rank:
        """Of four pairs or more."""
        from scipy.stats import spearmanr  # type: ignore[import-untyped]

        r = float(spearmanr(x, y)[0])
        if abs(r) >= 1:
            return Rank(r, r, r)
        half = Z * math.sqrt((1 + r * r / 2) / (len(x) - 3))
        return Rank(r, math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half))


@dataclass(frozen=True)
class Sensitivities:
    """All of them; whole: the record with every searched operand quantized."""

    rows: tuple[Sensitivity, ...]
    whole: Record | None

    def correlations(self) -> dict[str, dict[str, Rank]]:
        """Of each proxy with the measured KL of quantizing one, by operand, where there are four
        or more."""
        found: dict[str, dict[str, Rank]] = {}
        for operand in dict.fromkeys(row.operand for row in self.rows):
            rows = [r for r in self.rows if r.operand == operand and r.one is not None]
            truth = [r.one.metrics["kl"].value for r in rows if r.one is not None]
            if len(rows) >= 4:
                found[operand] = {
                    proxy: Rank.of([getattr(r.noise, proxy) for r in rows], truth)
                    for proxy in PROXIES
                }
        return found


def sensitivity(
    plan: Search,
    out: str | Path,
    modes: tuple[Mode, ...] = ("one",),
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> Sensitivities:
    """Measures `plan.sensitivity` at every searched layer and operand on the scored windows, and
    the proxies on those behind. What the folder `out` holds already is taken from there.

    LowprecError: no quantizer, nothing to search, another study running in `out`.
    """
    quantizer = plan.sensitivity
    if quantizer is None:
        raise LowprecError(f"search {plan.name!r}: sensitivity: expected a quantizer")
    store = Store(Path(out))
    progress = progress or SilentProgress()
    with store.locked():
        bench = load_bench(plan.accuracy, plan.seed, "", store, progress)
        work = Searching(plan, bench, executor or Executor())
        noise = work.noise([quantizer])
        places = [(path, operand) for path in work.sites for operand in plan.operands]
        recipes = [NamedRecipe(name="all", recipe=work.recipe("all", work.uniform(quantizer)))]
        for mode in modes:
            recipes += [
                NamedRecipe(name=_name(mode, *place), recipe=_recipe(work, mode, *place))
                for place in places
            ]
        cells = Cells(bench, work.executor)
        found = cells.measure(recipes, "sensitivity")
        records = {
            named.name: cells.record(cell) for named, cell in zip(recipes, found, strict=True)
        }
    rows = (
        Sensitivity(
            path,
            operand,
            noise[path, operand, 0],
            records.get(_name("one", path, operand)),
            records.get(_name("others", path, operand)),
        )
        for path, operand in places
    )
    return Sensitivities(tuple(rows), records.get("all"))


def _name(mode: Mode, path: str, operand: str) -> str:
    """Short enough for a name, and different for every place."""
    return f"{mode} {operand} {path}"[-60:].strip()


def _recipe(work: Searching, mode: Mode, path: str, operand: str) -> Recipe:
    quantizer = work.plan.sensitivity
    assert quantizer is not None
    if mode == "one":
        return work.recipe("one", {path: {operand: quantizer}})
    others: list[str] = [other for other in work.plan.operands if other != operand]
    first = rule_of(path, dict.fromkeys(others, quantizer))
    rest = work.recipe("others", work.uniform(quantizer)).rules
    return Recipe(name="others", rules=(first, *(r for r in rest if r.match != path)))
