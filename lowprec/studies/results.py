"""The records in a study's folder as rows: to filter, to compare, to export."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lowprec.errors import LowprecError, unknown
from lowprec.spec.base import digest
from lowprec.spec.record import Record
from lowprec.studies.store import Store

Row = dict[str, Any]
KEYS = ("kind", "recipe", "model", "on", "metric")
VARIED = ("recipe", "formats", "code")


def load_rows(folder: Path) -> list[Row]:
    """A row per metric of every record under ``cells``, and of every failure one with its error.

    on: the text of an accuracy record, the machine of a throughput record, the tasks of another.
    inputs: eight digits of a digest of all that a cell was measured on, the recipe, its formats and
    the code apart. low, high: the ends of the 95 % interval, where the metric has one. A recipe
    has the name that ``study.json`` gives it, or is spelled in full. Records of the layers' noise
    have no metrics and no rows.
    LowprecError where there is no such folder.
    """
    if not (folder / "cells").is_dir():
        raise LowprecError(f"{folder}: no study's folder; expected one with 'cells' in it")
    store, names, rows = Store(folder), _names(folder), []
    for path in sorted(store.cells.glob("*.json")):
        record = store.read(path.stem)
        if record is None:
            raise LowprecError(f"{path}: damaged; run the study again")
        rows += _rows(record, names)
    for path in sorted(store.failures.glob("*.json")):
        failure = json.loads(path.read_text())
        if not store.path(failure["cell"]).exists():
            about = _about(failure["kind"], failure["subject"], names.get(failure["cell"]))
            rows.append(about | {"metric": "failed", "error": failure["error"]})
    return sorted(rows, key=lambda row: [row[key] for key in KEYS])


def _names(folder: Path) -> dict[str, str]:
    """What the study calls the recipes of its cells."""
    try:
        cells = json.loads((folder / "study.json").read_text())["cells"]
    except (OSError, ValueError, KeyError):
        return {}
    found = {cell: name for name, cell in cells["accuracy"].items()}
    found |= {cell: name for name, cell in cells.get("tasks", {}).items()}
    return found | {cell: recipe for _, _, recipe, cell in cells["throughput"]}


def _rows(record: Record, names: dict[str, str]) -> list[Row]:
    about = _about(record.kind, record.subject, names.get(record.name))
    intervals = record.details.get("intervals", {})
    rows = []
    for name, metric in record.metrics.items():
        low, high = intervals.get(name, (None, None))
        values = {"metric": name, "value": metric.value, "se": metric.se, "low": low, "high": high}
        rows.append(about | values)
    return rows


def _about(kind: str, subject: dict[str, Any], name: str | None) -> Row:
    on = (
        subject.get("machine")
        or subject.get("text")
        or {"name": ", ".join(subject.get("tasks", ()))}
    )
    model = subject.get("model") or {}
    recipe = name or str(subject.get("recipe", ""))
    inputs = {key: value for key, value in subject.items() if key not in VARIED}
    return {"kind": kind, "recipe": recipe, "model": model.get("name", ""),
            "on": on.get("name", ""), "inputs": digest(inputs)[:8]}  # fmt: skip


def filtered(rows: Sequence[Row], where: Sequence[str]) -> list[Row]:
    """The rows that fit all of `where`, each ``column=text``: the column contains the text, or
    with ``column==text`` is it. LowprecError for what is no column."""
    kept = list(rows)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    for condition in where:
        column, equals, text = condition.partition("=")
        if not equals:
            raise LowprecError(f"--where {condition!r}: expected COLUMN=TEXT")
        if column not in columns and rows:
            raise unknown("column", column, columns, "--where")
        exact, text = text.startswith("="), text.removeprefix("=")
        kept = [
            row
            for row in kept
            if (str(row.get(column)) == text if exact else text in str(row.get(column)))
        ]
    return kept


def compare(rows: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    """Rows of both, matched by kind, recipe, model, text or machine, and metric: the value here,
    there and the difference, there minus here; None where one side has none. same inputs: whether
    both were measured on the same bytes, so that the difference is the recipe's or the code's."""
    sides: list[dict[tuple[Any, ...], Row]] = [
        {tuple(row[name] for name in KEYS): row for row in some} for some in (rows, others)
    ]
    return [
        dict(zip(KEYS, key, strict=True)) | _beside(*(side.get(key) for side in sides))
        for key in sorted({*sides[0], *sides[1]})
    ]


def _beside(here: Row | None, there: Row | None) -> Row:
    values: list[Any] = [(row or {}).get("value") for row in (here, there)]
    known = None not in values
    return {
        "here": values[0],
        "here se": (here or {}).get("se"),
        "there": values[1],
        "there se": (there or {}).get("se"),
        "difference": values[1] - values[0] if known else None,
        "same inputs": here["inputs"] == there["inputs"] if here and there else None,
    }


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """CSV or Parquet, by the suffix; LowprecError for another one, without pyarrow, or where no
    file can be written."""
    try:
        _write_rows(rows, path)
    except OSError as error:
        raise LowprecError(f"{path}: {error.strerror or error}") from None


def _write_rows(rows: Sequence[Row], path: Path) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        try:
            import pyarrow  # type: ignore[import-untyped]
            from pyarrow import parquet
        except ImportError:
            raise LowprecError(f"{path}: needs pyarrow; pip install 'lowprec[parquet]'") from None
        table = pyarrow.table({key: [row.get(key) for row in rows] for key in columns})
        parquet.write_table(table, path)
    else:
        raise LowprecError(f"{path}: expected a .csv or .parquet file")
