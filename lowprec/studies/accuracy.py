"""Accuracy cells: each recipe on the study's model and text, against the unquantized model."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lowprec.errors import LowprecError
from lowprec.eval import (
    Baseline,
    LoadedModel,
    Text,
    Windows,
    load_model,
    load_text,
    make_baseline,
    score_windows,
    windows_of,
)
from lowprec.eval.metrics import (
    BOOTSTRAPPED,
    QUANTILES,
    TokenScores,
    average,
    by_position,
    over_seeds,
    summarize,
)
from lowprec.eval.perplexity import open_baseline
from lowprec.eval.power import announcement, sums_by_cluster
from lowprec.eval.streaming import StreamedModel, load_streamed
from lowprec.eval.tensors import operand_errors
from lowprec.nn import Coverage, coverage, unwrap, wrap
from lowprec.nn.calibration.calibrate import calibrate
from lowprec.nn.coverage import coverage_of
from lowprec.nn.wrap import check
from lowprec.report.progress import Progress
from lowprec.spec.base import digest
from lowprec.spec.recipe import Recipe
from lowprec.spec.record import Metric, Record
from lowprec.studies.code import ACCURACY, code_digest
from lowprec.studies.recipes import format_digests, is_random, reseeded
from lowprec.studies.shapes import Shape
from lowprec.studies.store import Store
from lowprec.studies.study import Accuracy, NamedRecipe


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
    folder: Path | None = None  # of a model that is streamed

    def __post_init__(self) -> None:
        # Said aloud, the number is kept to: until then MKL chooses one anew at every call, and
        # with it the order of its sums.
        torch.set_num_threads(torch.get_num_threads())

    def subject(self, recipe: Recipe) -> dict[str, Any]:
        """All that determines a cell; see `Record`."""
        protocol = self.asked.cut.to_json()
        if recipe.needs_calibration:
            protocol["calibration"] = self.asked.calibration
        if self.asked.perplexity_only:
            protocol["perplexity_only"] = True
        if self.asked.seeds > 1 and is_random(recipe):
            protocol["seeds"] = self.asked.seeds
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
    def announcement(self) -> str:
        """What the tokens will be able to tell, before anything runs."""
        owners = self.windows.owners
        line: str = announcement(owners.size, len(np.unique(owners)))
        return line

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
        kept, brief = self.store.folder / "baseline", self.asked.perplexity_only
        found = open_baseline(kept, self.windows, key, brief)
        if found is not None:
            return found
        model = self.loaded.model
        if self.folder is not None:
            model, _ = self._streamed("unquantized model", None)
        with self.progress.task("unquantized model") as update:
            return make_baseline(model, self.windows, kept, key, update, brief)

    def measure(self, named: NamedRecipe) -> Record:
        """The record of one recipe; the model is as before when this returns or raises."""
        watched = Watched(self.loaded.model)
        runs = [self._run(named, recipe, watched) for recipe in self._seeded(named.recipe)]
        assert watched.coverage is not None
        scores, owners = average(runs), self.windows.owners
        result = summarize(scores, owners) | over_seeds(runs, owners)
        return Record(
            kind="accuracy",
            subject=self.subject(named.recipe),
            metrics=metrics(result),
            details={
                "intervals": intervals(result),
                "coverage": watched.coverage.to_json(),
                "layers": layers(watched.errors),
                "operands": watched.errors,
                "tokens": result["n_tokens"],
                "clusters": result["n_clusters"],
                "seeds": len(runs),
                "dof": result["dof"],
                "iid": {name: result[f"{name}_iid"] for name in measured(result)},
                "bootstrap": {
                    name: [result[f"{name}_boot_low"], result[f"{name}_boot_high"]]
                    for name in BOOTSTRAPPED
                    if name in result
                },
                "positions": self._positions(scores),
                "by_cluster": sums_by_cluster(scores, owners),
            },
            environment=environment(),
        )

    def _seeded(self, recipe: Recipe) -> list[Recipe]:
        """The recipe under each of the seeds that are asked for, itself first; once where nothing
        in it is drawn at random."""
        return [reseeded(recipe, i) for i in range(self.asked.seeds if is_random(recipe) else 1)]

    def _run(self, named: NamedRecipe, recipe: Recipe, watched: Watched) -> TokenScores:
        """Scores of one pass over the windows."""
        if self.folder is not None:
            model, errors = self._streamed(named.name, recipe)
            if watched.coverage is None:
                length = len(self.windows.tokens(0))
                watched.coverage, watched.errors = coverage(model.model, tokens=length), errors
            with self.progress.task(named.name) as update:
                return score_windows(model, self.windows, self.baseline, update)
        baseline = self.baseline
        with self.wrapped(recipe, named.name), self.progress.task(named.name) as update:
            return score_windows(watched, self.windows, baseline, update)

    @contextmanager
    def wrapped(self, recipe: Recipe, name: str) -> Iterator[Any]:
        """The model under a recipe, calibrated where that needs it; as before when this ends."""
        model = self.loaded.model
        torch.manual_seed(self.seed)
        try:
            wrapped = wrap(model, recipe)
            if recipe.needs_calibration:
                self._calibrate(wrapped, name)
            yield wrapped
        finally:
            unwrap(model)

    def _streamed(
        self, name: str, recipe: Recipe | None
    ) -> tuple[StreamedModel, list[dict[str, Any]]]:
        """The model, its blocks through with all windows, and the errors of its operands."""
        assert self.folder is not None
        streamed = StreamedModel(self.folder, recipe)
        tokens = [self.windows.tokens(i) for i in range(len(self.windows.ids))]
        with self.progress.task(f"{name}: blocks") as update:
            return streamed, streamed.prepare(tokens, update, watch=recipe is not None)

    def _positions(self, scores: TokenScores) -> list[dict[str, Any]]:
        found = by_position(scores, self.windows.contexts, self.windows.owners)
        return [asdict(bucket) for bucket in found]

    def _calibrate(self, wrapped: Any, name: str) -> None:
        asked, count = self.asked, self.asked.calibration
        if asked.windows is None:
            raise LowprecError(
                f"{name}: its calibration reads windows behind the scored ones; say how many "
                "windows are scored, and leave some"
            )
        # Windows of `strided` share tokens: only those behind the last scored one are unseen.
        shared = -(-asked.length // asked.cut.step) - 1 if asked.protocol == "strided" else 0
        first = asked.windows + shared
        more = asked.cut.model_copy(update={"windows": first + count})
        windows = windows_of(self.text, self.loaded.tokenizer, more)
        with self.progress.task(f"{name}: calibration") as update:
            batches = [
                {"input_ids": torch.from_numpy(windows.tokens(i))[None]}
                for i in range(first, first + count)
            ]
            calibrate(wrapped, batches, progress=update)


class Watched:
    """A wrapped model whose first pass says what its recipe reaches, and what it does to each
    operand: `nn.coverage`, `eval.tensors.operand_errors`."""

    def __init__(self, model: Any) -> None:
        self.model, self.device, self.training = model, model.device, model.training
        self.coverage: Coverage | None = None
        self.errors: list[dict[str, Any]] = []

    def __call__(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
        def run() -> Any:
            return self.model(input_ids=input_ids, use_cache=use_cache)

        if self.coverage is not None:
            return run()
        self.errors = operand_errors(self.model, input_ids)
        # In inference mode torch shows no linear layer's product to those who watch.
        with torch.inference_mode(False), torch.no_grad():
            answer, self.coverage = coverage_of(self.model, run)
        return answer


def load_bench(asked: Accuracy, seed: int, where: str, store: Store, progress: Progress) -> Bench:
    """Load the model and the text and cut the windows; LowprecError where one is not to be had."""
    place, folder = where and f"{where}: accuracy.model", None
    with progress.task(f"loading {asked.model}"):
        if asked.stream:
            loaded, folder = load_streamed(asked.model, progress.say, place)
        else:
            loaded = load_model(
                asked.model, say=progress.say, where=place, device_map=asked.device_map
            )
    with progress.task(f"loading {asked.text}"):
        text = load_text(asked.text, say=progress.say, where=where and f"{where}: accuracy.text")
        windows = windows_of(text, loaded.tokenizer, asked.cut)
    return Bench(asked, seed, loaded, text, windows, store, progress, folder)


def layers(errors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per module with a quantized linear operand: the dB of its weight and of its input,
    None for one that the recipe leaves alone."""
    found: dict[str, dict[str, Any]] = {}
    for row in errors:
        if row["operation"] == "linear" and row["operand"] in ("weight", "activation"):
            empty = {"path": row["path"], "weight_db": None, "activation_db": None}
            layer = found.setdefault(row["path"], empty)
            layer[f"{row['operand']}_db"] = row["sqnr_db"]
    return list(found.values())


def measured(result: dict[str, float | int]) -> Iterator[str]:
    """The names in an evaluation's result that come with a standard error."""
    return (name for name in result if f"{name}_se" in result)


def metrics(result: dict[str, float | int]) -> dict[str, Metric]:
    """An evaluation's plain numbers as metrics."""
    found = {
        name: Metric(value=float(result[name]), se=float(result[f"{name}_se"]))
        for name in measured(result)
    }
    quantiles = (name for name in QUANTILES if name in result)
    return found | {name: Metric(value=float(result[name])) for name in quantiles}


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
