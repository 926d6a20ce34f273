"""What someone's hardware answered: a vector file with their words, or CSV of hexadecimal words."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from lowprec.errors import LowprecError
from lowprec.proposal.vectors import VectorSet, read
from lowprec.proposal.vectors.files import FORMS, read_bytes
from lowprec.proposal.vectors.hextext import words_of
from lowprec.proposal.vectors.model import MAX_ROWS, Words

ENDINGS = (*FORMS, ".csv")


@dataclass(frozen=True)
class Results:
    """The answers to one set: the words of each of its columns that was answered."""

    path: Path
    columns: dict[str, tuple[Words, ...]]


def find_results(folder: Path, asked: VectorSet) -> Path | None:
    """The file of the answers to a set: its name with one of the endings, or None."""
    return next((p for e in ENDINGS if (p := folder / f"{asked.name}{e}").exists()), None)


def read_results(path: Path, asked: VectorSet) -> Results:
    """The answers in a file; LowprecError for a file that holds no answers to this set."""
    found = _csv(path) if path.suffix == ".csv" else _set(path, asked)
    outputs = {c.name: c for c in asked.columns if c.role == "out"}
    columns = {name: words for name, words in found.items() if name in outputs}
    if not columns:
        raise LowprecError(f"{path}: answers none of {', '.join(outputs)}")
    for name, words in columns.items():
        if len(words) != asked.rows:
            raise LowprecError(f"{path}: {name}: {len(words)} rows; expected {asked.rows}")
        bits = outputs[name].bits
        if any(word >> bits for row in words for word in row):
            raise LowprecError(f"{path}: {name}: a word that {bits} bits do not hold")
    return Results(path, columns)


def _set(path: Path, asked: VectorSet) -> dict[str, tuple[Words, ...]]:
    found = read(path)
    for column in asked.columns:
        given = next((c for c in found.columns if c.name == column.name), None)
        if column.role == "in" and given is not None and given.words != column.words:
            raise LowprecError(f"{path}: {column.name}: these are answers to other questions")
    return {column.name: column.words for column in found.columns}


def _csv(path: Path) -> dict[str, tuple[Words, ...]]:
    """A line of column names, then a line per row; the words of a cell are joined by spaces."""
    try:
        text = read_bytes(path).decode("ascii")
    except UnicodeDecodeError:
        raise LowprecError(f"{path}: expected ASCII text") from None
    try:
        rows = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise LowprecError(f"{path}: {error}") from None
    if not rows or len(rows) > MAX_ROWS + 1:
        raise LowprecError(f"{path}: expected a line of names and at most {MAX_ROWS} rows")
    names = [name.strip() for name in rows[0]]
    cells: dict[str, list[Words]] = {name: [] for name in names}
    if len(cells) != len(names):
        raise LowprecError(f"{path}: two columns have the same name")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(names):
            raise LowprecError(f"{path}: line {number}: {len(row)} cells; expected {len(names)}")
        for name, cell in zip(names, row, strict=True):
            words = ",".join(cell.replace("0x", "").split()) or "-"
            cells[name].append(words_of(words, f"{path}: line {number}"))
    return {name: tuple(words) for name, words in cells.items()}
