"""One accuracy cell without a study."""

from __future__ import annotations

import tempfile
from pathlib import Path

from lowprec.spec.recipe import Recipe
from lowprec.spec.record import Record
from lowprec.studies.accuracy import load_bench
from lowprec.studies.progress import Progress
from lowprec.studies.store import Store
from lowprec.studies.study import Accuracy, NamedRecipe


def evaluate_one(asked: Accuracy, recipe: Recipe, progress: Progress, seed: int = 0) -> Record:
    """The record that a study would hold for this recipe; nothing is kept on disk."""
    with tempfile.TemporaryDirectory(prefix="lowprec-") as folder:
        bench = load_bench(asked, seed, "", Store(Path(folder)), progress)
        bench.check(recipe, "recipe")
        return bench.measure(NamedRecipe(name=recipe.name, recipe=recipe))
