"""Records on disk: one file per cell, named by its digest, whole or not there at all."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lowprec.errors import LowprecError
from lowprec.spec.base import digest
from lowprec.spec.record import Record
from lowprec.spec.write import write_atomically


@dataclass(frozen=True)
class Failure:
    """A cell that has no record, and why; `trace` is Python's, where an exception was raised."""

    cell: str
    kind: str
    subject: dict[str, Any]
    error: str
    trace: str


class Store:
    """The folder of a study: ``cells/<digest>.json`` and, beside the records, ``timings.jsonl`` and
    ``failures/<digest>.json``, of cells that the next run tries again.

    A cell's file appears by an atomic rename of a synced file, so that a process killed at any
    moment leaves it whole or absent; what is read is validated all the same, against the SHA-256
    of the record that the file ends with.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cells = folder / "cells"
        self.failures = folder / "failures"
        self.corrupt: list[Path] = []

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder alone; LowprecError where another process does. The kernel frees the
        lock of a process that dies."""
        try:
            self.cells.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / ".lock").open("a")
        except OSError as error:
            raise LowprecError(f"{self.folder}: {error.strerror}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LowprecError(
                    f"{self.folder}: another study is running there; wait for it, or name "
                    "another folder"
                ) from None
            for leftover in self.folder.glob("**/.writing-*"):
                leftover.unlink()
            yield

    def path(self, name: str) -> Path:
        return self.cells / f"{name}.json"

    def read(self, name: str) -> Record | None:
        """The record of a cell, or None where it has to be computed. A file that is not exactly
        the record that its name says joins `corrupt` and counts as not there."""
        path = self.path(name)
        try:
            text = path.read_text()
            record = parse(text)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            record = None
        if record is None or record.name != name or text != dump(record):
            self.corrupt.append(path)
            return None
        return record

    def write(self, record: Record) -> Record:
        """Store a record; the answer is what `read` will give, in order and type of all parts."""
        text = dump(record)
        self.put(record.name, text)
        return parse(text)

    def put(self, name: str, text: str) -> None:
        """Store what `dump` has made of the record called `name`."""
        write_atomically(self.path(name), text)
        (self.failures / f"{name}.json").unlink(missing_ok=True)

    def fail(self, failure: Failure) -> Failure:
        """Note why a cell has no record."""
        self.failures.mkdir(exist_ok=True)
        text = json.dumps(asdict(failure), sort_keys=True, indent=1) + "\n"
        write_atomically(self.failures / f"{failure.cell}.json", text)
        return failure

    def time(self, name: str, seconds: float) -> None:
        """Note how long a cell took, apart from the records, which are free of wall time."""
        line = {"cell": name, "seconds": round(seconds, 3), "at": int(time.time())}
        with (self.folder / "timings.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def dump(record: Record) -> str:
    """The one text of a record, its digest among the fields: equal records are equal bytes."""
    data = record.model_dump(mode="python")
    return json.dumps({**data, "sha256": digest(data)}, sort_keys=True, indent=1) + "\n"


def parse(text: str) -> Record:
    """The record of a text that `dump` gave; ValueError for what is none."""
    data = json.loads(text)
    if not isinstance(data, dict) or "sha256" not in data:
        raise ValueError("expected an object with the key 'sha256'")
    del data["sha256"]
    return Record.model_validate_json(json.dumps(data))
