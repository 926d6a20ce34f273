"""The command line: one function per command, everything heavy imported inside it."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from lowprec.errors import LowprecError, did_you_mean

# Looking through every installed package for plugins takes longer than most commands.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowprec.perf import Estimate
    from lowprec.spec.workload import Workload


class _Commands(TyperGroup):
    """Answers an unknown command with the nearest one, and a reader that went away with silence."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            near = did_you_mean(args[0], self.list_commands(ctx))
            raise LowprecError(f"unknown command {args[0]!r}{near}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # As in `| head`: nothing more is written, at exit neither.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + signal.SIGPIPE
        return result


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Number formats: what they cost in accuracy and what they buy in throughput.",
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RecipeText = Annotated[
    str, typer.Option("--recipe", help="A .toml file, a shipped name, or the text of a recipe.")
]


def main() -> None:
    """The console script. Exit codes: 0 fine, 1 a check failed, 2 bad input, 130 interrupted."""
    # transformers imports torchao where there is one, which warns of parts that it lacks.
    for library in ("torchao", "torch.utils._pytree"):
        logging.getLogger(library).setLevel(logging.ERROR)
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False) or 0
    except LowprecError as error:
        code = _fail(str(error))
    except typer.TyperException as error:
        code = _fail(error.format_message())
    except (KeyboardInterrupt, typer.Abort):
        code = 128 + signal.SIGINT
    sys.exit(code)


def _fail(message: str) -> int:
    line = " ".join(message.split())
    print(f"lowprec: error: {line}", file=sys.stderr)
    return 2


@app.command()
def formats(
    name: Annotated[str | None, typer.Argument(help="One format, by name or .toml file.")] = None,
    as_json: Json = False,
) -> None:
    """List the formats, or show one: layout, derived limits and, to 8 bits, every value."""
    from lowprec.report.describe import describe, format_row
    from lowprec.report.text import plain, print_columns, print_json, show_rows
    from lowprec.spec import list_formats, load_format
    from lowprec.spec.families import family_names

    if name is None:
        rows = [format_row(load_format(each)) for each in list_formats()]
        show_rows(rows, as_json)
        if not as_json:
            print("\nand by name, without a file:")
            for pattern, what in family_names():
                print(f"  {pattern:34} {what}")
        return
    found = load_format(name)
    described = describe(found)
    if as_json:
        print_json(described)
        return
    values = described.pop("values", [])
    for key, value in described.items():
        print(f"{key:17} {plain(value)}")
    if values:
        print("\nvalues by code point")
        digits = max(len(code) for code, _ in values)
        cells = [f"{code:>{digits}} {plain(value)}" for code, value in values]
        print_columns(cells)


@app.command()
def check(
    files: Annotated[
        list[Path], typer.Argument(help="TOML files: formats, recipes, studies, machines.")
    ],
    as_json: Json = False,
) -> None:
    """Validate files; of a format, test its facts and every answer of the kernels against the
    oracle. Exit code 1 on a difference."""
    from lowprec.report.progress import SilentProgress, for_terminal
    from lowprec.report.text import print_json

    progress = for_terminal() if sys.stderr.isatty() else SilentProgress()
    results = []
    for path in files:
        with progress.task(str(path)) as update:
            results.append(_check(path, update))
    if as_json:
        print_json(results)
    else:
        for result in results:
            print(_verdict(result))
            for problem in result["problems"]:
                print(f"  {problem}")
    if any(result["problems"] for result in results):
        raise typer.Exit(1)


def _verdict(result: dict[str, Any]) -> str:
    line = f"{result['file']}: {result['kind']} {'fails' if result['problems'] else 'passes'}"
    if "compared" in result:
        counts = f"{result['compared']:,} answers of the kernels, {result['differing']:,}"
        line += f": {result['facts']} facts, {counts} differ from the oracle's"
    return line


def _check(path: Path, update: Callable[[int, int], None]) -> dict[str, Any]:
    from lowprec.spec import load_recipe, read_toml

    data = read_toml(path)
    if "rules" in data:
        kind = "recipe"
        load_recipe(path)
    elif "accuracy" in data or "throughput" in data or "recipes" in data:
        kind = "study"
        from lowprec.studies.study import load_study
        from lowprec.studies.throughput import load_machines

        load_machines(load_study(path), str(path))
    elif "datapaths" in data or "memory" in data:
        kind = "machine"
        from lowprec.perf import machine

        machine(path)
    else:
        return _check_format(path, update)
    return {"file": str(path), "kind": kind, "problems": []}


def _check_format(path: Path, update: Callable[[int, int], None]) -> dict[str, Any]:
    from lowprec.eval.conformance import conform
    from lowprec.exact.check import check_facts, conformance
    from lowprec.spec import load_facts, load_format

    fmt, facts = load_format(path), load_facts(path)
    problems = check_facts(fmt, facts) + conformance(fmt)
    found = conform(fmt, update)
    return {
        "file": str(path),
        "kind": "format",
        "problems": [*problems, *found.problems],
        "facts": facts.count,
        "compared": found.compared,
        "differing": found.differing,
    }


@app.command()
def study(
    file: Annotated[Path, typer.Argument(help="The study's TOML file.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the results [runs/NAME].")] = None,
    model: Annotated[
        str | None, typer.Option(help="Measure the recipes on this model instead of the file's.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The main job: accuracy and throughput of every cell, a table, and report.html."""
    from lowprec.report.progress import for_terminal
    from lowprec.report.text import print_json
    from lowprec.studies import study as run
    from lowprec.studies.summary import rows

    result = run(file, out, for_terminal(), model)
    found = rows(result.report)
    if as_json:
        shown = dict(zip(("model", "machine", "workload"), result.report.shown or (), strict=False))
        print_json({"rows": found, "shown": shown, "report": str(result.page)})
        return
    _study_table(found, result.report.shown)
    print(f"{len(result.records)} cells, {result.computed} of them new")
    print(f"report: {result.page.resolve()}")


def _study_table(rows: list[dict[str, Any]], shown: tuple[str, str, str] | None) -> None:
    from lowprec.report.text import engineering, show_rows

    lines = []
    for row in rows:
        bits = [f"{b:g}" if b is not None else "-" for b in row["bits"]]
        line = {"recipe": row["recipe"], "bits W/A": "/".join(bits)}
        if "kl" in row:
            line |= {
                "ΔNLL (95 %)": _interval(row["dnll"], "+.4f"),
                "KL (95 %)": _interval(row["kl"], ".4f"),
                "top-1": f"{row['top1']['value']:.3f}",
                "ppl": f"{row['ppl']['value']:.2f}",
            }
        lines.append(line | {m: engineering(v) for m, v in row["tokens_per_second"].items()})
    show_rows(lines, as_json=False)
    if shown:
        print(f"tokens/s per chip: modelled for {shown[0]}, {shown[2]}")


def _interval(metric: dict[str, Any], form: str) -> str:
    low, high = metric["interval"]
    return f"{metric['value']:{form}} ± {(high - low) / 2:.4f}"


@app.command(name="eval")
def evaluate(
    model: Annotated[str, typer.Argument(help="A shipped name, a folder, a .gguf file, a hub id.")],
    recipe: RecipeText,
    text: Annotated[
        str, typer.Option(help="A shipped text's name or a file.")
    ] = "house-of-commons",
    windows: Annotated[int, typer.Option(min=2, help="Windows that are scored.")] = 8,
    length: Annotated[int, typer.Option(min=2, help="Tokens per window.")] = 512,
    as_json: Json = False,
) -> None:
    """Measure one recipe on one model: differences to the unquantized run on the same tokens."""
    from lowprec.report.progress import for_terminal
    from lowprec.report.text import print_json, show_rows
    from lowprec.spec import load_recipe
    from lowprec.studies.single import evaluate_one
    from lowprec.studies.study import Accuracy

    asked = Accuracy(model=model, text=text, length=length, windows=windows)
    record = evaluate_one(asked, load_recipe(recipe, "--recipe"), for_terminal())
    if as_json:
        print_json(record.to_json())
        return
    rows = []
    for name, metric in record.metrics.items():
        low, high = record.details["intervals"].get(name, ("", ""))
        row = {"metric": name, "value": metric.value, "se": "" if metric.se is None else metric.se}
        rows.append(row | {"95 % from": low, "to": high})
    show_rows(rows, as_json=False)


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
