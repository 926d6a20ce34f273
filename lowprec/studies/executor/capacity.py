"""How many workers, with how many threads each: the same for every run of a study on a machine."""

from __future__ import annotations

import os
from typing import NamedTuple

# Of the machine's memory; the rest is for the driver, the page cache and other programs.
SHARE = 0.6
# A worker's interpreter with its libraries, and one window's logits and log-probabilities.
WORKER_BYTES = 1 << 30
# The weights, and what emulation keeps beside them: a byte or less per number in most recipes.
COPIES = 1.4


class Sizes(NamedTuple):
    workers: int
    threads: int


def sizes(model_bytes: int, workers: int | None = None, threads: int | None = None) -> Sizes:
    """Workers and threads such that their product is at most the number of cores, and the workers'
    models fit the memory.

    model_bytes: of the model's numbers. What is asked for (OMP_NUM_THREADS counts as threads) is
    kept to. It depends on nothing that differs between two runs, such as free memory or the cells
    that are left, since the number of threads decides the order of sums and so the last bits.
    """
    cores = len(os.sched_getaffinity(0))
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if threads is None and asked.isdecimal() and int(asked) > 0:
        threads = int(asked)
    fit = max(1, int(SHARE * memory_bytes() / (COPIES * model_bytes + WORKER_BYTES)))
    if workers is None:
        workers = max(1, min(fit, cores // (threads or 1)))
    if threads is None:
        threads = max(1, cores // workers)
    return Sizes(workers, threads)


def memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
