"""Mixed-precision assignment and format search: what to give each layer, or all of them."""

from __future__ import annotations

import random as randomness
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowprec.errors import LowprecError
from lowprec.report.progress import Progress, SilentProgress
from lowprec.spec.quantizer import Quantizer
from lowprec.spec.recipe import Recipe
from lowprec.spec.record import Record
from lowprec.studies.accuracy import load_bench
from lowprec.studies.cells import Cells, Executor
from lowprec.studies.pareto import pareto
from lowprec.studies.plan import Search
from lowprec.studies.proxies import Key, Noise
from lowprec.studies.searching import Given, Searching
from lowprec.studies.spaces import bits_of, enumerate_formats
from lowprec.studies.store import Store
from lowprec.studies.study import NamedRecipe


@dataclass(frozen=True)
class Candidate:
    """A recipe that was measured. how: assigned, uniform, random, format or random format; limit:
    the budget it keeps to; bits: mean bits per element of the searched weights and activations;
    predicted: the sum of the layers' Fisher proxies (nats/token); record: on the held-out text,
    None where the cell failed; front: on the Pareto front of bits and KL."""

    name: str
    how: str
    limit: float | None
    recipe: Recipe
    bits: dict[str, float]
    predicted: float
    record: Record | None
    front: bool = False

    @property
    def mean_bits(self) -> float:
        """Over the operands that are searched."""
        return sum(self.bits.values()) / len(self.bits)

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "name": self.name, "how": self.how, "limit": self.limit, "bits": self.bits,
            "predicted_kl": self.predicted, "front": self.front,
        }  # fmt: skip
        if self.record is not None:
            shown = ("kl", "dnll", "top1", "ppl")
            data["cell"] = self.record.name
            data["metrics"] = {
                key: {
                    "value": self.record.metrics[key].value,
                    "interval": self.record.details["intervals"][key],
                }
                for key in shown
            }
        return data


def search(
    plan: Search,
    out: str | Path,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> list[Candidate]:
    """Everything that `plan` asks for, measured on the held-out windows; kept in the folder `out`.

    Assignments under the budget's limits, uniform choices, random assignments of the same limits,
    the best formats of a space, and random ones of at least as many bits as the best. What `out`
    holds already is taken from there.
    LowprecError: nothing to search, no assignment that fits, another study running in `out`.
    """
    if plan.budget is None and plan.formats is None:
        raise LowprecError(f"search {plan.name!r}: expected [budget] or [formats]")
    if plan.budget is not None and not plan.choices:
        raise LowprecError(f"search {plan.name!r}: [budget] needs choices")
    store = Store(Path(out))
    progress = progress or SilentProgress()
    with store.locked():
        bench = load_bench(plan.accuracy, plan.seed, "", store, progress)
        work = Searching(plan, bench, executor or Executor())
        if plan.choices or plan.uniform:
            work.noise((*plan.choices, *plan.uniform))  # all of them in one pass
        drafts = [*_assignments(work), *_uniform(work), *_formats(work)]
        return _measured(work, drafts)


def _assignments(work: Searching) -> list[Candidate]:
    plan, budget = work.plan, work.plan.budget
    if budget is None:
        return []
    noise = work.noise(plan.choices)
    problem, combinations = work.problem(noise), plan.combinations(plan.choices)
    drafts = []
    for limit in budget.limits:
        limits = [limit] * len(problem.uses)
        tried = [("assigned", problem.best(limits))]
        tried += [("random", problem.random(limits, plan.seed + i)) for i in range(plan.random)]
        for number, (how, chosen) in enumerate(tried):
            given = {
                path: {o: plan.choices[n] for o, n in combinations[c].items()}
                for path, c in zip(work.sites, chosen, strict=True)
            }
            name = f"{how}-{limit:g}" + (f"-{number}" if how == "random" else "")
            drafts.append(_draft(work, name, how, limit, given, problem.loss(chosen)))
    return drafts


def _uniform(work: Searching) -> list[Candidate]:
    quantizers = tuple(dict.fromkeys((*work.plan.choices, *work.plan.uniform)))
    return _everywhere(work, quantizers, "uniform")


def _formats(work: Searching) -> list[Candidate]:
    space = work.plan.formats
    if space is None:
        return []
    quantizers = enumerate_formats(space)
    noise = work.noise(quantizers)
    losses = [_total(noise, number) for number in range(len(quantizers))]
    front = pareto([(loss, -bits_of(q)) for loss, q in zip(losses, quantizers, strict=True)])
    order = sorted(range(len(quantizers)), key=lambda i: (not front[i], losses[i]))
    best, rest = order[: space.keep], order[space.keep :]
    # Chance may spend as many bits as the best of them, or more.
    fair = [i for i in rest if bits_of(quantizers[i]) >= bits_of(quantizers[best[0]])]
    drawn = randomness.Random(work.plan.seed).sample(fair, min(work.plan.random, len(fair)))
    return [
        candidate
        for how, some in (("format", best), ("random format", drawn))
        for candidate in _everywhere(work, tuple(quantizers[i] for i in some), how)
    ]


def _everywhere(work: Searching, quantizers: Sequence[Quantizer], how: str) -> list[Candidate]:
    noise = work.noise(quantizers)
    return [
        _draft(work, q.spell().replace("/", "-").replace("=", "-"), how, None, work.uniform(q),
               _total(noise, number))
        for number, q in enumerate(quantizers)
    ]  # fmt: skip


def _total(noise: dict[Key, Noise], number: int) -> float:
    return sum(n.fisher for (_, _, at), n in noise.items() if at == number)


def _draft(
    work: Searching,
    name: str,
    how: str,
    limit: float | None,
    given: Given,
    predicted: float,
) -> Candidate:
    recipe = work.recipe(name[:80], given)
    return Candidate(name, how, limit, recipe, work.bits(given), predicted, None)


def _measured(work: Searching, drafts: Sequence[Candidate]) -> list[Candidate]:
    named = [NamedRecipe(name=d.name[:60], recipe=d.recipe) for d in drafts]
    cells = Cells(work.bench, work.executor)
    found = cells.measure(named, "held-out text")
    for draft, cell in zip(drafts, found, strict=True):
        if cell.error:
            work.bench.progress.say(f"{draft.name}: failed: {cell.error}")
    records = [cells.record(cell) for cell in found]
    losses = [r.metrics["kl"].value if r else float("nan") for r in records]
    front = pareto([(kl, -d.mean_bits) for kl, d in zip(losses, drafts, strict=True)])
    return [
        Candidate(d.name, d.how, d.limit, d.recipe, d.bits, d.predicted, record, on)
        for d, record, on in zip(drafts, records, front, strict=True)
    ]
