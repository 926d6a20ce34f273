"""What other commands left in a study's folder, for its report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from lowprec.errors import LowprecError
from lowprec.spec.record import Metric, Record
from lowprec.studies.store import parse

TASKS, TRAINING = "tasks", "training"


def found_beside(
    folder: Path, names: Mapping[str, str], answers: Iterable[Record] = ()
) -> dict[str, Any]:
    """Fields of `report.data.Report`: what `lowprec sensitivity` and `search` wrote into `folder`,
    the records of ``lowprec eval --tasks`` in its ``tasks``, and the runs of ``evals/pretrain.py``
    in its ``training``. names: of recipes, by how they are spelled; answers: the study's own task
    records. LowprecError for a file there that is no such record."""
    found: dict[str, Any] = {}
    for key, name, part in (
        ("sensitivity", "sensitivity.json", "rows"),
        ("searched", "search.json", "candidates"),
    ):
        try:
            found[key] = tuple(json.loads((folder / name).read_text())[part])
        except (OSError, ValueError, KeyError):
            continue
    paths = sorted((folder / TASKS).glob("*.json"))
    found["tasks"] = _tasks(chain(answers, map(_record, paths)), names)
    return found | _training(folder / TRAINING)


def _record(path: Path) -> Record:
    try:
        record = parse(path.read_text())
    except (OSError, ValueError) as error:
        raise LowprecError(f"{path}: no record ({str(error).splitlines()[0]})") from None
    if record.kind != "tasks":
        raise LowprecError(f"{path}: expected a record of lowprec eval --tasks, got {record.kind}")
    return record


def _tasks(records: Iterable[Record], names: Mapping[str, str]) -> tuple[dict[str, Any], ...]:
    """A row per record, task and score; McNemar's p-values are corrected for all rows that have
    one, since that is how many chances there were to find something."""
    from lowprec.eval.significance import benjamini_hochberg, holm

    rows = [row for record in records for row in _rows_of(record, names)]
    tested = [row for row in rows if row["p"] is not None]
    p = [row["p"] for row in tested]
    for row, by_holm, by_bh in zip(tested, holm(p), benjamini_hochberg(p), strict=True):
        row |= {"holm": by_holm, "bh": by_bh}
    return tuple(rows)


def _rows_of(record: Record, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    spelled = record.subject["recipe"]
    pairs = {f"{pair['task']} {pair['metric']}": pair for pair in record.details["pairs"]}
    for name, metric in record.metrics.items():
        if name.endswith((" base", " change")):
            continue
        task, _, kind = name.partition(" ")
        change, pair = record.metrics.get(f"{name} change"), pairs.get(name, {})
        items = record.details["items"]["recipe"].get(task, {}).get(kind, [])
        row: dict[str, Any] = {
            "recipe": names.get(spelled, spelled), "model": record.subject["model"]["name"],
            "task": task, "metric": kind.removesuffix(",none"), "score": metric.value,
            "base": record.metrics[f"{name} base"].value, "items": len(items),
            "interval": None, "change": None, "change_interval": None,
            "lost": pair.get("lost"), "gained": pair.get("gained"), "p": pair.get("p"),
            "holm": None, "bh": None,
        }  # fmt: skip
        # Only where the score is a mean of its items: a perplexity is none.
        if change is not None:
            row |= {"change": change.value, **_intervals(items, change, pair)}
        yield row


def _intervals(items: list[float], change: Metric, pair: Mapping[str, Any]) -> dict[str, Any]:
    """95 % intervals of a mean over items and of its paired change: those of shares where
    every item is right or wrong, else Student's t."""
    from lowprec.eval import statistics
    from lowprec.eval.significance import interval_of_change, interval_of_share

    if pair:
        lost, gained = pair["lost"], pair["gained"]
        found = interval_of_share(round(sum(items)), len(items))
        return {"interval": found, "change_interval": interval_of_change(lost, gained, len(items))}
    if change.se is None:
        return {}
    mean = statistics.mean(np.array(items, np.float64), np.arange(len(items)))
    differs = statistics.interval(change.value, change.se, len(items) - 1)
    return {"interval": (mean.low, mean.high), "change_interval": (differs.low, differs.high)}


def _training(folder: Path) -> dict[str, Any]:
    """Final losses over the seeds, and the curves as Vega-Lite."""
    paths = [path for path in sorted(folder.glob("*.json")) if path.name != "summary.json"]
    if not paths:
        return {}
    from lowprec.eval.training_report import chart, points, summarize
    from lowprec.eval.training_runs import read

    records = [read(path) for path in paths]
    baseline = _baseline(folder / "summary.json", records)
    rows = tuple(vars(row) for row in summarize(records, baseline))
    curves: dict[str, Any] = chart(points(records, baseline), baseline).to_dict()
    return {"training": rows, "curves": curves}


def _baseline(summary: Path, records: list[Record]) -> str:
    """The recipe whose difference to the baseline is 0, which is it."""
    try:
        found = [row["recipe"] for row in json.loads(summary.read_text()) if row["difference"] == 0]
    except (OSError, ValueError, KeyError, TypeError):
        found = []
    return str(found[0] if found else records[0].subject["name"])
