"""What an accuracy cell costs beyond its evaluation, and whether memory stays flat:

    python benchmarks/cells.py [--cells 1000] [--workers 2] [--ray]

A tiny random model and a short text, so that nearly everything is overhead. Printed: wall time per
cell, what the workers spent in it, the difference (the workers' seconds are divided by their
number), the driver's processor time per cell, and the resident memory of the driver after a tenth
of the cells and after all of them.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from lowprec.report.progress import SilentProgress
from lowprec.spec import load_recipe
from lowprec.studies import Executor
from lowprec.studies.accuracy import load_bench
from lowprec.studies.cells import Cells
from lowprec.studies.store import Store
from lowprec.studies.study import NamedRecipe, load_study
from tests import tiny_study


def recipes(count: int) -> list[NamedRecipe]:
    """Different cells that cost the same: the seed of rounding is all that differs."""
    text = "lm_head: keep; *: weight=mxfp8_e4m3/rceil activation=mxfp8_e4m3/rceil seed={}"
    return [NamedRecipe(name=f"{i}", recipe=load_recipe(text.format(i))) for i in range(count)]


def resident() -> float:
    """MiB of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def measure(count: int, executor: Executor, folder: Path) -> None:
    asked = load_study(tiny_study.make(folder)).accuracy
    assert asked is not None
    store = Store(folder / "out")
    with store.locked():
        bench = load_bench(asked, 1, "", store, SilentProgress())
        cells, some = Cells(bench, executor), recipes(count)
        tenth = max(1, count // 10)
        cells.measure(some[:tenth])  # starts the workers' libraries and caches once
        early = resident()
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        cells.measure(some[tenth:])
        wall = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_SELF)
    lines = (folder / "out" / "timings.jsonl").read_text().splitlines()[tenth:]
    inside = sum(float(line.split('"seconds": ')[1].split(",")[0]) for line in lines)
    left, workers = count - tenth, executor.workers or 1
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{left} cells, {workers} workers{', Ray' if executor.ray else ''}: "
        f"{1e3 * wall / left:.1f} ms per cell, {1e3 * inside / workers / left:.1f} ms in workers, "
        f"{1e3 * (wall - inside / workers) / left:.1f} ms beyond (starting the workers included), "
        f"driver's processor {1e3 * own / left:.1f} ms; driver's memory {early:.0f} MiB after "
        f"{tenth}, {resident():.0f} MiB after {count}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ray", action="store_true")
    asked = parser.parse_args()
    executor = Executor(asked.workers, 1, "auto" if asked.ray else None)
    with tempfile.TemporaryDirectory() as folder:
        measure(asked.cells, executor, Path(folder))


if __name__ == "__main__":
    main()
