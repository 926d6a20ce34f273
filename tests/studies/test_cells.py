"""What the driver of a study keeps of the cells that it has stored: next to nothing."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lowprec.errors import LowprecError
from lowprec.report.progress import SilentProgress
from lowprec.spec import load_recipe
from lowprec.studies.accuracy import Bench, load_bench
from lowprec.studies.cells import Cells, Executor
from lowprec.studies.executor import Outcome
from lowprec.studies.store import Store, dump
from lowprec.studies.study import NamedRecipe, load_study


@pytest.fixture
def bench(tiny: Path, tmp_path: Path) -> Bench:
    asked = load_study(tiny).accuracy
    assert asked is not None
    store = Store(tmp_path)
    store.cells.mkdir()
    return load_bench(asked, 1, "", store, SilentProgress())


def named(count: int) -> list[NamedRecipe]:
    text = "lm_head: keep; *: weight=mxfp4/rceil seed={}"
    return [NamedRecipe(name=f"{i}", recipe=load_recipe(text.format(i))) for i in range(count)]


def test_memory_is_flat_however_many_cells(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = named(60)
    measured = bench.measure(recipes[0])
    size = len(dump(measured))
    after = dict[int, int]()

    def outcomes(
        _self: Cells, todo: Sequence[NamedRecipe], _title: str
    ) -> Iterator[tuple[int, Outcome]]:
        for i, each in enumerate(todo):
            record = measured.model_copy(update={"subject": bench.subject(each.recipe)})
            yield i, Outcome(record=dump(record))
            after[i] = tracemalloc.get_traced_memory()[0]

    monkeypatch.setattr(Cells, "_outcomes", outcomes)
    cells = Cells(bench, Executor())
    tracemalloc.start()
    try:
        found = cells.measure(recipes)
    finally:
        tracemalloc.stop()
    assert cells.computed == len(list(bench.store.cells.iterdir())) == 60
    assert size > 10_000
    assert (after[59] - after[19]) / 40 < 2_000  # bytes per cell
    record = cells.record(found[7])
    assert record is not None
    assert record.subject == bench.subject(recipes[7].recipe)
    assert record.metrics == measured.metrics


def test_a_record_that_goes_while_the_study_runs_is_an_error(bench: Bench) -> None:
    cells = Cells(bench, Executor(1, 1))
    (cell,) = cells.measure(named(1))
    bench.store.path(cell.name).unlink()
    with pytest.raises(LowprecError, match="changed while the study ran"):
        cells.record(cell)
