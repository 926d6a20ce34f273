"""Task cells of a study: those that are stored, and the others computed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lowprec.eval.power import announcement_of_items
from lowprec.eval.tasks import Tasks, TaskScores, check_tasks, prepare, run_tasks
from lowprec.spec.base import digest
from lowprec.spec.recipe import Recipe
from lowprec.spec.record import Record
from lowprec.spec.write import write_atomically
from lowprec.studies.accuracy import environment
from lowprec.studies.cells import Cell, Executor, keep, read
from lowprec.studies.code import ACCURACY, code_digest
from lowprec.studies.executor.cell import Outcome, failed
from lowprec.studies.store import Failure, dump
from lowprec.studies.study import NamedRecipe, TaskList
from lowprec.studies.tasks import record_of, task_subject

if TYPE_CHECKING:
    from lowprec.studies.accuracy import Bench


@dataclass
class TaskCells:
    """Asks the model of a bench, in this process, one recipe after the other: a task's requests
    are many, and each recipe's answers are stored when they are all there. computed: how many were
    not there before."""

    bench: Bench
    asked: TaskList
    executor: Executor
    computed: int = 0

    @cached_property
    def tasks(self) -> Tasks:
        """Found, their data in the cache; LowprecError as `check_tasks` has it."""
        found = prepare(self.asked.names, self.bench.progress.say)
        check_tasks(found, self.bench.loaded.tokenizer)
        return found

    def measure(self, recipes: Sequence[NamedRecipe]) -> list[Cell]:
        """The cell of each recipe, stored as soon as it is computed."""
        with self.executor.sized(self.bench.loaded.model):
            return [self._cell(named) for named in recipes]

    def records(self, cells: Sequence[Cell]) -> Iterator[Record]:
        """Those that there are, one at a time: they hold the answer to every item."""
        for cell in cells:
            record = None if cell.error else self.bench.store.read(cell.name)
            if record is not None:
                yield record

    def _cell(self, named: NamedRecipe) -> Cell:
        store, subject = self.bench.store, self._subject(named.recipe)
        name = digest({"kind": "tasks", "subject": subject})
        if read(store, name, self.bench.progress) is not None:
            return Cell(name)
        start = time.perf_counter()
        try:
            base = self._unquantized
            if not self.computed:
                self.bench.progress.say(announcement_of_items(base.counts))
            record = record_of(subject, base, self._under(named))
            outcome = Outcome(record=dump(record), seconds=time.perf_counter() - start)
        except Exception as error:  # that cell's answer, whatever it is
            outcome = failed(error)
        kept = keep(store, name, "tasks", subject, outcome)
        if isinstance(kept, Failure):
            return Cell(name, kept.error)
        self.computed += 1
        return Cell(name)

    def _subject(self, recipe: Recipe) -> dict[str, Any]:
        bench = self.bench
        subject = task_subject(bench.loaded, recipe, self.tasks, self.asked.options)
        subject["seed"] = bench.seed
        if recipe.needs_calibration:
            subject["calibration"] = {
                key: bench.subject(recipe)[key] for key in ("text", "windows", "protocol")
            }
        return subject

    def _under(self, named: NamedRecipe) -> TaskScores:
        name = f"{named.name}: tasks"
        with self.bench.wrapped(named.recipe, named.name) as model, self.bench.progress.task(name):
            return self._run(model)

    @cached_property
    def _unquantized(self) -> TaskScores:
        """The model's own answers, once for all recipes and kept beside the cells."""
        bench, tasks = self.bench, self.tasks
        key = digest([bench.loaded.digest, asdict(tasks)["data"], tasks.names, self.asked.options,
                      code_digest(ACCURACY), environment()])  # fmt: skip
        path = bench.store.folder / "baseline" / f"tasks-{key}.json"
        try:
            return TaskScores(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            pass
        with bench.progress.task("unquantized model: tasks"):
            found = self._run(bench.loaded.model)
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, json.dumps(asdict(found)))
        return found

    def _run(self, model: Any) -> TaskScores:
        return run_tasks(model, self.bench.loaded.tokenizer, self.tasks, **self.asked.options)
