"""`lowprec trace` and `lowprec perf`: the throughput half."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowprec.cli.app import Json, RecipeText
from lowprec.errors import LowprecError

if TYPE_CHECKING:
    from lowprec.perf import Estimate
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

    workload = _trace(model, batch, tokens, context)
    try:
        output.write_text(workload.model_dump_json(indent=1) + "\n")
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


def _trace(model: str, batch: int, tokens: int, context: int) -> Workload:
    from lowprec.studies.shapes import load_shape
    from lowprec.studies.throughput import Job, tracer

    shape = load_shape(model, lambda message: print(message, file=sys.stderr))
    phase = "decode" if tokens == 1 and context else "prefill"
    return tracer(shape)(Job(phase, batch, tokens, context))


@app.command()
def perf(
    model: Annotated[str, typer.Argument(help="A W.json of `lowprec trace`, or a model to trace.")],
    recipe: RecipeText,
    machine: Annotated[list[str], typer.Option(help="A machine's name or .toml; repeatable.")],
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Sequences; repeatable [1].")
    ] = None,
    phase: Annotated[str | None, typer.Option(help="prefill or decode [decode].")] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Prompt length of a prefill [2048].")
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=0, help="Cached tokens of a decode [2048].")
    ] = None,
    terms: Annotated[bool, typer.Option("--terms", help="Print every operation's time.")] = False,
    as_json: Json = False,
) -> None:
    """Price a recipe on machines. A W.json fixes batch, phase, tokens and context itself."""
    from lowprec.perf import estimate
    from lowprec.perf import machine as load_machine
    from lowprec.report.text import print_json, show_rows
    from lowprec.spec import load_recipe

    loaded, chosen = load_recipe(recipe, "--recipe"), [load_machine(name) for name in machine]
    workloads = _workloads(model, batch, phase, tokens, context)
    found = [(w, estimate(w, loaded, each)) for w in workloads for each in chosen]
    if as_json:
        print_json([e.to_json() | {"batch": w.batch} for w, e in found])
        return
    show_rows([_estimate_row(w, e) for w, e in found], as_json=False)
    for _, each in found if terms else ():
        print(f"\n{each.machine}")
        show_rows([_term_row(term) for term in each.terms], as_json=False)
    for note in dict.fromkeys(note for _, each in found for note in each.notes):
        print(f"note: {note}")


def _workloads(
    model: str,
    batch: list[int] | None,
    phase: str | None,
    tokens: int | None,
    context: int | None,
) -> list[Workload]:
    if phase not in (None, "prefill", "decode"):
        raise LowprecError(f"--phase: expected prefill or decode, got {phase!r}")
    path = Path(model)
    recorded = _recorded(path) if path.suffix == ".json" else None
    if recorded is not None:
        options = {"--batch": batch, "--phase": phase, "--tokens": tokens, "--context": context}
        for option, value in options.items():
            if value:
                raise LowprecError(f"{option}: {model} is a recorded workload with its own")
        return [recorded]
    prefill = phase == "prefill"
    new = tokens or (2048 if prefill else 1)
    behind = context if context is not None else (0 if prefill else 2048)
    return [_trace(model, each, new, behind) for each in batch or [1]]


def _recorded(path: Path) -> Workload | None:
    """The workload in a file, or None if it is a transformers configuration."""
    from pydantic import ValidationError

    from lowprec.spec import Workload

    try:
        text = path.read_text()
        data = json.loads(text)
    except (OSError, ValueError) as error:
        raise LowprecError(f"{path}: {error}") from None
    if isinstance(data, dict) and "model_type" in data:
        return None
    try:
        return Workload.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise LowprecError(f"{path}: {key}: {first['msg']}; expected a recorded workload") from None


def _estimate_row(workload: Workload, found: Estimate) -> dict[str, Any]:
    from lowprec.report.text import engineering

    return {
        "machine": found.machine,
        "phase": found.phase,
        "batch": workload.batch,
        "tokens/s/chip": engineering(found.tokens_per_second_per_chip),
        "ms": f"{found.seconds * 1e3:.4g}",
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
