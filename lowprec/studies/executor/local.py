"""Workers as processes of this machine: ``python -m lowprec.studies.executor.local``.

A line of JSON goes in for each cell, and one comes out. A worker whose driver is gone sees the end
of its input and ends at once, in the middle of a cell too. Processes of their own, and not those of
multiprocessing, so that a script that calls `lowprec.study` needs no guard around it.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import IO

from lowprec.studies.executor.cell import Cells, Outcome, Setup
from lowprec.studies.executor.schedule import Worker, WorkerDiedError
from lowprec.studies.study import NamedRecipe


class LocalWorker:
    """A process, started at once; it loads the model at its first cell."""

    def __init__(self, setup: Setup) -> None:
        threads = str(setup.threads)
        libraries = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        # Out of the terminal's group, so that Ctrl-C reaches the driver alone.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lowprec.studies.executor.local"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | dict.fromkeys(libraries, threads),
            start_new_session=True,
        )
        self._say(setup.model_dump_json())

    def send(self, named: NamedRecipe) -> None:
        self._say(named.model_dump_json())

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it is dead, as `result` finds out

    @property
    def answers(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def result(self) -> Outcome:
        line = self.answers.readline()
        if not line.endswith(b"\n"):
            raise WorkerDiedError(_ending(self.process.wait()))
        return Outcome.model_validate_json(line)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except BrokenPipeError:
                pass


class LocalPool:
    """Up to `size` processes of this machine."""

    def __init__(self, setup: Setup, size: int) -> None:
        self.setup, self.size = setup, size

    def start(self) -> LocalWorker:
        return LocalWorker(self.setup)

    def wait(self, busy: Sequence[Worker]) -> list[Worker]:
        with selectors.DefaultSelector() as selector:
            for worker in busy:
                assert isinstance(worker, LocalWorker)
                selector.register(worker.answers, selectors.EVENT_READ, worker)
            return [key.data for key, _ in selector.select()]

    def close(self) -> None:
        """Nothing is left once the workers are closed."""


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"signal {-code} ({signal.Signals(-code).name})"


def main() -> None:
    """A worker: the setup and then cells on standard input, outcomes on standard output."""
    # Whatever a library prints goes to standard error, and the answers to where it cannot.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    asked: SimpleQueue[bytes] = SimpleQueue()

    def listen() -> None:
        for line in sys.stdin.buffer:
            asked.put(line)
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    cells = Cells(Setup.model_validate_json(asked.get()))
    while True:
        outcome = cells.compute(NamedRecipe.model_validate_json(asked.get()))
        answers.write(outcome.model_dump_json().encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
