"""Training runs in a folder: records of those that are finished, checkpoints of the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

from lowprec.errors import LowprecError
from lowprec.eval.training import Corpus, Plan, Update, environment, subject, train
from lowprec.eval.training_recipe import TrainingRecipe
from lowprec.eval.training_report import Row, summarize, write_chart
from lowprec.spec.record import Record

Task = Callable[[], AbstractContextManager[Update]]


def finish(
    plan: Plan,
    recipe: TrainingRecipe,
    corpus: Corpus,
    seed: int,
    folder: Path,
    keep: bool,
    task: Task,
) -> Record:
    """The record of one run in `folder`: read where it is finished, else trained to the end from
    its last checkpoint. keep: the checkpoint of a finished run stays."""
    identity = Record(
        kind="training",
        subject=subject(plan, recipe, corpus, seed),
        metrics={},
        details={},
        environment=environment(),
    )
    stem = folder / f"{recipe.name}-seed{seed}-{identity.name[:12]}"
    path, checkpoint = stem.with_suffix(".json"), stem.with_suffix(".safetensors")
    if path.exists():
        return read(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LowprecError(f"{folder}: {error.strerror}") from None
    with task() as progress:
        record = train(plan, recipe, corpus, seed, checkpoint, progress)
    assert record is not None
    _write(path, record.model_dump_json(indent=1) + "\n")
    if not keep:
        checkpoint.unlink(missing_ok=True)
    return record


def read(path: Path) -> Record:
    """A record that `finish` wrote; LowprecError for what is none."""
    try:
        return Record.model_validate_json(path.read_text())
    except (OSError, ValueError) as error:
        raise LowprecError(f"{path}: no record ({str(error).splitlines()[0]})") from None


def write_summary(records: Sequence[Record], baseline: str, folder: Path) -> list[Row]:
    """``summary.json``, ``curves.html`` and ``curves.png`` in `folder`, and the rows."""
    rows = summarize(records, baseline)
    text = json.dumps([asdict(row) for row in rows], indent=1) + "\n"
    _write(folder / "summary.json", text)
    write_chart(records, baseline, folder)
    return rows


def _write(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)
