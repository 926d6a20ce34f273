"""Where a study's accuracy cells are computed: in this process, in local workers, or on Ray.

`cell` is the work itself, `schedule` hands it to workers, `local` and `ray` are the kinds of
workers, `capacity` says how many of them with how many threads each.
"""

from lowprec.studies.executor.capacity import Sizes, sizes
from lowprec.studies.executor.cell import Outcome, Setup
from lowprec.studies.executor.schedule import Pool, Worker, WorkerDiedError, schedule

__all__ = ["Outcome", "Pool", "Setup", "Sizes", "Worker", "WorkerDiedError", "schedule", "sizes"]
