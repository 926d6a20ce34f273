"""Accuracy cells: each recipe on the study's model and text, against the unquantized model."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

import torch

from lowprec.eval import (
    Baseline,
    LoadedModel,
    Text,
    Windows,
    cut,
    evaluate_windows,
    load_model,
    load_text,
    make_baseline,
)
from lowprec.eval.sqnr import activation_sqnr, weight_sqnr
from lowprec.nn import coverage, unwrap, wrap
from lowprec.nn.calibration.calibrate import calibrate
from lowprec.nn.wrap import check
from lowprec.report.progress import Progress
from lowprec.spec.base import digest
from lowprec.spec.recipe import Recipe
from lowprec.spec.record import Metric, Record
from lowprec.studies.code import ACCURACY, code_digest
from lowprec.studies.recipes import format_digests
from lowprec.studies.shapes import Shape
from lowprec.studies.store import Store
from lowprec.studies.study import Accuracy, NamedRecipe

PLAIN = ("kl_median", "kl_p99", "kl_p999", "kl_max")


@dataclass
class Bench:
    """The loaded model and text that every recipe is measured on."""

    asked: Accuracy
    seed: int
    loaded: LoadedModel
    text: Text
    windows: Windows
    store: Store
    progress: Progress

    def __post_init__(self) -> None:
        # Said aloud, the number is kept to: until then MKL chooses one anew at every call, and
        # with it the order of its sums.
        torch.set_num_threads(torch.get_num_threads())

    def subject(self, recipe: Recipe) -> dict[str, Any]:
        """All that determines a cell; see `Record`."""
        protocol = {"length": self.asked.length, "windows": self.asked.windows}
        if recipe.needs_calibration:
            protocol["calibration"] = self.asked.calibration
        return {
            "model": {"name": self.loaded.name, "digest": self.loaded.digest},
            "text": {"name": self.text.name, "digest": self.text.digest},
            "windows": self.windows.digest,
            "protocol": protocol,
            "recipe": recipe.spell(),
            "formats": format_digests(recipe),
            "seed": self.seed,
            "code": code_digest(ACCURACY),
        }

    @property
    def shape(self) -> Shape:
        """The model for the throughput half."""
        return Shape(self.loaded.name, self.loaded.digest, self.loaded.model)

    def check(self, recipe: Recipe, where: str) -> None:
        """LowprecError if a rule matches no module of the model; found before anything runs."""
        check(self.loaded.model, recipe, where)

    @cached_property
    def baseline(self) -> Baseline:
        """The unquantized model's answers, computed once and kept beside the cells."""
        key = digest([self.loaded.digest, code_digest(ACCURACY), environment()])
        with self.progress.task("unquantized model") as update:
            return make_baseline(
                self.loaded.model, self.windows, self.store.folder / "baseline", key, update
            )

    def measure(self, named: NamedRecipe) -> Record:
        """The record of one recipe; the model is as before when this returns or raises."""
        model, baseline = self.loaded.model, self.baseline
        first = torch.from_numpy(self.windows.ids[:1])
        torch.manual_seed(self.seed)
        inputs = activation_sqnr(model, named.recipe, first)
        try:
            wrapped = wrap(model, named.recipe)
            if named.recipe.needs_calibration:
                self._calibrate(wrapped, named.name)
            with self.progress.task(named.name) as update:
                result = evaluate_windows(wrapped, self.windows, baseline, update)
            covered = coverage(wrapped)
            weights = weight_sqnr(wrapped)
        finally:
            unwrap(model)
        return Record(
            kind="accuracy",
            subject=self.subject(named.recipe),
            metrics=metrics(result),
            details={
                "intervals": intervals(result),
                "coverage": covered.to_json(),
                "layers": layers(weights, inputs),
                "tokens": result["n_tokens"],
                "clusters": result["n_clusters"],
            },
            environment=environment(),
        )

    def _calibrate(self, wrapped: Any, name: str) -> None:
        first, count = self.asked.windows, self.asked.calibration
        ids = cut(self.text, self.loaded.tokenizer, self.asked.length, first + count).ids[first:]
        with self.progress.task(f"{name}: calibration") as update:
            batches = [{"input_ids": torch.from_numpy(row)[None]} for row in ids]
            calibrate(wrapped, batches, progress=update)


def load_bench(asked: Accuracy, seed: int, where: str, store: Store, progress: Progress) -> Bench:
    """Load the model and the text and cut the windows; LowprecError where one is not to be had."""
    with progress.task(f"loading {asked.model}"):
        loaded = load_model(
            asked.model, say=progress.say, where=where and f"{where}: accuracy.model"
        )
    with progress.task(f"loading {asked.text}"):
        text = load_text(asked.text, say=progress.say, where=where and f"{where}: accuracy.text")
        windows = cut(text, loaded.tokenizer, asked.length, asked.windows)
    return Bench(asked, seed, loaded, text, windows, store, progress)


def layers(weights: dict[str, float], inputs: dict[str, float]) -> list[dict[str, Any]]:
    """A row per quantized module; None for an operand that the recipe leaves alone."""
    return [
        {"path": path, "weight_db": weights.get(path), "activation_db": inputs.get(path)}
        for path in dict.fromkeys([*inputs, *weights])
    ]


def measured(result: dict[str, float | int]) -> Iterator[str]:
    """The names in an evaluation's result that come with a standard error."""
    return (name for name in result if f"{name}_se" in result)


def metrics(result: dict[str, float | int]) -> dict[str, Metric]:
    """An evaluation's plain numbers as metrics."""
    found = {
        name: Metric(value=float(result[name]), se=float(result[f"{name}_se"]))
        for name in measured(result)
    }
    return found | {name: Metric(value=float(result[name])) for name in PLAIN}


def intervals(result: dict[str, float | int]) -> dict[str, list[float]]:
    """The ends of the 95 % intervals, by metric."""
    return {
        name: [float(result[f"{name}_low"]), float(result[f"{name}_high"])]
        for name in measured(result)
    }


def environment() -> dict[str, str]:
    """Versions and threads: they may move the last bits, and name no cell."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "threads": str(torch.get_num_threads()),
        "machine": platform.machine(),
    }
