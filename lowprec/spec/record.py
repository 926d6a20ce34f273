"""Record: one measured or estimated cell of a study, and all that it leads back to."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from lowprec.spec.base import Spec, digest


class Metric(Spec):
    """A value and, where it was measured on a sample, its standard error."""

    value: float
    se: Annotated[float, Field(ge=0)] | None = None


class Record(Spec):
    """One cell. `subject` is everything that determines it; its digest names the cell.

    subject: names and digests of model, text, recipe (spelled in full), formats, protocol,
    machine, workload, code, and the seed: whatever applies. metrics: SI base units, nats.
    details: tables (coverage, layers, terms). environment: versions and threads, which do not
    name the cell. Wall time is no part of a record, so that two runs give equal ones.
    """

    kind: Literal["accuracy", "throughput", "training", "sensitivity", "tasks", "generation"]
    subject: dict[str, Any]
    metrics: dict[str, Metric]
    details: dict[str, Any]
    environment: dict[str, str]

    @property
    def name(self) -> str:
        """SHA-256 (hex) of kind and subject."""
        return digest({"kind": self.kind, "subject": self.subject})
