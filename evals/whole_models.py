"""Measure evals/studies/whole-models.toml on several models, and keep the records.

    python evals/whole_models.py [MODEL ...] [--runs runs] [--out evals/results/whole-models]

Each model's study runs in RUNS/whole-models-MODEL, resumes there, and has its report.html there.
Its accuracy records go to OUT/MODEL/RECIPE.json, and one table of all to OUT/README.md.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

import lowprec as lp
from lowprec.report.progress import for_terminal
from lowprec.report.tables import covered_share

STUDY = Path(__file__).parent / "studies" / "whole-models.toml"
RESULTS = Path(__file__).parent / "results" / "whole-models"
MODELS = ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b"]


def main(
    models: Annotated[list[str] | None, typer.Argument(help="Models [the shipped ones].")] = None,
    runs: Annotated[Path, typer.Option(help="Folder of the studies.")] = Path("runs"),
    out: Annotated[Path, typer.Option(help="Folder of the records.")] = RESULTS,
) -> None:
    """Measure every recipe on every model."""
    rows: dict[str, list[str]] = {}
    models = models or MODELS
    for model in models:
        folder = runs / f"whole-models-{Path(model).name}"
        result = lp.study(STUDY, folder, for_terminal(), model)
        kept = out / Path(model).name
        kept.mkdir(parents=True, exist_ok=True)
        for named, record in zip(result.study.recipes, result.records, strict=True):
            file = kept / f"{re.sub(r'[^a-z0-9]+', '-', named.name)}.json"
            file.write_text(json.dumps(record.to_json(), indent=1, sort_keys=True) + "\n")
            covered = covered_share(record.details["coverage"])
            kl, dnll = record.metrics["kl"], record.metrics["dnll"]
            rows.setdefault(named.name, []).append(
                f"{kl.value:.4f} ± {kl.se or 0:.4f} | {dnll.value:+.4f} | {covered:.0%}"
            )
    (out / "README.md").write_text(table(models, rows))


def table(models: list[str], rows: dict[str, list[str]]) -> str:
    """Markdown: a row per recipe, three columns per model."""
    heads = " | ".join(f"{model}: KL ± s.e. | ΔNLL | FLOP" for model in models)
    lines = [f"| recipe | {heads} |", "|---" * (1 + 3 * len(models)) + "|"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    return "\n".join(["# Whole models", "", *lines, ""])


if __name__ == "__main__":
    typer.run(main)
