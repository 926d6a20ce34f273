"""`lowprec study`: accuracy and throughput together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowprec.cli.app import Json, Ray, Threads, Workers

if TYPE_CHECKING:
    from lowprec.report.data import Report

app = typer.Typer()


@app.command()
def study(
    file: Annotated[Path, typer.Argument(help="The study's TOML file.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the results [runs/NAME].")] = None,
    model: Annotated[
        str | None, typer.Option(help="Measure the recipes on this model instead of the file's.")
    ] = None,
    workers: Workers = None,
    threads: Threads = None,
    ray: Ray = None,
    as_json: Json = False,
) -> None:
    """The main job: accuracy and throughput of every cell, a table, and report.html.

    The exit code is 1 where a cell failed; the others are in the report all the same.
    """
    from lowprec.report.progress import for_terminal
    from lowprec.report.text import print_json
    from lowprec.studies import Executor
    from lowprec.studies import study as run
    from lowprec.studies.summary import rows

    result = run(file, out, for_terminal(), model, Executor(workers, threads, ray))
    found = rows(result.report)
    failed = [{"what": f.what, "error": f.error} for f in result.failed]
    tasks = list(result.report.tasks)
    if as_json:
        shown = dict(zip(("model", "machine", "workload"), result.report.shown or (), strict=False))
        data = {"rows": found, "tasks": tasks, "shown": shown, "report": str(result.page)}
        print_json(data | {"failed": failed})
    else:
        _study_table(found, result.report.shown)
        if tasks:
            _task_table(result.report)
        print(f"{len(result.cells)} cells, {result.computed} of them new")
        for each in failed:
            print(f"failed: {each['what']}: {each['error']}")
        print(f"report: {result.page.resolve()}")
    if failed:
        raise typer.Exit(1)


def _study_table(rows: list[dict[str, Any]], shown: tuple[str, str, str] | None) -> None:
    from lowprec.report.text import engineering, show_rows

    lines = []
    for row in rows:
        bits = [f"{b:g}" if b is not None else "-" for b in row["bits"]]
        line = {"recipe": row["recipe"], "bits W/A": "/".join(bits)}
        if "dnll" in row:
            line |= {
                "ΔNLL (95 %)": _interval(row["dnll"], "+.4f"),
                "KL (95 %)": _interval(row["kl"], ".4f") if "kl" in row else "-",
                "top-1": f"{row['top1']['value']:.3f}",
                "ppl": f"{row['ppl']['value']:.2f}",
            }
        if "p_holm" in row:
            line |= {"p, Holm": f"{row['p_holm']:.2g}", "q, BH": f"{row['q_bh']:.2g}"}
        lines.append(line | {m: engineering(v) for m, v in row["tokens_per_second"].items()})
    show_rows(lines, as_json=False)
    if any("p_holm" in row for row in rows):
        print("p, Holm and q, BH: that ΔNLL is 0, corrected for the number of recipes")
    if shown:
        print(f"tokens/s per chip: modelled for {shown[0]}, {shown[2]}")


def _task_table(report: Report) -> None:
    from lowprec.report.outcomes import task_rows
    from lowprec.report.text import show_rows

    shown = ("Recipe", "Task", "Score of", "Score", "Unquantized", "Change", "Items", "Lost",
             "Gained", "p, Holm", "q, BH")  # fmt: skip
    lines = ({key: row[key] for key in shown} for row in task_rows(report))
    show_rows(
        [{k: v["text"] if isinstance(v, dict) else v for k, v in line.items()} for line in lines],
        as_json=False,
    )


def _interval(metric: dict[str, Any], form: str) -> str:
    low, high = metric["interval"]
    return f"{metric['value']:{form}} ± {(high - low) / 2:.4f}"
