"""One accuracy cell: what a worker needs to know, and what comes of it."""

from __future__ import annotations

import traceback
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from lowprec.report.progress import SilentProgress
from lowprec.spec.base import Spec, digest
from lowprec.spec.load import cache_dir
from lowprec.studies.store import Store, dump
from lowprec.studies.study import Accuracy, NamedRecipe

if TYPE_CHECKING:
    from lowprec.studies.accuracy import Bench


class Setup(Spec):
    """What all cells of a study share. folder: the study's, where the unquantized model's answers
    are; on a machine that has no such folder they are computed anew in the user's cache."""

    asked: Accuracy
    seed: int
    folder: str
    threads: int

    def bench(self) -> Bench:
        """The model and the text, loaded."""
        import torch

        from lowprec.studies.accuracy import load_bench

        torch.set_num_threads(self.threads)
        folder = Path(self.folder)
        if not folder.is_dir():
            folder = cache_dir() / "studies" / digest(self.to_json())
            folder.mkdir(parents=True, exist_ok=True)
        return load_bench(self.asked, self.seed, "", Store(folder), SilentProgress())


class Outcome(Spec):
    """The text of a record, as `store.dump` gives it, or else why there is none. seconds: what
    the cell took in its worker, loading the model apart."""

    record: str | None = None
    error: str = ""
    trace: str = ""
    seconds: float = 0.0


class Cells:
    """Computes cells of one study; the model is loaded at the first."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @cached_property
    def bench(self) -> Bench:
        bench = self.setup.bench()
        _ = bench.baseline
        return bench

    def compute(self, named: NamedRecipe) -> Outcome:
        """Any exception is an answer; a worker ends only by dying."""
        try:
            return attempt(self.bench, named)
        except Exception as error:
            return failed(error)


def attempt(bench: Bench, named: NamedRecipe) -> Outcome:
    """A cell's record, or the error that it ended with."""
    import time

    start = time.perf_counter()
    try:
        text = dump(bench.measure(named))
    except Exception as error:  # whatever a model's code raises is that cell's answer
        return failed(error, time.perf_counter() - start)
    return Outcome(record=text, seconds=time.perf_counter() - start)


def failed(error: BaseException, seconds: float = 0.0) -> Outcome:
    """The answer of a cell that raised."""
    kind = "" if type(error).__name__ == "LowprecError" else f"{type(error).__name__}: "
    trace = "".join(traceback.format_exception(error))
    return Outcome(error=f"{kind}{error}" or kind, trace=trace, seconds=seconds)
