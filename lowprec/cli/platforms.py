"""`lowprec compare-platforms`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowprec.cli.app import Context, Json, LevelName, Phase, Tokens
from lowprec.errors import LowprecError

app = typer.Typer()


@app.command("compare-platforms")
def compare_platforms(
    model: Annotated[
        str, typer.Argument(help="A model: shipped, a W.json of `lowprec trace`, or to trace.")
    ],
    machine: Annotated[list[str], typer.Option(help="A machine's name or .toml; repeatable.")],
    recipe: Annotated[
        list[str] | None,
        typer.Option(help="A recipe, or a name of the study's; repeatable [all of the study]."),
    ] = None,
    study: Annotated[
        Path | None, typer.Option(help="A study's folder, whose records say the accuracy.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences [1].")] = None,
    phase: Phase = None,
    tokens: Tokens = None,
    context: Context = None,
    level: LevelName = "kernel",
    parallel: Annotated[
        str | None, typer.Option(help="Layout over chips, such as tp=8 [the smallest that fits].")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the page here, too.")] = None,
    as_json: Json = False,
) -> None:
    """Accuracy, tokens per second, joule and dollar, memory and risks of recipes on machines."""
    from lowprec.cli.throughput import load_level
    from lowprec.cli.workloads import workloads_at
    from lowprec.perf import machine as load_machine
    from lowprec.proposal.evidence import load_evidence
    from lowprec.proposal.platforms import compare, named_recipes, page
    from lowprec.proposal.platforms.page import cells
    from lowprec.report.text import print_json, show_rows

    evidence = load_evidence(study) if study else None
    recipes = named_recipes(recipe or [], evidence)
    machines = list({name: load_machine(name) for name in machine}.values())
    (work,) = workloads_at(model, [batch] if batch else None, phase, tokens, context)
    rows = compare(
        work, recipes, machines, level=load_level(level), parallel=parallel, evidence=evidence
    )
    if html is not None:
        try:
            html.write_text(page(work, rows, evidence))
        except OSError as error:
            raise LowprecError(f"{html}: {error.strerror}") from None
    if as_json:
        print_json([row.to_json() for row in rows])
        return
    show_rows([cells(row) for row in rows], as_json=False)
    risks = [f"{row.machine.name}, {row.recipe}: {'; '.join(row.risks)}" for row in rows]
    print("\n".join(["", *(f"risk: {each}" for each in dict.fromkeys(risks))]))
