"""`lowprec validate`: the throughput model against published measurements."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from lowprec.cli.app import Json
from lowprec.errors import LowprecError

if TYPE_CHECKING:
    from lowprec.perf.validation.predict import Answer
    from lowprec.perf.validation.table import Error

app = typer.Typer()
COLUMNS = ("id", "predicted", "low", "high", "unit", "level", "reason")


@app.command()
def validate(
    points: Annotated[
        Path | None, typer.Option(help="CSV or Parquet of measurements to predict, row by row.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where the predictions go [stdout].")
    ] = None,
    files: Annotated[
        Path | None, typer.Option(help="Folder of validation files [those of lowprec].")
    ] = None,
    refit: Annotated[
        bool, typer.Option("--refit", help="Fit again with sites left out; takes a minute.")
    ] = False,
    docs: Annotated[
        Path | None, typer.Option(help="Write the page validation.md and its charts there.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict measurements, or print the errors on all that lowprec is validated with."""
    if points is not None:
        _predict(points, output, as_json)
    elif output is not None:
        raise LowprecError("-o: is for --points; the error tables go to standard output")
    else:
        _tables(files, refit or docs is not None, docs, as_json)


def _predict(points: Path, output: Path | None, as_json: bool) -> None:
    from lowprec.perf.validation.files import read_points
    from lowprec.perf.validation.predict import answers
    from lowprec.report.text import print_json

    if as_json and output is not None:
        raise LowprecError("-o: is for CSV; --json goes to standard output")
    # All rows before the first answer: a file that cannot be read leaves no half of an output.
    found = answers(list(read_points(points)))
    if as_json:
        print_json([_row(each) for each in found])
    elif output is None:
        _write(sys.stdout, found)
    else:
        try:
            _replace(output, found)
        except OSError as error:
            raise LowprecError(f"{output}: {error.strerror}") from None


def _replace(output: Path, found: Iterable[Answer]) -> None:
    """All at once, or nothing; into what is no file line by line."""
    from lowprec.spec.write import write_atomically

    if output.exists() and not output.is_file():
        with output.open("w", newline="", encoding="utf-8") as file:
            _write(file, found)
        return
    text = io.StringIO(newline="")
    _write(text, found)
    write_atomically(output, text.getvalue())


def _write(file: IO[str], found: Iterable[Answer]) -> None:
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for each in found:
        row = _row(each)
        numbers = {k: f"{v:.6g}" for k, v in row.items() if isinstance(v, float)}
        writer.writerow(row | numbers)


def _row(each: Answer) -> dict[str, Any]:
    p = each.prediction
    if p is None:
        return dict.fromkeys(COLUMNS) | {"id": each.point.id, "reason": each.reason}
    return {
        "id": each.point.id,
        "predicted": float(p.value),
        "low": float(p.low),
        "high": float(p.high),
        "unit": p.unit,
        "level": p.level,
        "reason": "",
    }


def _tables(folder: Path | None, refit: bool, docs: Path | None, as_json: bool) -> None:
    from lowprec.perf.validation.files import read_points
    from lowprec.perf.validation.table import errors, left_out, rows, validation_files
    from lowprec.report.text import print_json, show_rows
    from lowprec.spec.load import data_dir

    folder = folder or data_dir("benchmarks/validation")
    found, refused, sets = [], [], validation_files(folder)
    if not sets:
        raise LowprecError(f"{folder}: no validation files (*.csv)")
    for path in sets:
        good, bad = errors(path.stem, read_points(path))
        found += good
        refused += bad
    matmuls = folder / "gemm.csv"
    if matmuls.exists():
        for left in ("site", "path", "machine") if refit else ("path", "machine"):
            found += left_out(read_points(matmuls), left)
        found += _speedups(folder / "speedups.csv", matmuls)
    table = rows(found)
    if docs is not None:
        from lowprec.report.validation import write_page

        write_page(docs, found, table, len(refused))
    if as_json:
        print_json({"rows": [row.to_json() for row in table], "refused": _reasons(refused)})
        return
    show_rows([_percent(row.to_json()) for row in table], as_json=False)
    for reason, count in _reasons(refused).items():
        print(f"note: {count} rows not predicted: {reason}")


def _speedups(pairs: Path, matmuls: Path) -> list[Error]:
    """Errors of formats' speed-ups, where the folder has matmuls that were timed in several."""
    from lowprec.perf.validation import speedups
    from lowprec.perf.validation.files import read_points
    from lowprec.perf.validation.table import fitted_groups

    if not pairs.exists():
        return []
    fitted = fitted_groups()
    found = speedups.speedups(read_points(pairs), fitted)
    return found + speedups.left_out(read_points(pairs), read_points(matmuls), fitted)


def _reasons(refused: list[Answer]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in refused:
        found[each.reason] = found.get(each.reason, 0) + 1
    return found


def _percent(row: dict[str, Any]) -> dict[str, Any]:
    shares = ("median", "mean", "p90", "bias", "coverage")
    signs = {"bias": "+"}
    return row | {name: f"{row[name]:{signs.get(name, '')}.1%}" for name in shares}
