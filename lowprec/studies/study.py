"""The study file: which model, text, recipes, machines and workloads span the grid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lowprec.errors import LowprecError
from lowprec.eval.protocols import Kind, Protocol
from lowprec.spec.base import Spec
from lowprec.spec.load import build, read_toml
from lowprec.spec.recipe import Recipe
from lowprec.spec.text import load_recipe

Name = Annotated[str, Field(min_length=1, max_length=400)]
Size = Annotated[int, Field(ge=1, le=1 << 24)]


class Accuracy(Spec):
    """What the recipes are measured on: `windows` windows of `length` tokens of `text`, all that
    there are without a number.

    protocol, stride: how they are cut and which tokens are scored; see
    `lowprec.eval.protocols.Protocol`. model: a shipped model's name, a folder, or a Hugging Face
    id; it runs in float32, and that unquantized run is the reference of every paired difference.
    text: a shipped text's name or a file. calibration: how many windows behind those, none of which
    is scored, a recipe sees that needs calibration. seeds: how often a recipe with random bits
    runs; its errors then have the variance between the seeds in them. perplexity_only: nothing is
    kept of the unquantized model but 16 bytes per token, and no KL divergence measured: that of
    WikiText-2 would take 59 GB with a vocabulary of 49,152. stream: the model's blocks run one
    after the other, each with its weights in memory for as long as it runs. device_map:
    accelerate's, for a model beyond one device. Neither is part of what names a cell.
    """

    model: Name
    text: Name
    length: Annotated[int, Field(ge=2, le=1 << 20)]
    windows: Annotated[int, Field(ge=2, le=1 << 20)] | None = None
    protocol: Kind = "windows"
    stride: Annotated[int, Field(ge=1)] | None = None
    seeds: Annotated[int, Field(ge=1, le=1000)] = 1
    calibration: Annotated[int, Field(ge=1, le=1 << 20)] = 8
    perplexity_only: bool = False
    stream: bool = False
    device_map: Literal["auto", "balanced", "balanced_low_0", "sequential"] | None = None

    @model_validator(mode="after")
    def _possible(self) -> Accuracy:
        if self.stream and self.device_map is not None:
            raise ValueError("stream and device_map: expected one of them")
        _ = self.cut
        return self

    @property
    def cut(self) -> Protocol:
        """The protocol in full."""
        return Protocol(
            kind=self.protocol, seqlen=self.length, windows=self.windows, stride=self.stride
        )


class TaskList(Spec):
    """What the model of [accuracy] is asked besides, with each recipe and without, through
    lm-evaluation-harness: the first `items` of each task, all that there are without a number.

    names: as `lowprec.eval.tasks.prepare` takes them. shots: examples in front of each item, as
    many as the task says without a number. batch: sequences at a time; above 1 they are padded,
    which changes scales that are taken over a whole activation.
    """

    names: Annotated[tuple[Name, ...], Field(min_length=1)]
    items: Size | None = None
    shots: Annotated[int, Field(ge=0, le=1000)] | None = None
    batch: Size = 1

    @property
    def options(self) -> dict[str, Any]:
        """For `lowprec.eval.tasks.run_tasks`."""
        return {"limit": self.items, "shots": self.shots, "batch": self.batch}


class WorkloadGrid(Spec):
    """Forward passes of `tokens` new tokens per sequence behind `context` cached ones, one for
    each of the batch sizes in `batch`."""

    phase: Literal["prefill", "decode"]
    batch: Annotated[tuple[Size, ...], Field(min_length=1)]
    tokens: Size = 1
    context: Annotated[int, Field(ge=0, le=1 << 24)] = 0

    @model_validator(mode="after")
    def _possible(self) -> WorkloadGrid:
        if (self.tokens == 1 and self.context > 0) != (self.phase == "decode"):
            raise ValueError(
                "phase 'decode' needs tokens = 1 and a context of 1 or more, 'prefill' any other"
            )
        return self


class Throughput(Spec):
    """What the recipes are priced on. models: names under evals/models or evals/configs, folders,
    config.json files or Hugging Face ids; no weights are needed."""

    models: Annotated[tuple[Name, ...], Field(min_length=1)]
    machines: Annotated[tuple[Name, ...], Field(min_length=1)]
    workloads: Annotated[tuple[WorkloadGrid, ...], Field(min_length=1)]


class NamedRecipe(Spec):
    """A recipe and the name it has in tables and charts; the name changes no record."""

    name: Annotated[str, Field(min_length=1, max_length=60, pattern=r"^\S(.*\S)?$")]
    recipe: Recipe


class Study(Spec):
    """A grid: every recipe on [accuracy] and its [tasks], and every recipe, model, machine and
    workload of [throughput]. At least one of [accuracy] and [throughput]."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80)]
    title: str = ""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    recipes: Annotated[tuple[NamedRecipe, ...], Field(min_length=1)]
    accuracy: Accuracy | None = None
    tasks: TaskList | None = None
    throughput: Throughput | None = None

    @model_validator(mode="after")
    def _possible(self) -> Study:
        if self.accuracy is None and self.throughput is None:
            raise ValueError("a study needs [accuracy] or [throughput]")
        if self.tasks is not None and (self.accuracy is None or self.accuracy.stream):
            raise ValueError("[tasks] needs [accuracy], whose model is asked, without stream")
        tables = self.throughput
        for key, values in (
            ("recipes", [r.name for r in self.recipes]),
            ("tasks.names", list(self.tasks.names) if self.tasks else []),
            ("throughput.models", list(tables.models) if tables else []),
            ("throughput.machines", list(tables.machines) if tables else []),
        ):
            twice = next((v for i, v in enumerate(values) if v in values[:i]), None)
            if twice is not None:
                raise ValueError(f"{key}: {twice!r} stands there twice")
        return self


def load_study(path: str | Path) -> Study:
    """The study in a TOML file; LowprecError names file and key.

    Its [[recipes]] have a name and a recipe as `load_recipe` takes it: text, a shipped name, a
    table, or a .toml file. Paths in the file are relative to its folder.
    """
    path = Path(path)
    data = read_toml(path)
    # Table by table, so that an error has the nearest key of its own table.
    tables: dict[str, type[Spec]] = {
        "accuracy": Accuracy, "tasks": TaskList, "throughput": Throughput
    }  # fmt: skip
    for key, cls in tables.items():
        if isinstance(data.get(key), dict):
            data[key] = _table(cls, data[key], f"{path}: {key}")
    if isinstance(data.get("recipes"), list):
        data["recipes"] = [
            _recipe(entry, f"{path}: recipes.{i}", path.parent)
            for i, entry in enumerate(data["recipes"])
        ]
    study = build(Study, data, str(path))
    return study.model_copy(update=_anchored(study, path.parent))


def _table(cls: type[Spec], table: dict[str, Any], where: str) -> Spec:
    grids = table.get("workloads")
    if cls is Throughput and isinstance(grids, list):
        built = [build(WorkloadGrid, g, f"{where}.workloads.{i}") for i, g in enumerate(grids)]
        table = {**table, "workloads": built}
    return build(cls, table, where)


def _recipe(entry: Any, where: str, folder: Path) -> NamedRecipe:
    if not isinstance(entry, dict):
        raise LowprecError(f"{where}: expected a table with name and recipe")
    source = entry.get("recipe")
    if isinstance(source, str | dict):
        source = _path(source, folder) if isinstance(source, str) else source
        entry = {**entry, "recipe": load_recipe(source, f"{where}.recipe")}
    elif source is not None:
        raise LowprecError(f"{where}.recipe: expected a text, a .toml file or a table")
    return build(NamedRecipe, entry, where)


def _anchored(study: Study, folder: Path) -> dict[str, Any]:
    """The parts that name files, with those that lie beside the study as full paths."""
    changed: dict[str, Any] = {}
    if study.accuracy:
        a = study.accuracy
        changed["accuracy"] = a.model_copy(
            update={"model": _path(a.model, folder), "text": _path(a.text, folder)}
        )
    if study.tasks:
        names = _paths(study.tasks.names, folder)
        changed["tasks"] = study.tasks.model_copy(update={"names": names})
    if study.throughput:
        t = study.throughput
        changed["throughput"] = t.model_copy(
            update={"models": _paths(t.models, folder), "machines": _paths(t.machines, folder)}
        )
    return changed


def _paths(names: Sequence[str], folder: Path) -> tuple[str, ...]:
    return tuple(_path(name, folder) for name in names)


def _path(name: str, folder: Path) -> str:
    """`name` as a path from `folder` where such a file is there, else as it is."""
    looks_like_path = ("/" in name or "." in name) and not set(name) & set(" :;=\0")
    return str(folder / name) if looks_like_path and (folder / name).exists() else name
