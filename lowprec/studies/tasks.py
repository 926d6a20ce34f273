"""Task cells: a recipe's answers to the items of tasks, paired with the unquantized model's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np

from lowprec.errors import LowprecError
from lowprec.eval import LoadedModel, load_model
from lowprec.eval.power import announcement_of_items
from lowprec.eval.significance import mcnemar
from lowprec.eval.tasks import Tasks, TaskScores, check_tasks, prepare, run_tasks
from lowprec.nn import unwrap, wrap
from lowprec.nn.wrap import check
from lowprec.report.progress import Progress
from lowprec.spec.recipe import Recipe
from lowprec.spec.record import Metric, Record
from lowprec.studies.accuracy import environment
from lowprec.studies.code import ACCURACY, code_digest
from lowprec.studies.recipes import format_digests


def evaluate_tasks(
    model: str,
    recipe: Recipe,
    tasks: Sequence[str],
    progress: Progress,
    *,
    limit: int | None = None,
    shots: int | None = None,
    batch: int = 1,
) -> Record:
    """Scores of `model` under `recipe` and without it on the first `limit` items of each task, and
    their paired differences; see `lowprec.eval.tasks`."""
    loaded, ready = load_model(model, say=progress.say), prepare(tasks, progress.say)
    check_tasks(ready, loaded.tokenizer)
    if recipe.needs_calibration:
        raise LowprecError(f"{recipe.name}: tasks have no text to calibrate on")
    check(loaded.model, recipe, "recipe")
    options = {"limit": limit, "shots": shots, "batch": batch}
    with progress.task("unquantized model"):
        base = run_tasks(loaded.model, loaded.tokenizer, ready, **options)
    progress.say(announcement_of_items(base.counts))
    try:
        wrapped = wrap(loaded.model, recipe)
        with progress.task(recipe.name):
            other = run_tasks(wrapped, loaded.tokenizer, ready, **options)
    finally:
        unwrap(loaded.model)
    return record_of(task_subject(loaded, recipe, ready, options), base, other)


def task_subject(
    loaded: LoadedModel, recipe: Recipe, tasks: Tasks, options: dict[str, Any]
) -> dict[str, Any]:
    """All that determines a task cell of a recipe that needs no calibration; see `Record`."""
    return {
        "model": {"name": loaded.name, "digest": loaded.digest},
        "recipe": recipe.spell(),
        "formats": format_digests(recipe),
        "tasks": {name: tasks.data.get(name) for name in tasks.names},
        "protocol": options,
        "code": code_digest(ACCURACY),
    }


def record_of(subject: dict[str, Any], base: TaskScores, other: TaskScores) -> Record:
    """The record of a run under a recipe, `other`, paired with the unquantized model's, `base`."""
    if base.documents != other.documents:
        raise LowprecError("tasks: the two runs saw different items")
    return Record(
        kind="tasks",
        subject=subject,
        metrics=_metrics(base, other),
        details={
            "pairs": _pairs(base, other),
            "items": {"base": base.items, "recipe": other.items},
            "documents": base.documents,
        },
        environment=environment() | {"lm_eval": version("lm_eval")},
    )


def _metrics(base: TaskScores, other: TaskScores) -> dict[str, Metric]:
    """By ``task metric,filter``: the recipe's score, the unquantized model's behind ``base``, and
    the paired change where a score is a mean over items."""
    found: dict[str, Metric] = {}
    for task, scores in other.scores.items():
        for metric, score in scores.items():
            name = f"{task} {metric}"
            found[name] = Metric(value=score)
            found[f"{name} base"] = Metric(value=base.scores[task][metric])
            x = _numbers(other.items[task].get(metric, []))
            y = _numbers(base.items[task].get(metric, []))
            # A perplexity is no mean of its items.
            if x is None or y is None or not np.isclose(x.mean(), score):
                continue
            d = x - y
            se = float(d.std(ddof=1)) / d.size**0.5 if d.size > 1 else None
            found[f"{name} change"] = Metric(value=float(d.mean()), se=se)
    return found


def _numbers(values: list[Any]) -> np.ndarray | None:
    if not values or not all(isinstance(v, float) for v in values):
        return None
    return np.array(values)


def _pairs(base: TaskScores, other: TaskScores) -> list[dict[str, Any]]:
    """McNemar's test for each metric that is right or wrong of every item."""
    found = []
    for task, columns in other.items.items():
        for metric, after in columns.items():
            before = base.items[task][metric]
            binary = _numbers(after) is not None and {*before, *after} <= {0.0, 1.0}
            if binary:
                found.append({"task": task, "metric": metric} | asdict(mcnemar(before, after)))
    return found
