"""Run a study: compute the cells that are not there yet, then write the report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowprec.errors import LowprecError
from lowprec.perf import Machine
from lowprec.report import page
from lowprec.report.data import Report
from lowprec.report.progress import Progress, SilentProgress
from lowprec.spec.base import digest
from lowprec.spec.record import Record
from lowprec.studies.shapes import Shape, load_shape
from lowprec.studies.store import Store, write_atomically
from lowprec.studies.study import Study, load_study
from lowprec.studies.summary import Priced, build_report, manifest
from lowprec.studies.throughput import jobs, load_machines, price, subject, tracer

if TYPE_CHECKING:
    from lowprec.studies.accuracy import Bench


@dataclass(frozen=True)
class StudyResult:
    """What a study found. records: all cells, accuracy first, in the order of the study file;
    page: the path of report.html; computed: how many cells were not there before; corrupt: the
    files that did not hold what their names say, and were computed anew."""

    study: Study
    folder: Path
    records: tuple[Record, ...]
    report: Report
    page: Path
    computed: int
    corrupt: tuple[Path, ...]


def study(
    path: str | Path,
    out: str | Path | None = None,
    progress: Progress | None = None,
    model: str | None = None,
) -> StudyResult:
    """Run the study in the TOML file `path` and keep it in the folder `out` (``runs/<name>``).

    model: what its recipes are measured on instead of the model in its [accuracy]; the folder is
    then ``runs/<name>-<model>``.

    Cells that `out` holds already are taken from there, so a killed run resumes and an edited
    study computes only what changed. The same study, code and machine give the same records, byte
    for byte. LowprecError for bad input, before anything is computed where it can be seen, and
    where another study runs in `out`.
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
        return _Run(plan, str(path), store, progress or SilentProgress()).all()


@dataclass
class _Run:
    plan: Study
    where: str
    store: Store
    progress: Progress
    computed: int = 0

    def all(self) -> StudyResult:
        machines, bench = load_machines(self.plan, self.where), self._bench()
        shapes = self._shapes(bench)
        accuracy = self._accuracy(bench) if bench else []
        priced = self._throughput(shapes, machines)
        result = build_report(self.plan, accuracy, priced, machines)
        write_atomically(self.store.folder / "study.json", manifest(self.plan, accuracy, priced))
        with self.progress.task("report"):
            path = page.write(result, self.store.folder)
        records = (*accuracy, *(p.record for p in priced))
        corrupt = tuple(self.store.corrupt)
        return StudyResult(
            self.plan, self.store.folder, records, result, path, self.computed, corrupt
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

    def _accuracy(self, bench: Bench) -> list[Record]:
        return [
            self._cell("accuracy", bench.subject(named.recipe), partial(bench.measure, named))
            for named in self.plan.recipes
        ]

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
                record = self._cell(
                    "throughput",
                    subject(recipe, shape, each, todo),
                    partial(price, recipe, shape, each, todo, traced[shape.name]),
                )
                priced.append(Priced(named.name, shape.name, each.name, record))
                update(done, len(cells))
        return priced

    def _cell(self, kind: str, subject: dict[str, Any], compute: Callable[[], Record]) -> Record:
        """The stored record of a cell, or a new one."""
        name = digest({"kind": kind, "subject": subject})
        known = len(self.store.corrupt)
        found = self.store.read(name)
        if found is not None:
            return found
        for path in self.store.corrupt[known:]:
            self.progress.say(f"{path}: damaged; computed anew")
        start = time.perf_counter()
        record = self.store.write(compute())
        self.store.time(name, time.perf_counter() - start)
        self.computed += 1
        return record
