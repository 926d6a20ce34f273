"""One accuracy cell without a study."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lowprec.errors import LowprecError
from lowprec.eval import LoadedModel, Protocol, load_model, load_suite, load_text, windows_of
from lowprec.eval.generation import agreement, continuations, prompts_of
from lowprec.nn import unwrap, wrap
from lowprec.nn.wrap import check, recipe_of
from lowprec.report.progress import Progress, for_terminal
from lowprec.spec.load import build
from lowprec.spec.recipe import Recipe
from lowprec.spec.record import Metric, Record
from lowprec.spec.text import load_recipe
from lowprec.studies.accuracy import Bench, environment, load_bench
from lowprec.studies.code import ACCURACY, code_digest
from lowprec.studies.recipes import format_digests
from lowprec.studies.store import Store, parse
from lowprec.studies.study import Accuracy, NamedRecipe

# Of a prompt whose continuations are compared.
PROMPT_TOKENS = 64


def evaluate(
    model: str | nn.Module,
    recipe: Recipe | Mapping[str, Any] | str | Path | None = None,
    *,
    tokenizer: Any = None,
    suite: str = "house-of-commons",
    length: int | None = None,
    windows: int | None = None,
    protocol: str | None = None,
    stride: int | None = None,
    seed: int = 0,
) -> Record:
    """The accuracy of `model` under `recipe`, as differences to its unquantized run in float32 on
    the same `windows` windows of `length` tokens: the record that a study would hold.

    protocol, length, stride, windows: see `lowprec.eval.Protocol`; what is not given is as the
    suite says, and 0 windows are all of them.

    model: a shipped name, a folder or a hub id; or a transformers model in memory with its
    `tokenizer`, whose recipe, if it is wrapped, need not be given, and which is left as it was.
    LowprecError: no recipe, no tokenizer, an unknown suite, a text that is too short.
    """
    progress = for_terminal()
    if isinstance(model, str):
        if recipe is None:
            raise LowprecError(f"evaluate {model!r}: expected a recipe")
        asked = asked_of(model, suite, protocol, length, stride, windows)
        return evaluate_one(asked, load_recipe(recipe), progress, seed)
    asked = asked_of(type(model).__name__, suite, protocol, length, stride, windows)
    found = recipe_of(model)
    if tokenizer is None or (recipe is None and found is None):
        raise LowprecError("evaluate a model in memory: expected its tokenizer=, and a recipe")
    chosen = load_recipe(recipe) if recipe is not None else found
    assert chosen is not None
    unwrap(model)
    try:
        text = load_text(suite, say=progress.say, where="")
        loaded = LoadedModel(model.eval(), tokenizer, asked.model, _digest(model))
        cells = windows_of(text, tokenizer, asked.cut)
        with tempfile.TemporaryDirectory(prefix="lowprec-") as folder:
            bench = Bench(asked, seed, loaded, text, cells, Store(Path(folder)), progress)
            return _measured(bench, chosen)
    finally:
        if found is not None:
            wrap(model, found)


def load_record(path: Path) -> Record:
    """The record in a file that `dump` wrote; LowprecError for any other."""
    try:
        return parse(path.read_text())
    except (OSError, ValueError) as error:
        raise LowprecError(f"{path}: no record ({str(error).splitlines()[0]})") from None


def asked_of(
    model: str,
    text: str,
    protocol: str | None = None,
    length: int | None = None,
    stride: int | None = None,
    windows: int | None = None,
    seeds: int = 1,
    **options: Any,
) -> Accuracy:
    """What is asked; None stands for what the text's own suite says, 0 windows for all of them.
    options: the other fields of `Accuracy`."""
    local = "/" in text or (Path(text).suffix and not text.endswith(".toml"))
    own = Protocol(windows=8) if local else load_suite(text).protocol
    kind = protocol or own.kind
    if windows is None:
        windows = own.windows
    table = {
        "model": model,
        "text": text,
        "length": length or own.seqlen,
        "windows": windows or None,
        "protocol": kind,
        "seeds": seeds,
        **options,
        "stride": stride or (own.stride if kind == own.kind else None),
    }
    return build(Accuracy, table, "eval")


def evaluate_one(asked: Accuracy, recipe: Recipe, progress: Progress, seed: int = 0) -> Record:
    """The record that a study would hold for this recipe; nothing is kept on disk."""
    with tempfile.TemporaryDirectory(prefix="lowprec-") as folder:
        return _measured(load_bench(asked, seed, "", Store(Path(folder)), progress), recipe)


def _measured(bench: Bench, recipe: Recipe) -> Record:
    bench.check(recipe, "recipe")
    bench.progress.say(bench.announcement)
    return bench.measure(NamedRecipe(name=recipe.name, recipe=recipe))


def _digest(model: nn.Module) -> str:
    """SHA-256 (hex) over names, types and bits of all parameters and buffers."""
    found = sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def evaluate_generation(
    model: str, text: str, recipe: Recipe, tokens: int, prompts: int, progress: Progress
) -> Record:
    """How far greedy continuations of `tokens` tokens under `recipe` follow those without it:
    `lowprec.eval.generation.Agreement`, over the first 64 tokens of `prompts` documents."""
    loaded, source = load_model(model, say=progress.say), load_text(text, say=progress.say)
    check(loaded.model, recipe, "recipe")
    if recipe.needs_calibration:
        raise LowprecError(f"{recipe.name}: generation has no text to calibrate on")
    asked = prompts_of(source, loaded.tokenizer, prompts, PROMPT_TOKENS)
    with progress.task("unquantized model") as update:
        base = continuations(loaded.model, asked, tokens, update)
    try:
        with progress.task(recipe.name) as update:
            said = continuations(wrap(loaded.model, recipe), asked, tokens, update)
    finally:
        unwrap(loaded.model)
    found = agreement(base, said)
    estimates = {"exact": found.exact, "agreeing": found.agreeing}
    median = float(np.median(found.divergence))
    return Record(
        kind="generation",
        subject={
            "model": {"name": loaded.name, "digest": loaded.digest},
            "text": {"name": source.name, "digest": source.digest},
            "protocol": {"tokens": tokens, "prompts": prompts, "prompt_tokens": PROMPT_TOKENS},
            "recipe": recipe.spell(),
            "formats": format_digests(recipe),
            "code": code_digest(ACCURACY),
        },
        metrics={name: Metric(value=e.value, se=e.se) for name, e in estimates.items()}
        | {"divergence_median": Metric(value=median)},
        details={
            "intervals": {name: [e.low, e.high] for name, e in estimates.items()},
            "divergence": list(found.divergence),
        },
        environment=environment(),
    )
