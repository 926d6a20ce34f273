"""`lowprec trace` and `lowprec perf`: the throughput half."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from lowprec.cli.app import Context, Json, LevelName, Phase, RecipeText, Tokens
from lowprec.cli.workloads import traced, workloads_at
from lowprec.errors import LowprecError

if TYPE_CHECKING:
    from lowprec.perf import Estimate
    from lowprec.perf.price import Level
    from lowprec.spec.workload import Workload


app = typer.Typer()


@app.command()
def trace(
    model: Annotated[
        str, typer.Argument(help="A shipped name, a config.json, a folder, a hub id.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the workload goes.")],
    batch: Annotated[int, typer.Option(min=1, help="Sequences.")] = 1,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens per sequence.")] = 1,
    context: Annotated[int, typer.Option(min=0, help="Cached tokens per sequence.")] = 2048,
    as_json: Json = False,
) -> None:
    """Record a model's operations, without its weights where a configuration is given."""
    from lowprec.report.text import show_rows

    workload = traced(model, batch, tokens, context)
    try:
        output.write_text(workload.model_dump_json(indent=1, exclude_defaults=True) + "\n")
    except OSError as error:
        raise LowprecError(f"{output}: {error.strerror}") from None
    row = {
        "model": workload.model,
        "phase": workload.phase,
        "operations": len(workload.ops),
        "flops": workload.flops,
        "file": str(output),
    }
    show_rows([row], as_json)


@app.command()
def perf(
    model: Annotated[
        str, typer.Argument(help="A model: shipped, a W.json of `lowprec trace`, or to trace.")
    ],
    recipe: RecipeText,
    machine: Annotated[list[str], typer.Option(help="A machine's name or .toml; repeatable.")],
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Sequences; repeatable [1].")
    ] = None,
    phase: Phase = None,
    tokens: Tokens = None,
    context: Context = None,
    level: LevelName = "kernel",
    parallel: Annotated[
        str | None,
        typer.Option(help="Layout over chips, such as tp=8,ep=8; see docs/throughput.md."),
    ] = None,
    system: Annotated[
        str | None, typer.Option(help="The system whose links the chips use [the machine's own].")
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(help="memory.bandwidth=4e12:16e12:x2, :+STEP or A,B,C; repeatable."),
    ] = None,
    against: Annotated[
        list[str] | None, typer.Option(help="Another recipe in the sweep; repeatable.")
    ] = None,
    elasticities: Annotated[
        bool, typer.Option("--elasticities", help="Print what 10 % better buys.")
    ] = False,
    terms: Annotated[bool, typer.Option("--terms", help="Print every operation's time.")] = False,
    as_json: Json = False,
) -> None:
    """Price a recipe on machines. A W.json without options: the pass that it was recorded from."""
    from lowprec.perf import estimate
    from lowprec.perf import machine as load_machine
    from lowprec.report.text import print_json, show_rows
    from lowprec.spec import load_recipe

    if terms and (sweep or elasticities or against):
        raise LowprecError("--terms: expected without --sweep, --against and --elasticities")
    loaded, chosen = load_recipe(recipe, "--recipe"), [load_machine(name) for name in machine]
    workloads = workloads_at(model, batch, phase, tokens, context)
    if sweep or elasticities or against:
        from lowprec.cli.sweeps import show_elasticities, show_sweep

        recipes = [recipe, *(against or [])]
        options = {"level": load_level(level), "parallel": parallel, "system": system}
        if sweep or not elasticities:
            show_sweep(
                workloads,
                recipes,
                chosen,
                sweep or [],
                options,
                elasticities=elasticities,
                as_json=as_json,
            )
        else:
            show_elasticities(workloads, recipes, chosen, options, as_json=as_json)
        return
    found = [
        (w, estimate(w, loaded, each, level=load_level(level), parallel=parallel, system=system))
        for w in workloads
        for each in chosen
    ]
    if as_json:
        print_json([e.to_json() | {"batch": w.batch} for w, e in found])
        return
    show_rows([_estimate_row(w, e) for w, e in found], as_json=False)
    for _, each in found if terms else ():
        print(f"\n{each.machine}")
        show_rows([_term_row(term) for term in each.terms], as_json=False)
    for note in dict.fromkeys(note for _, each in found for note in each.notes):
        print(f"note: {note}")


def load_level(name: str) -> Level:
    from lowprec.errors import unknown
    from lowprec.perf.price import Level

    if name not in get_args(Level):
        raise unknown("level", name, get_args(Level), "--level")
    return cast("Level", name)


def _estimate_row(workload: Workload, found: Estimate) -> dict[str, Any]:
    from lowprec.report.text import engineering

    interval = {}
    if found.level != "bound":
        ends = f"{found.low * 1e3:.4g} to {found.high * 1e3:.4g}"
        interval = {"90 %": ends, "calibration": found.calibration}
    return {
        "machine": found.machine,
        "phase": found.phase,
        "batch": workload.batch,
        "tokens/s/chip": engineering(found.tokens_per_second_per_chip),
        "ms": f"{found.seconds * 1e3:.4g}",
        **interval,
        "chips": found.chips,
        "bound": found.bound,
        "share": f"{found.shares[found.bound]:.0%}",
    }


def _term_row(term: Any) -> dict[str, Any]:
    return {
        "operation": term.path,
        "count": term.count,
        "us": f"{term.seconds * 1e6:.4g}",
        "binding": term.binding,
        "datapath": term.datapath or "",
        "reason": term.reason,
    }
