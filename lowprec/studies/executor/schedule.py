"""Hand cells to workers one at a time, and again where a worker dies with one."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from lowprec.studies.executor.cell import Outcome
from lowprec.studies.study import NamedRecipe

# A cell whose workers die so often is at fault itself: it needs more memory than there is.
ATTEMPTS = 3


class WorkerDiedError(Exception):
    """A worker is gone; the message says how."""


class Worker(Protocol):
    """A process that computes one cell at a time. `send` does not wait; `result` is the answer,
    or raises `WorkerDiedError`."""

    def send(self, named: NamedRecipe) -> None: ...

    def result(self) -> Outcome: ...

    def close(self) -> None: ...


class Pool(Protocol):
    """Starts up to `size` workers and waits for the first of some to answer or to die."""

    size: int

    def start(self) -> Worker: ...

    def wait(self, busy: Sequence[Worker]) -> Sequence[Worker]: ...

    def close(self) -> None: ...


def schedule(pool: Pool, cells: Sequence[NamedRecipe]) -> Iterator[tuple[int, Outcome]]:
    """(number of the cell, outcome) as they come. A cell whose worker died goes to another one, and
    is answered with an error once that happened `ATTEMPTS` times. Closes the pool."""
    waiting, deaths = deque(range(len(cells))), Counter[int]()
    idle: list[Worker] = []
    busy: dict[Worker, int] = {}
    try:
        while waiting or busy:
            answers = []
            for worker in pool.wait(list(busy)) if busy else ():
                number = busy.pop(worker)
                try:
                    answers.append((number, worker.result()))
                    idle.append(worker)
                except WorkerDiedError as death:
                    worker.close()
                    deaths[number] += 1
                    if deaths[number] < ATTEMPTS:
                        waiting.appendleft(number)
                    else:
                        told = f"the worker died {ATTEMPTS} times, the last time by {death}"
                        answers.append((number, Outcome(error=told)))
            # Workers go on before the answers are stored.
            while waiting and (idle or len(busy) < pool.size):
                worker = idle.pop() if idle else pool.start()
                busy[worker] = waiting.popleft()
                worker.send(cells[busy[worker]])
            # One that waits for room, on another machine, gets that of one with nothing to do.
            while idle:
                idle.pop().close()
            yield from answers
    finally:
        for worker in (*idle, *busy):
            worker.close()
        pool.close()
