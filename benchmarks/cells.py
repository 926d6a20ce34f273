"""What an accuracy cell costs beyond its evaluation, and whether memory stays flat:

    OMP_NUM_THREADS=1 python benchmarks/cells.py [--cells 1000] [--workers 2] [--ray]

A tiny random model and a short text, so that nearly everything is overhead. The evaluation itself
is what any script would do: wrap the model, score the windows, measure the operands' errors.
Printed:

- that evaluation, and the cell around it in this one process, in processor time per cell, which
  other load on the machine does not change;
- for the workers the seconds until the first answer, and then, over the last nine tenths of the
  cells, wall time per cell times the number of workers, and how much of it was in the cell;
- the driver's processor time per cell, and its resident memory after a tenth of the cells and after
  all.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from lowprec.eval import score_windows
from lowprec.eval.tensors import operand_errors
from lowprec.nn import unwrap, wrap
from lowprec.report.progress import SilentProgress, Update
from lowprec.spec import load_recipe
from lowprec.studies import Executor
from lowprec.studies.accuracy import Bench, load_bench
from lowprec.studies.cells import Cells
from lowprec.studies.store import Store
from lowprec.studies.study import NamedRecipe, load_study
from tests import tiny_study


def recipes(count: int) -> list[NamedRecipe]:
    """Different cells that cost the same: the seed of rounding is all that differs."""
    text = "lm_head: keep; *: weight=mxfp8_e4m3/rceil activation=mxfp8_e4m3/rceil seed={}"
    return [NamedRecipe(name=f"{i}", recipe=load_recipe(text.format(i))) for i in range(count)]


def resident() -> float:
    """MiB of this process now, what the allocator holds for later given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


class Watch(SilentProgress):
    """Notes when each cell is answered, and the memory after the first tenth."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.early = 0.0

    @contextmanager
    def task(self, title: str) -> Iterator[Update]:
        yield self.update if title == "accuracy" else lambda _done, _total: None

    def update(self, done: int, total: int) -> None:
        self.times.append(time.perf_counter())
        if done == total // 10:
            self.early = resident()


def alone(bench: Bench, recipes: list[NamedRecipe]) -> tuple[float, float]:
    """Processor seconds per evaluation and per cell, in this process."""
    model, spent = bench.loaded.model, []
    store = Store(bench.store.folder / "alone")
    store.cells.mkdir(parents=True)
    baseline, ids = bench.baseline, torch.from_numpy(bench.windows.tokens(0))[None]
    one = Cells(replace(bench, store=store), Executor(1, 1))
    one.measure(recipes[:2])  # the baseline of its own store, and what is slow once
    start = time.process_time()
    one.measure(recipes[2:])
    cell = (time.process_time() - start) / len(recipes[2:])
    for named in recipes[2:]:
        start = time.process_time()
        wrapped = wrap(model, named.recipe)
        score_windows(wrapped, bench.windows, baseline)
        operand_errors(wrapped, ids)
        unwrap(model)
        spent.append(time.process_time() - start)
    return sum(spent) / len(spent), cell


def measure(count: int, executor: Executor, folder: Path) -> None:
    asked = load_study(tiny_study.make(folder)).accuracy
    assert asked is not None
    store, watch = Store(folder / "out"), Watch()
    with store.locked():
        bench = load_bench(asked, 1, "", store, watch)
        evaluation, cell = alone(bench, recipes(52))
        print(
            f"in one process, processor time per cell: evaluation {1e3 * evaluation:.1f} ms, "
            f"everything else {1e3 * (cell - evaluation):.1f} ms"
        )
        cells, start = Cells(bench, executor), time.perf_counter()
        before = resource.getrusage(resource.RUSAGE_SELF)
        found = cells.measure(recipes(count))
        after = resource.getrusage(resource.RUSAGE_SELF)
        late = resident()
        assert not any(cell.error for cell in found)
    lines = [json.loads(line) for line in (folder / "out" / "timings.jsonl").open()]
    tenth, workers = count // 10, executor.workers or 1
    inside = sum(line["seconds"] for line in lines[tenth:]) / (count - tenth)
    wall = (watch.times[-1] - watch.times[tenth - 1]) * workers / (count - tenth)
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{count} cells, {workers} workers{', Ray' if executor.ray else ''}: first answer after "
        f"{watch.times[0] - start:.1f} s, then {1e3 * wall:.1f} ms of each worker's time per cell, "
        f"{1e3 * inside:.1f} ms of them in the cell; driver's processor {1e3 * own / count:.1f} ms "
        f"per cell; driver's memory {watch.early:.0f} MiB after {tenth}, {late:.0f} MiB after "
        f"{count}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2, help="two or more")
    parser.add_argument("--ray", action="store_true")
    asked = parser.parse_args()
    executor = Executor(asked.workers, 1, "auto" if asked.ray else None)
    with tempfile.TemporaryDirectory() as folder:
        measure(asked.cells, executor, Path(folder))


if __name__ == "__main__":
    main()
