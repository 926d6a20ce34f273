"""Progress of long work: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

Update = Callable[[int, int], None]


class Progress(Protocol):
    """Where long work says what it does; everything goes to standard error."""

    def say(self, message: str) -> None: ...

    def task(self, title: str) -> AbstractContextManager[Update]: ...


class PlainProgress:
    """One line as a task ends, with the seconds it took; for logs."""

    def say(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    @contextmanager
    def task(self, title: str) -> Iterator[Update]:
        start = time.perf_counter()
        yield lambda _done, _total: None
        self.say(f"{title}: {time.perf_counter() - start:.1f} s")


class SilentProgress:
    """Nothing at all."""

    def say(self, message: str) -> None:
        pass

    @contextmanager
    def task(self, title: str) -> Iterator[Update]:  # noqa: ARG002
        yield lambda _done, _total: None


class RichProgress:
    """A bar per task on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bars

        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )

    def say(self, message: str) -> None:
        self._bars.console.print(message, markup=False, highlight=False)

    @contextmanager
    def task(self, title: str) -> Iterator[Update]:
        bars = self._bars
        bar = bars.add_task(title.replace("[", "\\["), total=None)
        with bars:
            yield lambda done, total: bars.update(bar, completed=done, total=total)
        # The finished bar has been printed for good; the next task starts without it.
        bars.remove_task(bar)


def for_terminal() -> Progress:
    """Bars where standard error is a terminal, lines elsewhere."""
    return RichProgress() if sys.stderr.isatty() else PlainProgress()
