"""Train a small language model under training recipes, and compare them with a baseline.

    python evals/pretrain.py --recipes bf16,mxfp8,nvfp4 --seeds 3 --out runs/pretrain

Killed and started again, it goes on where it was. Every run leaves a JSON record in the folder, and
all of them together summary.json, curves.html and curves.png.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from lowprec.errors import LowprecError
from lowprec.report.progress import Progress, for_terminal

Sizes = typer.Option(rich_help_panel="Model and training")


def main(
    recipes: Annotated[
        str, typer.Option(help="Names under evals/recipes/train or .toml files, with commas.")
    ] = "bf16,mxfp8,nvfp4",
    seeds: Annotated[int, typer.Option(help="Runs of each recipe, seeds 0, 1, ...", min=1)] = 2,
    out: Annotated[Path, typer.Option(help="Folder of records and checkpoints.")] = Path(
        "runs/pretrain"
    ),
    text: Annotated[
        str, typer.Option(help="A suite's name, or a UTF-8 text file.")
    ] = "house-of-commons",
    baseline: Annotated[str, typer.Option(help="The recipe to compare with.")] = "bf16",
    threads: Annotated[
        int | None, typer.Option(help="Of torch; they may change last bits.")
    ] = None,
    keep: Annotated[bool, typer.Option(help="Keep the checkpoints of finished runs.")] = False,
    layers: Annotated[int | None, Sizes] = None,
    hidden: Annotated[int | None, Sizes] = None,
    intermediate: Annotated[int | None, Sizes] = None,
    heads: Annotated[int | None, Sizes] = None,
    seqlen: Annotated[int | None, Sizes] = None,
    batch: Annotated[int | None, Sizes] = None,
    steps: Annotated[int | None, Sizes] = None,
    warmup: Annotated[int | None, Sizes] = None,
    lr: Annotated[float | None, Sizes] = None,
    every: Annotated[int | None, typer.Option(help="Steps between scores and checkpoints.")] = None,
    windows: Annotated[int | None, typer.Option(help="Held-out windows that are scored.")] = None,
) -> None:
    """Train a small model of bytes under each recipe and seed, with the same data in the same
    order, and say how far each recipe's loss lies from the baseline's."""
    given = dict(locals())
    try:
        from lowprec.eval.training import Plan

        given = {k: given[k] for k in Plan.model_fields if given[k] is not None}
        run(recipes.split(","), seeds, out, text, baseline, threads, keep, given)
    except LowprecError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


def run(
    names: list[str],
    seeds: int,
    out: Path,
    text: str,
    baseline: str,
    threads: int | None,
    keep: bool,
    sizes: dict[str, Any],
) -> None:
    import torch

    from lowprec.eval.data import load_text
    from lowprec.eval.training import Corpus, Plan
    from lowprec.eval.training_recipe import load_training_recipe
    from lowprec.eval.training_runs import finish, write_summary
    from lowprec.spec.load import build

    if threads is not None:
        torch.set_num_threads(threads)
    plan = build(Plan, sizes, "pretrain")
    recipes = [load_training_recipe(name) for name in names]
    if baseline not in [recipe.name for recipe in recipes]:
        recipes.insert(0, load_training_recipe(baseline))
    corpus = Corpus.of(load_text(text), plan)
    progress = for_terminal()
    records = [
        finish(plan, recipe, corpus, seed, out, keep, _task(progress, recipe.name, seed))
        for seed in range(seeds)
        for recipe in recipes
    ]
    rows = write_summary(records, baseline, out)
    _print(rows, baseline)


def _task(progress: Progress, name: str, seed: int) -> Any:
    return lambda: progress.task(f"{name}, seed {seed}")


def _print(rows: list[Any], baseline: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Held-out loss after the last step, nats per byte")
    for column in ("recipe", "seeds", "loss", f"difference to {baseline}", "95 % interval"):
        table.add_column(column, justify="left" if column == "recipe" else "right")
    for row in rows:
        loss = f"diverged in {row.diverged}" if row.nll is None else f"{row.nll:.4f}"
        difference = "" if row.difference is None else f"{row.difference:+.4f}"
        ends = "" if row.interval is None else "{:+.4f} to {:+.4f}".format(*row.interval)
        table.add_row(row.recipe, str(len(row.seeds)), loss, difference, ends)
    if sys.stdout.isatty():
        Console().print(table)
    else:
        print(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    typer.run(main)
