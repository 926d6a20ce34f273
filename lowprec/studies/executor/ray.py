"""Workers as Ray actors, on this machine or on a cluster that has lowprec installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowprec.errors import LowprecError
from lowprec.studies.executor.cell import Cells, Outcome, Setup
from lowprec.studies.executor.schedule import Worker, WorkerDiedError
from lowprec.studies.study import NamedRecipe


class RayWorker:
    """An actor, and the cell that it computes."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self.answer: Any = None

    def send(self, named: NamedRecipe) -> None:
        self.answer = self._actor.compute.remote(named.model_dump_json())

    def result(self) -> Outcome:
        try:
            return Outcome.model_validate_json(self._ray.get(self.answer))
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0]
            raise WorkerDiedError(f"{type(error).__name__}: {reason}") from None

    def close(self) -> None:
        self._ray.kill(self._actor)


class RayPool:
    """Actors of `threads` CPUs each, as many as the cluster has room for.

    address: of a cluster; ``auto`` is the one that runs on this machine, or else a new one.
    LowprecError where Ray is not installed or no cluster answers.
    """

    def __init__(self, setup: Setup, address: str, size: int | None = None) -> None:
        try:
            import ray
            import ray.exceptions
        except ImportError:
            raise LowprecError("--ray: Ray is missing; pip install 'lowprec[ray]'") from None
        self._ray, self._setup = ray, setup
        self._ours = not ray.is_initialized()
        if self._ours:
            _connect(ray, address)
        threads = setup.threads
        resources: Any = ray.cluster_resources  # Ray leaves it without types
        self.size = size or max(1, int(resources().get("CPU", 1)) // threads)
        variables = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        self._actor = ray.remote(num_cpus=threads, runtime_env={"env_vars": variables})(_Actor)

    def start(self) -> RayWorker:
        return RayWorker(self._ray, self._actor.remote(self._setup.model_dump_json()))

    def wait(self, busy: Sequence[Worker]) -> list[Worker]:
        by_answer = {worker.answer: worker for worker in busy if isinstance(worker, RayWorker)}
        ready, _ = self._ray.wait(list(by_answer), num_returns=1)
        return [by_answer[answer] for answer in ready]

    def close(self) -> None:
        if self._ours:
            self._ray.shutdown()


class _Actor:
    """`Cells` in JSON, so that driver and workers agree on nothing but that."""

    def __init__(self, setup: str) -> None:
        self._cells = Cells(Setup.model_validate_json(setup))

    def compute(self, named: str) -> str:
        return self._cells.compute(NamedRecipe.model_validate_json(named)).model_dump_json()


def _connect(ray: Any, address: str) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(address=address, **quiet)
    except ConnectionError as error:
        if address != "auto":
            reason = str(error).strip().splitlines()[0]
            raise LowprecError(f"--ray {address}: no cluster answers ({reason})") from None
        ray.init(include_dashboard=False, **quiet)
