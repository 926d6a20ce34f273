"""`lowprec eval` and `lowprec compare`: one recipe on one model, and records beside each other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowprec.cli.app import Json, RecipeText
from lowprec.errors import LowprecError

if TYPE_CHECKING:
    from lowprec.spec.record import Record

app = typer.Typer()

Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write the record as JSON.")]


@app.command(name="eval")
def evaluate(
    model: Annotated[
        str | None, typer.Argument(help="A shipped name, a folder, a .gguf file, a hub id.")
    ] = None,
    recipe: RecipeText | None = None,
    text: Annotated[
        str | None, typer.Option(help="A shipped text's name or a file [house-of-commons].")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="windows, gptq, c4, strided, llama.cpp or per-document [the text's]."),
    ] = None,
    length: Annotated[
        int | None, typer.Option(min=2, help="Tokens per window [the text's].")
    ] = None,
    stride: Annotated[int | None, typer.Option(min=1, help="Of strided [length / 2].")] = None,
    windows: Annotated[
        int | None, typer.Option(min=0, help="Windows that are scored; 0 for all [the text's].")
    ] = None,
    perplexity_only: Annotated[
        bool,
        typer.Option("--perplexity-only", help="No KL divergence, and 16 bytes per token on disk."),
    ] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="One block's weights in memory at a time.")
    ] = False,
    device_map: Annotated[
        str | None, typer.Option(help="accelerate's, for models beyond one device: auto, ...")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of a recipe that has random bits.")] = 1,
    generate: Annotated[
        int | None,
        typer.Option(min=1, help="Compare greedy continuations of so many tokens instead."),
    ] = None,
    prompts: Annotated[int, typer.Option(min=2, help="Documents that are continued.")] = 16,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Score tasks instead: names under evals/tasks or of lm-eval, .yaml files."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Items of each task [all].")] = None,
    shots: Annotated[
        int | None, typer.Option(min=0, help="Examples in front [the task's].")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences of a task at a time.")] = 1,
    against: Annotated[
        bool, typer.Option("--compare", help="Set published figures beside ours, or list them.")
    ] = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Measure one recipe on one model: differences to the unquantized run on the same tokens."""
    from lowprec.report.progress import for_terminal
    from lowprec.spec import load_recipe
    from lowprec.studies.single import asked_of, evaluate_generation, evaluate_one

    if against:
        given = {"protocol": protocol, "length": length, "stride": stride, "windows": windows}
        _compare_published(model, recipe, text, given, out, as_json)
        return
    if model is None or recipe is None:
        raise LowprecError("eval: expected a model and --recipe (or --compare)")
    chosen = load_recipe(recipe, "--recipe")
    text = text or "house-of-commons"
    if tasks is not None:
        from lowprec.studies.tasks import evaluate_tasks

        names = [name.strip() for name in tasks.split(",") if name.strip()]
        record = evaluate_tasks(
            model, chosen, names, for_terminal(), limit=limit, shots=shots, batch=batch
        )
        _show(record, out, as_json)
        return
    if generate is not None:
        record = evaluate_generation(model, text, chosen, generate, prompts, for_terminal())
        _show(record, out, as_json)
        return
    placed = {"stream": stream, "device_map": device_map, "perplexity_only": perplexity_only}
    asked = asked_of(model, text, protocol, length, stride, windows, seeds, **placed)
    _show(evaluate_one(asked, chosen, for_terminal()), out, as_json)


def _compare_published(
    model: str | None,
    recipe: str | None,
    text: str | None,
    given: dict[str, Any],
    out: Path | None,
    as_json: bool,
) -> None:
    """Published figures of `model`, or all; ours too where a recipe is named, under the protocol of
    the first figure of that recipe unless another is asked for. A model that cannot be had leaves
    the list alone, with the reason on standard error."""
    from lowprec.eval.published import beside, published
    from lowprec.report.progress import for_terminal
    from lowprec.report.text import show_rows
    from lowprec.spec import load_recipe
    from lowprec.spec.write import write_atomically
    from lowprec.studies.single import asked_of, evaluate_one
    from lowprec.studies.store import dump

    figures = [f for f in published() if model is None or f.is_of(model)]
    record = None
    if model is not None and recipe is not None:
        chosen = load_recipe(recipe, "--recipe")
        tables = [
            f.table
            for f in figures
            if f.recipe and f.table.protocol and load_recipe(f.recipe).spell() == chosen.spell()
        ]
        if tables and tables[0].protocol is not None:
            own = {"protocol": tables[0].protocol.kind, "length": tables[0].protocol.seqlen}
            own |= {"windows": 0}
            given = {k: own.get(k) if v is None else v for k, v in given.items()}
            text = text or tables[0].suite
        try:
            asked = asked_of(model, text or "house-of-commons", **given)
            record = evaluate_one(asked, chosen, for_terminal())
        except LowprecError as error:
            print(f"not measured: {error}", file=sys.stderr)
    if record is not None and out is not None:
        write_atomically(out, dump(record))
    if not figures:
        raise LowprecError(f"{model}: nothing published is known of it; see lowprec eval --compare")
    show_rows(beside(figures, record), as_json)


def _show(record: Record, out: Path | None, as_json: bool) -> None:
    from lowprec.report.text import print_json, show_rows
    from lowprec.spec.write import write_atomically
    from lowprec.studies.store import dump

    if out is not None:
        try:
            write_atomically(out, dump(record))
        except OSError as error:
            raise LowprecError(f"{out}: {error.strerror}") from None
    if as_json:
        print_json(record.to_json())
        return
    if record.kind == "tasks":
        show_rows(_task_rows(record), as_json=False)
        return
    show_rows([_row(name, record) for name in record.metrics], as_json=False)


def _task_rows(record: Record) -> list[dict[str, Any]]:
    """A line per task and metric: both scores, the paired change and who changed sides."""
    pairs = {f"{p['task']} {p['metric']}": p for p in record.details["pairs"]}
    rows = []
    for name, metric in record.metrics.items():
        if name.endswith((" base", " change")):
            continue
        change = record.metrics.get(f"{name} change")
        row = {"task": name.removesuffix(",none"), "score": metric.value}
        row |= {"unquantized": record.metrics[f"{name} base"].value}
        row |= {"change": change.value if change else "", "se": change.se if change else ""}
        pair = pairs.get(name)
        row |= {k: pair[k] if pair else "" for k in ("items", "lost", "gained")}
        rows.append(row | {"p (McNemar)": pair["p"] if pair else ""})
    return rows


def _row(name: str, record: Record) -> dict[str, Any]:
    metric = record.metrics[name]
    low, high = record.details.get("intervals", {}).get(name, ("", ""))
    iid = record.details.get("iid", {}).get(name, "")
    row = {"metric": name, "value": metric.value, "se": "" if metric.se is None else metric.se}
    return row | {"95 % from": low, "to": high, "se if i.i.d.": iid}


@app.command()
def compare(
    records: Annotated[
        list[Path], typer.Argument(help="Records of lowprec eval -o or of a study's cells folder.")
    ],
    metric: Annotated[str, typer.Option(help="dnll, kl or top1.")] = "kl",
    as_json: Json = False,
) -> None:
    """Set recipes measured on the same tokens beside the first one: paired differences, p-values
    corrected for their number, and the tokens that would tell each pair apart."""
    from lowprec.eval.power import compare_all
    from lowprec.report.text import show_rows
    from lowprec.studies.single import load_record

    if len(records) < 2:
        raise LowprecError("compare: expected two records or more")
    show_rows(compare_all([load_record(path) for path in records], metric), as_json)
