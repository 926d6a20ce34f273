"""One accuracy cell without a study."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lowprec.errors import LowprecError
from lowprec.eval import LoadedModel, cut, load_text
from lowprec.nn import unwrap, wrap
from lowprec.nn.wrap import recipe_of
from lowprec.report.progress import Progress, for_terminal
from lowprec.spec.recipe import Recipe
from lowprec.spec.record import Record
from lowprec.spec.text import load_recipe
from lowprec.studies.accuracy import Bench, load_bench
from lowprec.studies.store import Store
from lowprec.studies.study import Accuracy, NamedRecipe


def evaluate(
    model: str | nn.Module,
    recipe: Recipe | Mapping[str, Any] | str | Path | None = None,
    *,
    tokenizer: Any = None,
    suite: str = "house-of-commons",
    length: int = 512,
    windows: int = 8,
    seed: int = 0,
) -> Record:
    """The accuracy of `model` under `recipe`, as differences to its unquantized run in float32 on
    the same `windows` windows of `length` tokens: the record that a study would hold.

    model: a shipped name, a folder or a hub id; or a transformers model in memory with its
    `tokenizer`, whose recipe, if it is wrapped, need not be given, and which is left as it was.
    LowprecError: no recipe, no tokenizer, an unknown suite, a text that is too short.
    """
    progress = for_terminal()
    if isinstance(model, str):
        if recipe is None:
            raise LowprecError(f"evaluate {model!r}: expected a recipe")
        asked = Accuracy(model=model, text=suite, length=length, windows=windows)
        return evaluate_one(asked, load_recipe(recipe), progress, seed)
    asked = Accuracy(model=type(model).__name__, text=suite, length=length, windows=windows)
    found = recipe_of(model)
    if tokenizer is None or (recipe is None and found is None):
        raise LowprecError("evaluate a model in memory: expected its tokenizer=, and a recipe")
    chosen = load_recipe(recipe) if recipe is not None else found
    assert chosen is not None
    unwrap(model)
    try:
        text = load_text(suite, say=progress.say, where="")
        loaded = LoadedModel(model.eval(), tokenizer, asked.model, _digest(model))
        cells = cut(text, tokenizer, length, windows)
        with tempfile.TemporaryDirectory(prefix="lowprec-") as folder:
            bench = Bench(asked, seed, loaded, text, cells, Store(Path(folder)), progress)
            return _measured(bench, chosen)
    finally:
        if found is not None:
            wrap(model, found)


def evaluate_one(asked: Accuracy, recipe: Recipe, progress: Progress, seed: int = 0) -> Record:
    """The record that a study would hold for this recipe; nothing is kept on disk."""
    with tempfile.TemporaryDirectory(prefix="lowprec-") as folder:
        return _measured(load_bench(asked, seed, "", Store(Path(folder)), progress), recipe)


def _measured(bench: Bench, recipe: Recipe) -> Record:
    bench.check(recipe, "recipe")
    return bench.measure(NamedRecipe(name=recipe.name, recipe=recipe))


def _digest(model: nn.Module) -> str:
    """SHA-256 (hex) over names, types and bits of all parameters and buffers."""
    found = sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
