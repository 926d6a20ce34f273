"""Cells handed to workers: local processes and Ray actors, some of which are killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lowprec.errors import LowprecError
from lowprec.spec import load_recipe
from lowprec.studies import Executor, StudyResult, study
from lowprec.studies.executor import Outcome, Worker, WorkerDiedError, schedule, sizes
from lowprec.studies.study import NamedRecipe

BAD = """
[[recipes]]
name = "not finite"
recipe = "lm_head: keep; *: activation=float8_e5m2/fixed=1e-30:tensor/nearest-even/OvfInf"
"""


def cells(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "cells").iterdir()}


class Fake:
    """A worker that answers with the cell's name, or dies of it."""

    def __init__(self, pool: FakePool) -> None:
        self.pool, self.name, self.closed = pool, "", False

    def send(self, named: NamedRecipe) -> None:
        assert not self.closed
        self.name = named.name

    def result(self) -> Outcome:
        self.pool.seen.append(self.name)
        if self.pool.deadly.get(self.name, 0) > 0:
            self.pool.deadly[self.name] -= 1
            raise WorkerDiedError("signal 9")
        return Outcome(record=self.name)

    def close(self) -> None:
        self.closed = True


class FakePool:
    def __init__(self, size: int, deadly: dict[str, int]) -> None:
        self.size, self.deadly, self.seen = size, deadly, list[str]()
        self.made = list[Fake]()

    def start(self) -> Fake:
        self.made.append(Fake(self))
        assert sum(not worker.closed for worker in self.made) <= self.size
        return self.made[-1]

    def wait(self, busy: Sequence[Worker]) -> Sequence[Worker]:
        return busy[-1:]

    def close(self) -> None:
        assert all(worker.closed for worker in self.made)


def named(count: int) -> list[NamedRecipe]:
    recipe = load_recipe("mxfp4/floor")
    return [NamedRecipe(name=f"cell {i}", recipe=recipe) for i in range(count)]


@pytest.mark.parametrize("size", [1, 3, 50])
def test_every_cell_is_answered_once(size: int) -> None:
    pool = FakePool(size, {"cell 3": 2, "cell 5": 1})
    answers = dict(schedule(pool, named(20)))
    assert {i: a.record for i, a in answers.items()} == {i: f"cell {i}" for i in range(20)}
    assert len(pool.seen) == 23


def test_a_cell_that_kills_every_worker_is_given_up() -> None:
    pool = FakePool(2, {"cell 1": 99})
    answers = dict(schedule(pool, named(4)))
    assert answers[1].record is None
    assert answers[1].error == "the worker died 3 times, the last time by signal 9"
    assert [answers[i].record for i in (0, 2, 3)] == ["cell 0", "cell 2", "cell 3"]


def test_a_driver_that_stops_closes_its_workers() -> None:
    pool = FakePool(2, {})
    with contextlib.closing(schedule(pool, named(9))) as answers:
        assert isinstance(answers, Iterator)
        next(answers)
    assert all(worker.closed for worker in pool.made)


def test_sizes_never_oversubscribe(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = set(range(16))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: cores)
    monkeypatch.setattr("lowprec.studies.executor.capacity.memory_bytes", lambda: 64 << 30)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert sizes(1 << 29) == (16, 1)
    assert sizes(8 << 30) == (3, 5)  # three models of 8 GiB fit
    assert sizes(500 << 30) == (1, 16)
    assert sizes(1 << 29, threads=4) == (4, 4)
    assert sizes(1 << 29, workers=4) == (4, 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert sizes(1 << 29) == (8, 2)


def test_executors_of_nothing_are_refused() -> None:
    with pytest.raises(LowprecError, match="workers: expected 1 or more, got 0"):
        Executor(workers=0)


def children(pid: int) -> list[int]:
    out = subprocess.run(["ps", "--ppid", str(pid), "-o", "pid=,args="], capture_output=True)
    lines = out.stdout.decode().splitlines()
    return [int(line.split()[0]) for line in lines if "executor.local" in line]


@pytest.mark.usefixtures("no_page")
def test_workers_give_the_same_records_though_one_is_killed(
    undisturbed: StudyResult, tiny: Path, tmp_path: Path
) -> None:
    killed = []

    def killer() -> None:
        while not killed:
            time.sleep(0.05)
            for pid in children(os.getpid())[:1]:
                time.sleep(0.5)
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    bad = tiny.with_name("failing.toml")
    bad.write_text(tiny.read_text() + BAD)
    thread = threading.Thread(target=killer, daemon=True)
    thread.start()
    found = study(bad, tmp_path / "out", executor=Executor(workers=2, threads=1))
    thread.join(5)
    assert killed
    # The fifth recipe cannot be measured, and that is no reason to stop.
    assert [f.what for f in found.failed] == ["not finite"]
    assert found.failed[0].error == "window 0: the model's logits are not finite"
    stored = cells(tmp_path / "out")
    assert stored.items() >= cells(undisturbed.folder).items()
    (failure,) = (tmp_path / "out" / "failures").iterdir()
    assert json.loads(failure.read_text())["error"] == found.failed[0].error
    again = study(tiny, tmp_path / "out", executor=Executor(workers=1, threads=1))
    assert again.computed == 0


RAY = """
import os, signal, subprocess, sys, threading, time
import ray
ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
from lowprec.report import page
from lowprec.studies import Executor, study
page.write = lambda _report, folder: folder / "report.html"
def actors():
    lines = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True).stdout
    # This very text is among the arguments of the driver, which is no actor.
    named = (l.split(maxsplit=1) for l in lines.splitlines())
    return [int(n[0]) for n in named if len(n) > 1 and n[1].startswith("ray::_Actor")]
def killer():
    while not (found := actors()):
        time.sleep(0.1)
    os.kill(found[0], signal.SIGKILL)
    print("killed", flush=True)
thread = threading.Thread(target=killer)
thread.start()
result = study(sys.argv[1], sys.argv[2], executor=Executor(threads=1, ray="auto"))
thread.join()
assert not result.failed, result.failed
print("computed", result.computed)
"""


@pytest.mark.slow
def test_a_ray_cluster_gives_the_same_records_though_an_actor_is_killed(
    undisturbed: StudyResult, tiny: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    command = [sys.executable, "-c", RAY, str(tiny), str(tmp_path / "out")]
    # On a busy machine Ray's own processes take longer than it waits for by default.
    patient = {"RAY_worker_register_timeout_seconds": "900", "RAY_NUM_REDIS_GET_RETRIES": "120"}
    env = os.environ | patient
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1800, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    assert "killed" in done.stdout
    assert f"computed {len(undisturbed.records)}" in done.stdout
    assert cells(tmp_path / "out") == cells(undisturbed.folder)
