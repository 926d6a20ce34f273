"""Run a study: compute the cells that are not there yet, then write the report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowprec.errors import LowprecError
from lowprec.perf import Machine
from lowprec.report import page
from lowprec.report.data import Failed, Report
from lowprec.report.progress import Progress, SilentProgress
from lowprec.spec.base import digest
from lowprec.spec.record import Record
from lowprec.spec.write import write_atomically
from lowprec.studies.beside import found_beside
from lowprec.studies.cells import Cell, Cells, Executor, keep, read
from lowprec.studies.executor.cell import Outcome, failed
from lowprec.studies.shapes import Shape, load_shape
from lowprec.studies.store import Failure, Store, dump
from lowprec.studies.study import Study, load_study
from lowprec.studies.summary import Priced, build_report, manifest
from lowprec.studies.throughput import jobs, load_machines, price, subject, tracer

if TYPE_CHECKING:
    from lowprec.studies.accuracy import Bench
    from lowprec.studies.task_cells import TaskCells


@dataclass(frozen=True)
class StudyResult:
    """What a study found. cells: the names of all of its records, accuracy first, in the order of
    the study file; page: the path of report.html; computed: how many cells were not there before;
    corrupt: the files that did not hold what their names say, and were computed anew; failed: the
    cells that have no record, and why."""

    study: Study
    folder: Path
    cells: tuple[str, ...]
    report: Report
    page: Path
    computed: int
    corrupt: tuple[Path, ...]
    failed: tuple[Failed, ...]

    @property
    def records(self) -> tuple[Record, ...]:
        """The records of `cells` in full, read from the folder."""
        store = Store(self.folder)
        return tuple(record for name in self.cells if (record := store.read(name)) is not None)


def study(
    path: str | Path,
    out: str | Path | None = None,
    progress: Progress | None = None,
    model: str | None = None,
    executor: Executor | None = None,
) -> StudyResult:
    """Run the study in the TOML file `path` and keep it in the folder `out` (``runs/<name>``).

    model: what its recipes are measured on instead of the model in its [accuracy]; the folder is
    then ``runs/<name>-<model>``. executor: how many local processes compute the accuracy cells, or
    on which Ray cluster.

    Cells that `out` holds already are taken from there, so a killed run resumes and an edited
    study computes only what changed. The same study, code, machine and number of threads give the
    same records, byte for byte, whatever computes them. A cell that fails ends no study: it is in
    `StudyResult.failed` and under ``failures`` in `out`, and is tried again by the next run.
    LowprecError for bad input, before anything is computed where it can be seen, and where another
    study runs in `out`.
    """
    plan = load_study(path)
    if model is not None:
        if plan.accuracy is None:
            raise LowprecError(f"{path}: no [accuracy], so that model={model!r} has no meaning")
        accuracy = plan.accuracy.model_copy(update={"model": model})
        name = f"{plan.name}-{Path(model).name}"
        plan = plan.model_copy(update={"accuracy": accuracy, "name": name})
    store = Store(Path(out) if out is not None else Path("runs") / plan.name)
    with store.locked():
        run = _Run(plan, str(path), store, progress or SilentProgress(), executor or Executor())
        return run.all()


@dataclass
class _Run:
    plan: Study
    where: str
    store: Store
    progress: Progress
    executor: Executor
    computed: int = 0
    failed: list[Failed] = field(default_factory=list)

    def all(self) -> StudyResult:
        machines, bench = load_machines(self.plan, self.where), self._bench()
        shapes = self._shapes(bench)
        tasks = self._task_cells(bench)  # found, or not, before anything is computed
        accuracy = self._accuracy(bench) if bench else []
        asked = self._tasks(tasks) if tasks else []
        priced = self._throughput(shapes, machines)
        result = build_report(self.plan, accuracy, priced, machines, self.failed)
        names = {named.recipe.spell(): named.name for named in self.plan.recipes}
        answers = tasks.records(asked) if tasks else ()
        beside: dict[str, Any] = found_beside(self.store.folder, names, answers)
        result = replace(result, **beside)
        text = manifest(self.plan, accuracy, priced, [cell.name for cell in asked])
        write_atomically(self.store.folder / "study.json", text)
        with self.progress.task("report"):
            path = page.write(result, self.store.folder)
        measured = (*(r.name for r in accuracy if r), *(c.name for c in asked if not c.error))
        cells = (*measured, *(p.record.name for p in priced))
        corrupt, failed = tuple(self.store.corrupt), tuple(self.failed)
        return StudyResult(
            self.plan, self.store.folder, cells, result, path, self.computed, corrupt, failed
        )

    def _shapes(self, bench: Bench | None) -> list[Shape]:
        names = self.plan.throughput.models if self.plan.throughput else ()
        loaded = {bench.asked.model: bench.shape} if bench else {}
        return [
            loaded.get(name)
            or load_shape(name, self.progress.say, f"{self.where}: throughput.models.{i}")
            for i, name in enumerate(names)
        ]

    def _bench(self) -> Bench | None:
        if self.plan.accuracy is None:
            return None
        from lowprec.studies.accuracy import load_bench

        asked, seed = self.plan.accuracy, self.plan.seed
        bench = load_bench(asked, seed, self.where, self.store, self.progress)
        for i, named in enumerate(self.plan.recipes):
            bench.check(named.recipe, f"{self.where}: recipes.{i} ({named.name})")
        return bench

    def _accuracy(self, bench: Bench) -> list[Record | None]:
        cells = Cells(bench, self.executor)
        found = cells.measure(self.plan.recipes)
        self.computed += cells.computed
        for named, cell in zip(self.plan.recipes, found, strict=True):
            if cell.error:
                self._failed(named.name, cell.error)
        return [cells.record(cell) for cell in found]

    def _task_cells(self, bench: Bench | None) -> TaskCells | None:
        if bench is None or self.plan.tasks is None:
            return None
        from lowprec.studies.task_cells import TaskCells

        cells = TaskCells(bench, self.plan.tasks, self.executor)
        _ = cells.tasks
        return cells

    def _tasks(self, cells: TaskCells) -> list[Cell]:
        found = cells.measure(self.plan.recipes)
        self.computed += cells.computed
        for named, cell in zip(self.plan.recipes, found, strict=True):
            if cell.error:
                self._failed(f"{named.name}, tasks", cell.error)
        return found

    def _failed(self, what: str, error: str) -> None:
        self.failed.append(Failed(what, error))
        self.progress.say(f"{what}: failed: {error}")

    def _throughput(self, shapes: list[Shape], machines: list[Machine]) -> list[Priced]:
        if self.plan.throughput is None:
            return []
        todo = jobs(self.plan.throughput.workloads)
        cells = [
            (shape, each, named)
            for shape in shapes
            for each in machines
            for named in self.plan.recipes
        ]
        traced = {shape.name: tracer(shape) for shape in shapes}
        priced = []
        with self.progress.task("throughput") as update:
            for done, (shape, each, named) in enumerate(cells, 1):
                recipe = named.recipe
                found = self._cell(
                    "throughput",
                    subject(recipe, shape, each, todo),
                    partial(price, recipe, shape, each, todo, traced[shape.name]),
                )
                if isinstance(found, Record):
                    priced.append(Priced(named.name, shape.name, each.name, found))
                else:
                    self._failed(f"{named.name}, {shape.name} on {each.name}", found.error)
                update(done, len(cells))
        return priced

    def _cell(
        self, kind: str, subject: dict[str, Any], compute: Callable[[], Record]
    ) -> Record | Failure:
        """The stored record of a cell, or a new one."""
        name = digest({"kind": kind, "subject": subject})
        stored = read(self.store, name, self.progress)
        if stored is not None:
            return stored
        start = time.perf_counter()
        try:
            text = dump(compute())
            outcome = Outcome(record=text, seconds=time.perf_counter() - start)
        except Exception as error:  # that cell's answer, whatever it is
            outcome = failed(error)
        found = keep(self.store, name, kind, subject, outcome)
        self.computed += isinstance(found, Record)
        return found
