"""Settings for every test; they stand in the environment before anything imports torch."""

from __future__ import annotations

import os

from hypothesis import settings

# No test reaches for a model hub, on a machine that could or on one that could not.
os.environ["HF_HUB_OFFLINE"] = "1"
# The tests work on small tensors, where more threads only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", str(min(2, len(os.sched_getaffinity(0)))))

settings.register_profile("lowprec", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("lowprec")
