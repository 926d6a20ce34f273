"""The workloads that the commands of the throughput half are about."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lowprec.errors import LowprecError

if TYPE_CHECKING:
    from lowprec.spec.workload import Workload


def symbolic_workload(model: str) -> Workload:
    """Of a model that comes with lowprec, without torch; of a W.json of `lowprec trace`; or of a
    configuration, a folder or a hub id, which is traced: a decode pass, batch 1, context 2048."""
    from lowprec.perf.workloads import find_workload, read_workload

    path = Path(model)
    if path.suffix == ".json" and not _is_configuration(path):
        return read_workload(path)
    return find_workload(model) or traced(model, 1, 1, 2048)


def traced(model: str, batch: int, tokens: int, context: int) -> Workload:
    """The workload of a pass of these sizes; of a shipped model without torch."""
    from lowprec.perf.workloads import find_workload

    if (shipped := find_workload(model)) is not None:
        return shipped.at(batch, tokens, context)
    from lowprec.studies.shapes import load_shape
    from lowprec.studies.throughput import Job, tracer

    shape = load_shape(model, lambda message: print(message, file=sys.stderr))
    phase = "decode" if tokens == 1 and context else "prefill"
    return tracer(shape)(Job(phase, batch, tokens, context))


def workloads_at(
    model: str,
    batch: list[int] | None,
    phase: str | None,
    tokens: int | None,
    context: int | None,
) -> list[Workload]:
    """One per batch. Of a file without any option: the pass that was recorded."""
    if phase not in (None, "prefill", "decode"):
        raise LowprecError(f"--phase: expected prefill or decode, got {phase!r}")
    work = symbolic_workload(model)
    options = {"--batch": batch, "--phase": phase, "--tokens": tokens, "--context": context}
    given = [option for option, value in options.items() if value is not None]
    if Path(model).suffix == ".json" and not given and not _is_configuration(Path(model)):
        return [work]
    if work.fixed:
        raise LowprecError(f"{given[0]}: {model} holds one pass only: {work.fixed}")
    if phase == "decode" and (tokens or 1) > 1:
        raise LowprecError(f"--tokens: a decode pass has one new token per sequence, got {tokens}")
    if phase == "decode" and context == 0:
        raise LowprecError("--context: a decode pass needs cached tokens, got 0")
    prefill = phase == "prefill" or (phase is None and (tokens or 1) > 1)
    new = tokens or (2048 if prefill else 1)
    behind = context if context is not None else (0 if prefill else 2048)
    return [work.at(each, new, behind) for each in batch or [1]]


def _is_configuration(path: Path) -> bool:
    """Whether `path` is a transformers configuration and no workload."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        message = "no such file" if isinstance(error, FileNotFoundError) else error
        raise LowprecError(f"{path}: {message}") from None
    return isinstance(data, dict) and "model_type" in data
