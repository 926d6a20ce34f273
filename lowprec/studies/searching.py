"""What a search works with: its layers, the text that it sees, what quantizers cost there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import numpy as np
from torch import nn

from lowprec.errors import LowprecError
from lowprec.eval import cut
from lowprec.spec.base import digest
from lowprec.spec.quantizer import Quantizer
from lowprec.spec.recipe import Recipe, Rule
from lowprec.spec.record import Record
from lowprec.studies.accuracy import Bench
from lowprec.studies.assignment import Problem
from lowprec.studies.cells import Executor
from lowprec.studies.code import ACCURACY, code_digest
from lowprec.studies.plan import Search
from lowprec.studies.proxies import Key, Noise, measure_noise
from lowprec.studies.seconds import pass_seconds
from lowprec.studies.spaces import bits_of

KEPT_BITS = 16.0
# Quantizers by path and operand.
Given = dict[str, dict[str, Quantizer]]


@dataclass
class Searching:
    """A search at work in a folder, where all that it measures is kept and found again."""

    plan: Search
    bench: Bench
    executor: Executor

    @cached_property
    def sites(self) -> dict[str, nn.Linear]:
        """The linear layers that are searched, by path."""
        found = {
            path: module
            for path, module in self.bench.loaded.model.named_modules()
            if isinstance(module, nn.Linear)
            and fnmatchcase(path, self.plan.modules)
            and not any(fnmatchcase(path, kept) for kept in self.plan.keep)
        }
        if not found:
            raise LowprecError(
                f"modules = {self.plan.modules!r} matches no linear layer that keep leaves"
            )
        return found

    @cached_property
    def seen(self) -> np.ndarray:
        """Windows [n, L] behind the held-out ones: all that the search looks at."""
        asked, loaded = self.bench.asked, self.bench.loaded
        first = asked.windows
        if first is None:
            raise LowprecError(
                f"search {self.plan.name!r}: accuracy.windows: expected how many are held out"
            )
        windows = cut(self.bench.text, loaded.tokenizer, asked.length, first + asked.calibration)
        ids: np.ndarray = windows.ids[first:]
        return ids

    def elements(self, operand: str) -> dict[str, int]:
        """Elements of an operand: of a weight, all; of an activation, those of one token."""
        if operand == "weight":
            return {path: module.weight.numel() for path, module in self.sites.items()}
        return {path: module.in_features for path, module in self.sites.items()}

    def noise(self, quantizers: Sequence[Quantizer]) -> dict[Key, Noise]:
        """What each quantizer costs at each site, from the store or measured now."""
        known: dict[Key, Noise] = {}
        todo: list[int] = []
        for number, quantizer in enumerate(quantizers):
            record = self.bench.store.read(self._record(quantizer, []).name)
            if record is None:
                todo.append(number)
            else:
                known |= _noise_of(record, number)
        if todo:
            with self.bench.progress.task("gradients") as update:
                fresh = measure_noise(
                    self.bench.loaded.model,
                    list(self.sites),
                    [quantizers[number] for number in todo],
                    self.plan.operands,
                    self.seen,
                    self.bench.seed,
                    update,
                )
            for place, number in enumerate(todo):
                rows = [
                    {"path": path, "operand": operand} | vars(noise)
                    for (path, operand, at), noise in fresh.items()
                    if at == place
                ]
                record = self.bench.store.write(self._record(quantizers[number], rows))
                known |= _noise_of(record, number)
        return known

    def _record(self, quantizer: Quantizer, rows: list[dict[str, Any]]) -> Record:
        bench = self.bench
        return Record(
            kind="sensitivity",
            subject={
                "model": {"name": bench.loaded.name, "digest": bench.loaded.digest},
                "text": {"name": bench.text.name, "digest": bench.text.digest},
                "windows": digest(self.seen.tolist()),
                "modules": digest(list(self.sites)),
                "operands": list(self.plan.operands),
                "quantizer": quantizer.spell(),
                "format": quantizer.format.digest,
                "seed": bench.seed,
                "code": code_digest(ACCURACY),
            },
            metrics={},
            details={"noise": rows},
            environment={},
        )

    def recipe(self, name: str, given: Given) -> Recipe:
        """`given` by path and operand; everything else is kept."""
        rules = [rule_of(path, some) for path, some in given.items()]
        return Recipe(name=name, rules=(*rules, Rule(match="*", keep=True)))

    def uniform(self, quantizer: Quantizer) -> Given:
        return {path: dict.fromkeys(self.plan.operands, quantizer) for path in self.sites}

    def bits(self, given: Given) -> dict[str, float]:
        """Mean bits per element, by operand."""
        found: dict[str, float] = {}
        for operand in self.plan.operands:
            sizes = self.elements(operand)
            used = sum(sizes[path] * bits_of(some[operand]) for path, some in given.items())
            found[operand] = used / sum(sizes[path] for path in given)
        return found

    def problem(self, noise: dict[Key, Noise]) -> Problem:
        """The assignment of `plan.choices` to sites, in the resources of the plan's budget."""
        plan, paths = self.plan, list(self.sites)
        combinations = plan.combinations(plan.choices)
        losses = np.array(
            [
                [sum(noise[path, o, n].fisher for o, n in some.items()) for some in combinations]
                for path in paths
            ]
        )
        return Problem(losses, tuple(self._use(operand, combinations) for operand in self._kinds()))

    def _kinds(self) -> tuple[str, ...]:
        """The resources: an operand's bits, or the bytes or seconds of all."""
        assert self.plan.budget is not None
        kind = self.plan.budget.kind
        return self.plan.operands if kind == "bits" else (kind,)

    def _use(self, kind: str, combinations: list[dict[str, int]]) -> np.ndarray:
        budget, choices, paths = self.plan.budget, self.plan.choices, list(self.sites)
        assert budget is not None
        if kind == "seconds":
            return pass_seconds(self.bench.loaded.model, paths, combinations, choices, budget)
        operand = "weight" if kind == "bytes" else kind
        sizes = self.elements(operand)
        scale = 1 / 8 if kind == "bytes" else 1 / sum(sizes.values())
        per_element = [
            bits_of(choices[some[operand]]) if operand in some else KEPT_BITS
            for some in combinations
        ]
        return np.array([[sizes[path] * scale * bits for bits in per_element] for path in paths])


def rule_of(path: str, given: dict[str, Quantizer]) -> Rule:
    """What one layer is given; without a quantizer it is kept."""
    operands: dict[str, Any] = given
    return Rule(match=path, keep=not given, **operands)


def _noise_of(record: Record, number: int) -> dict[Key, Noise]:
    return {
        (row["path"], row["operand"], number): Noise(
            row["fisher"], row["diagonal"], row["relative"]
        )
        for row in record.details["noise"]
    }
