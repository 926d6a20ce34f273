"""`lowprec formats` and `lowprec check`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowprec.cli.app import Json

if TYPE_CHECKING:
    from collections.abc import Callable


app = typer.Typer()


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
