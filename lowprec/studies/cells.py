"""Accuracy cells of one model and text: those that are stored, and the others computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lowprec.errors import LowprecError
from lowprec.report.progress import Progress
from lowprec.spec.base import digest
from lowprec.spec.record import Record
from lowprec.studies.executor.capacity import sizes
from lowprec.studies.executor.cell import Outcome, Setup, attempt
from lowprec.studies.executor.schedule import Pool, schedule
from lowprec.studies.store import Failure, Store, parse
from lowprec.studies.study import NamedRecipe

if TYPE_CHECKING:
    from lowprec.studies.accuracy import Bench


# Of a record's details, what tables and charts read. A row per operand and the sums by cluster
# stay on disk: with them, a thousand cells of a model of 200 layers take gigabytes.
SHOWN = ("intervals", "coverage", "layers", "tokens", "clusters", "dof")


@dataclass(frozen=True)
class Cell:
    """What is kept in memory of a computed cell: its name, and its error where it has no record."""

    name: str
    error: str = ""


@dataclass(frozen=True)
class Executor:
    """Where cells are computed. workers, threads: local processes and the threads of each, by
    default as `executor.capacity` says; one worker is this process itself. ray: the address of a
    Ray cluster, or ``auto``; its workers are as many as it has room for."""

    workers: int | None = None
    threads: int | None = None
    ray: str | None = None

    def __post_init__(self) -> None:
        for name in ("workers", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise LowprecError(f"{name}: expected 1 or more, got {value}")

    @contextmanager
    def sized(self, model: Any) -> Iterator[tuple[int, int]]:
        """Workers and threads; this process has as many threads as a worker meanwhile, so that
        what it computes itself has the same bits wherever it is computed."""
        import torch

        size = sum(p.numel() * p.element_size() for p in model.parameters())
        workers, threads = sizes(size, self.workers, self.threads)
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            yield workers, threads
        finally:
            torch.set_num_threads(before)


@dataclass
class Cells:
    """Computes the cells of a bench. computed: how many were not there before."""

    bench: Bench
    executor: Executor
    computed: int = 0

    def measure(self, recipes: Sequence[NamedRecipe], title: str = "accuracy") -> list[Cell]:
        """The cell of each recipe. What is computed is stored at once and read again where it is
        needed; recipes that are equal but for their name are one cell."""
        store = self.bench.store
        names = [self._name(named) for named in recipes]
        found: dict[str, Cell] = {}
        todo: dict[str, int] = {}
        for number, name in enumerate(names):
            if name in found or name in todo:
                continue
            if read(store, name, self.bench.progress) is None:
                todo[name] = number
            else:
                found[name] = Cell(name)
        numbers = list(todo.values())
        for i, outcome in self._outcomes([recipes[n] for n in numbers], title):
            name, subject = names[numbers[i]], self.bench.subject(recipes[numbers[i]].recipe)
            kept = keep(store, name, "accuracy", subject, outcome)
            found[name] = Cell(name, kept.error if isinstance(kept, Failure) else "")
            self.computed += not found[name].error
        return [found[name] for name in names]

    def record(self, cell: Cell) -> Record | None:
        """The stored record, `SHOWN` of its details alone; None of a cell that failed."""
        if cell.error:
            return None
        record = self.bench.store.read(cell.name)
        if record is None:
            raise LowprecError(f"{self.bench.store.path(cell.name)}: changed while the study ran")
        return light(record)

    def _name(self, named: NamedRecipe) -> str:
        return digest({"kind": "accuracy", "subject": self.bench.subject(named.recipe)})

    def _outcomes(self, todo: Sequence[NamedRecipe], title: str) -> Iterator[tuple[int, Outcome]]:
        if not todo:
            return
        with self.executor.sized(self.bench.loaded.model) as (workers, threads):
            self.bench.progress.say(self.bench.announcement)
            _ = self.bench.baseline
            if self.executor.ray is None and min(workers, len(todo)) == 1:
                yield from ((i, attempt(self.bench, named)) for i, named in enumerate(todo))
                return
            with self.bench.progress.task(title) as update:
                done = schedule(self._pool(min(workers, len(todo)), threads), todo)
                for count, answer in enumerate(done, 1):
                    yield answer
                    update(count, len(todo))

    def _pool(self, workers: int, threads: int) -> Pool:
        bench = self.bench
        folder = str(bench.store.folder.resolve())
        setup = Setup(asked=bench.asked, seed=bench.seed, folder=folder, threads=threads)
        if self.executor.ray is not None:
            from lowprec.studies.executor.ray import RayPool

            return RayPool(setup, self.executor.ray, self.executor.workers)
        from lowprec.studies.executor.local import LocalPool

        return LocalPool(setup, workers)


def light(record: Record) -> Record:
    """The record without the details that only its file needs."""
    shown = {key: record.details[key] for key in SHOWN if key in record.details}
    return record.model_copy(update={"details": shown})


def read(store: Store, name: str, progress: Progress) -> Record | None:
    """The stored record of a cell, or None; a damaged file is spoken of."""
    known = len(store.corrupt)
    record = store.read(name)
    for path in store.corrupt[known:]:
        progress.say(f"{path}: damaged; computed anew")
    return record


def keep(
    store: Store, name: str, kind: str, subject: dict[str, object], outcome: Outcome
) -> Record | Failure:
    """Store a cell's outcome. A record of another cell than `name` is a failure: its worker has
    another code, model or text."""
    error, trace = outcome.error, outcome.trace
    if outcome.record is not None:
        record = parse(outcome.record)
        if record.name == name:
            store.put(name, outcome.record)
            store.time(name, outcome.seconds)
            return record
        error = "the worker answered for another cell: it has another code, model or text"
    return store.fail(Failure(name, kind, dict(subject), error, trace))
