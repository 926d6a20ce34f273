"""`lowprec results`, `lowprec search` and `lowprec sensitivity`: what studies found, and which
formats to use where."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lowprec.cli.app import Json, Ray, Threads, Workers

app = typer.Typer()
Out = Annotated[Path | None, typer.Option(help="Folder of the results [runs/NAME].")]


@app.command()
def search(
    file: Annotated[Path, typer.Argument(help="The search's TOML file.")],
    out: Out = None,
    workers: Workers = None,
    threads: Threads = None,
    ray: Ray = None,
    as_json: Json = False,
) -> None:
    """Mixed-precision assignments and formats under a budget, against uniform and random ones."""
    from lowprec.report.progress import for_terminal
    from lowprec.report.text import print_json, show_rows
    from lowprec.spec.write import write_atomically
    from lowprec.studies import Executor
    from lowprec.studies.plan import load_search
    from lowprec.studies.search import search as run

    plan = load_search(file)
    folder = out or Path("runs") / plan.name
    found = run(plan, folder, for_terminal(), Executor(workers, threads, ray))
    data = {"search": plan.to_json(), "candidates": [each.to_json() for each in found]}
    for each in found:
        recipes = folder / "recipes"
        recipes.mkdir(exist_ok=True)
        write_atomically(recipes / f"{each.name}.json", each.recipe.model_dump_json(indent=1))
    _write_json(folder / "search.json", data)
    if as_json:
        print_json(data)
        return
    show_rows([_candidate(each.to_json()) for each in found], as_json=False)


def _candidate(row: dict[str, Any]) -> dict[str, Any]:
    line = {"name": row["name"], "how": row["how"]}
    line |= {f"bits {operand}": round(bits, 3) for operand, bits in row["bits"].items()}
    line["predicted KL"] = row["predicted_kl"]
    for key, heading in (("kl", "KL"), ("dnll", "ΔNLL")):
        metric = row.get("metrics", {}).get(key)
        line[heading] = metric and metric["value"]
        line[f"{heading} 95 %"] = _ends(metric["interval"]) if metric else ""
    return line | {"front": row["front"]}


def _ends(interval: list[float]) -> str:
    return f"{interval[0]:.4f} to {interval[1]:.4f}"


@app.command()
def sensitivity(
    file: Annotated[Path, typer.Argument(help="The search's TOML file, with a sensitivity.")],
    out: Out = None,
    others: Annotated[
        bool, typer.Option("--others", help="Measure all but one too, not only one alone.")
    ] = False,
    workers: Workers = None,
    threads: Threads = None,
    ray: Ray = None,
    as_json: Json = False,
) -> None:
    """What each layer's operand costs alone, and how well cheap proxies rank it."""
    from lowprec.report.progress import for_terminal
    from lowprec.report.text import print_json, show_rows
    from lowprec.studies import Executor
    from lowprec.studies.plan import load_search
    from lowprec.studies.sensitivity import Mode
    from lowprec.studies.sensitivity import sensitivity as run

    plan = load_search(file)
    folder = out or Path("runs") / plan.name
    executor = Executor(workers, threads, ray)
    modes: tuple[Mode, ...] = ("one", "others") if others else ("one",)
    found = run(plan, folder, modes, for_terminal(), executor)
    rows = [row.to_json() for row in found.rows]
    ranks = {
        operand: {proxy: vars(rank) for proxy, rank in some.items()}
        for operand, some in found.correlations().items()
    }
    data = {"rows": rows, "correlations": ranks}
    _write_json(folder / "sensitivity.json", data)
    if as_json:
        print_json(data)
        return
    show_rows([_sensitive(row) for row in rows], as_json=False)
    for operand, some in ranks.items():
        shown = ", ".join(
            f"{proxy} {rank['value']:.3f} ({rank['low']:.2f} to {rank['high']:.2f})"
            for proxy, rank in some.items()
        )
        print(f"rank correlation with the measured KL, {operand}: {shown}")


def _sensitive(row: dict[str, Any]) -> dict[str, Any]:
    line = {"path": row["path"], "operand": row["operand"]}
    for name in ("one", "others"):
        if name in row:
            line |= {f"KL {name}": row[name]["kl"], "95 %": _ends(row[name]["interval"])}
    return line | {"fisher": row["fisher"], "relative": row["relative"]}


def _write_json(path: Path, data: Any) -> None:
    import json

    from lowprec.spec.write import write_atomically

    write_atomically(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


@app.command()
def results(
    folder: Annotated[Path, typer.Argument(help="A study's folder.")],
    other: Annotated[
        Path | None, typer.Option("--diff", help="A second study to set beside it.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="COLUMN=TEXT: rows whose column contains the text; may be repeated."),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write the rows to a .csv or .parquet file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The records of a study as a table: filtered, compared with another study's, exported."""
    from lowprec.report.text import show_rows
    from lowprec.studies.results import compare, filtered, load_rows, write_rows

    rows = load_rows(folder)
    if other is not None:
        rows = compare(rows, load_rows(other))
    rows = filtered(rows, where or [])
    if export is not None:
        write_rows(rows, export)
        print(f"{len(rows)} rows: {export}")
        return
    show_rows(rows, as_json)
