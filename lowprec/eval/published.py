"""Figures that others have published, and ours beside them where all that decides them is equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, model_validator

from lowprec.eval.protocols import Protocol
from lowprec.spec.base import Spec
from lowprec.spec.load import build, data_dir, read_toml
from lowprec.spec.record import Record
from lowprec.spec.text import load_recipe

Values = dict[str, float]


class Row(Spec):
    """One format's values, by model. recipe: the same in our words, where there is one. doubtful:
    by model, why a value should not be trusted."""

    format: str
    recipe: str | None = None
    values: Annotated[Values, Field(min_length=1)]
    doubtful: dict[str, str] = {}  # noqa: RUF012 - pydantic copies defaults

    @model_validator(mode="after")
    def _possible(self) -> Row:
        if not self.doubtful.keys() <= self.values.keys():
            raise ValueError("doubtful: names a model without a value")
        return self


class Table(Spec):
    """One metric of several formats. what: in words. suite, protocol: in ours, where they are known
    and shipped. baseline: by model, the value without quantization."""

    metric: str
    what: str
    suite: str | None = None
    protocol: Protocol | None = None
    baseline: Values = {}  # noqa: RUF012 - pydantic copies defaults
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]


class Published(Spec):
    """One file under evals/published."""

    title: str
    source: str
    notes: tuple[str, ...] = ()
    tables: Annotated[tuple[Table, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Figure:
    """One published number."""

    model: str
    format: str
    metric: str
    value: float
    baseline: float | None
    recipe: str | None
    table: Table
    doubt: str
    title: str
    source: str

    def is_of(self, model: str) -> bool:
        """Whether `model`, a name, a hub id or a folder, is called as this one is."""
        return model.rstrip("/").split("/")[-1].split("@")[0].lower() == self.model.lower()

    def ours(self, record: Record | None) -> float | None:
        """The same number in a record of ours: same model, recipe, text and protocol; else None."""
        if record is None or self.recipe is None or self.table.protocol is None:
            return None
        subject, protocol = record.subject, self.table.protocol
        asked = subject.get("protocol", {})
        same = (
            self.is_of(subject["model"]["name"])
            and load_recipe(self.recipe).spell() == subject["recipe"]
            and subject.get("text", {}).get("name") == self.table.suite
            and all(asked.get(k) == v for k, v in protocol.to_json().items() if k != "windows")
        )
        metric = record.metrics.get(self.metric) if same else None
        return None if metric is None else metric.value


def published() -> list[Figure]:
    """All figures of evals/published, in order of the files."""
    found: list[Figure] = []
    for path in sorted((data_dir("evals") / "published").glob("*.toml")):
        found += _figures(build(Published, read_toml(path), str(path)))
    return found


def _figures(source: Published) -> Iterator[Figure]:
    for table in source.tables:
        for row in table.rows:
            for model, value in row.values.items():
                yield Figure(
                    model,
                    row.format,
                    table.metric,
                    value,
                    table.baseline.get(model),
                    row.recipe,
                    table,
                    row.doubtful.get(model, ""),
                    source.title,
                    source.source,
                )


def beside(figures: Sequence[Figure], record: Record | None) -> list[dict[str, Any]]:
    """A row per figure: what is published, and ours where there is the same."""
    return [
        {
            "model": f.model,
            "format": f.format,
            "metric": f.metric,
            "16 bits": "" if f.baseline is None else f.baseline,
            "published": f.value,
            "ours": "" if (ours := f.ours(record)) is None else ours,
            "protocol": f.table.what if f.table.protocol is None else f.table.protocol.described(),
            "doubt": f.doubt,
            "source": f.title,
        }
        for f in figures
    ]
