"""Settings for every test; they stand in the environment before anything imports torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# No test reaches for a model hub, on a machine that could or on one that could not.
os.environ["HF_HUB_OFFLINE"] = "1"
# The tests work on small tensors, where more threads only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", str(min(2, len(os.sched_getaffinity(0)))))

settings.register_profile("lowprec", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("lowprec")


@pytest.fixture(autouse=True)
def _same_torch_for_every_test() -> Iterator[None]:
    """One thread, since on small tensors a second only waits; nothing left in dynamo's cache.

    What a test compiled before counts towards the limit of recompilations and decides which
    sizes the next one takes for dynamic.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
