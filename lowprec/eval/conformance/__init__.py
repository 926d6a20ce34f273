"""Kernels against the oracle on one format, bit for bit: what `lowprec check` runs.

NaN equals NaN whatever its bits, and zeros have signs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from lowprec.eval.conformance.blocks import block_steps
from lowprec.eval.conformance.comparison import Comparison
from lowprec.eval.conformance.scalars import scalar_steps
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import Format

__all__ = ["Comparison", "conform"]


def conform(
    fmt: Format | BlockFormat, update: Callable[[int, int], None] = lambda _done, _total: None
) -> Comparison:
    """Every comparison of a format. update: told how many of how many steps are done.

    Of a scalar format: all code points up to 16 bits, all 65,536 bfloat16 numbers, random bits,
    values, the middles between them and their neighbours, under every projection; of more than 10
    bits some 50 values and, but for nearest-even, every 64th bfloat16. Of a block format: every
    rule that it takes, on rows built to break it, along both axes; codes and scales; sizes; and its
    scalar parts. Blocks beyond 512 elements are met as short ones only.
    """
    steps = list(block_steps(fmt) if isinstance(fmt, BlockFormat) else scalar_steps(fmt))
    total = Comparison()
    with _one_thread():
        for done, step in enumerate(steps):
            update(done, len(steps))
            total += step()
    update(len(steps), len(steps))
    return total


@contextmanager
def _one_thread() -> Iterator[None]:
    """On small tensors a second thread only waits for the first."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
