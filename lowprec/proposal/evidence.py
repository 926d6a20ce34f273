"""The records in a study's folder: what a proposal may say of accuracy and throughput."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lowprec.errors import LowprecError
from lowprec.report.data import Candidate
from lowprec.spec import BlockFormat, Format, Quantizer, Recipe, Record, digest

MAX_BYTES = 1 << 26
MAX_CELLS = 20_000
STUDY, SEARCH = "study.json", "search.json"


@dataclass(frozen=True)
class Cell:
    """A record under its recipe's name in the study. file: where it stands in the folder."""

    candidate: Candidate
    record: Record
    file: Path

    @property
    def recipe(self) -> Recipe:
        return self.candidate.recipe

    @property
    def model(self) -> str:
        return str(self.record.subject["model"]["name"])

    @property
    def slots(self) -> frozenset[tuple[str, str]]:
        """What the recipe quantizes: (modules, operand)."""
        return frozenset((r.match, name) for r in self.recipe.rules for name, _ in r.quantizers())

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the operands that it quantizes, in the recipe's order."""
        return tuple(dict.fromkeys(name for r in self.recipe.rules for name, _ in r.quantizers()))

    @property
    def quantizers(self) -> tuple[Quantizer, ...]:
        """All that it uses, each once."""
        return tuple(dict.fromkeys(q for r in self.recipe.rules for _, q in r.quantizers()))

    def only(self, fmt: Format | BlockFormat) -> bool:
        """Whether the recipe quantizes with this format and with no other."""
        return bool(self.quantizers) and all(q.format == fmt for q in self.quantizers)


@dataclass(frozen=True)
class Evidence:
    """folder: the study's. plan: its file, as JSON. searched: the candidates of a search that was
    kept beside it, as JSON. unnamed: records of recipes that the study does not name."""

    folder: Path
    plan: dict[str, Any]
    cells: tuple[Cell, ...]
    searched: tuple[dict[str, Any], ...]
    unnamed: int

    @property
    def title(self) -> str:
        return str(self.plan.get("title") or self.plan.get("name") or self.folder.name)

    @cached_property
    def accuracy(self) -> tuple[Cell, ...]:
        return self.of("accuracy")

    @cached_property
    def throughput(self) -> tuple[Cell, ...]:
        return self.of("throughput")

    def of(self, kind: str) -> tuple[Cell, ...]:
        """The cells of a kind of record, in the order of the study's recipes."""
        return tuple(cell for cell in self.cells if cell.record.kind == kind)

    @property
    def models(self) -> tuple[str, ...]:
        """Models whose accuracy was measured; the study's own comes first."""
        first = str(self.plan.get("accuracy", {}).get("model", ""))
        names = dict.fromkeys(cell.model for cell in self.accuracy)
        return tuple(sorted(names, key=lambda name: name != first))


def load_evidence(folder: Path) -> Evidence:
    """What a study left in `folder`; LowprecError for a folder that is none, or damaged records."""
    if not (folder / "cells").is_dir() or not (folder / STUDY).is_file():
        raise LowprecError(
            f"{folder}: no study's folder; expected 'cells' and {STUDY} in it, as "
            "lowprec study --out writes them"
        )
    plan = _json(folder / STUDY).get("study", {})
    named = _recipes(plan, folder / STUDY)
    order = {spelled: i for i, spelled in enumerate(named)}
    cells, unnamed = [], 0
    for path, record in _records(folder / "cells"):
        spelled = record.subject.get("recipe")
        if spelled not in named:
            unnamed += 1
            continue
        name, recipe = named[spelled]
        cells.append(Cell(Candidate(name, recipe, record), record, path.relative_to(folder)))
    cells.sort(key=lambda cell: (order[cell.record.subject["recipe"]], cell.record.name))
    searched = _json(folder / SEARCH).get("candidates", []) if (folder / SEARCH).exists() else []
    _check(plan, searched, folder)
    return Evidence(folder, plan, tuple(cells), tuple(searched), unnamed)


def _check(plan: dict[str, Any], searched: Any, folder: Path) -> None:
    """LowprecError where what is read later is not there."""
    try:
        if asked := plan.get("throughput"):
            _ = [*asked["models"], *asked["machines"]]
            for grid in asked["workloads"]:
                _ = [grid["phase"], max(grid["batch"]), grid["tokens"], grid["context"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LowprecError(f"{folder / STUDY}: throughput: damaged: {error}") from None
    try:
        _ = [(each["name"], each["bits"].values(), +each["predicted_kl"]) for each in searched]
    except (AttributeError, KeyError, TypeError) as error:
        raise LowprecError(f"{folder / SEARCH}: damaged: {error}") from None


def _recipes(plan: dict[str, Any], where: Path) -> dict[str, tuple[str, Recipe]]:
    """Name and recipe by the recipe spelled in full, as records have it."""
    try:
        found = [
            (str(each["name"]), Recipe.model_validate_json(json.dumps(each["recipe"])))
            for each in plan["recipes"]
        ]
    except (KeyError, TypeError, ValidationError) as error:
        raise LowprecError(f"{where}: damaged: {str(error).splitlines()[0]}") from None
    return {recipe.spell(): (name, recipe) for name, recipe in found}


def _records(folder: Path) -> Iterator[tuple[Path, Record]]:
    paths = sorted(folder.glob("*.json"))
    if len(paths) > MAX_CELLS:
        raise LowprecError(f"{folder}: {len(paths)} records; at most {MAX_CELLS}")
    for path in paths:
        data = _json(path)
        wanted = data.pop("sha256", None)
        try:
            record = Record.model_validate_json(json.dumps(data))
        except ValidationError as error:
            raise LowprecError(f"{path}: no record: {str(error).splitlines()[0]}") from None
        if digest(record.model_dump(mode="python")) != wanted or record.name != path.stem:
            raise LowprecError(f"{path}: damaged: its digests differ; run the study again")
        yield path, record


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise LowprecError(f"{path}: larger than {MAX_BYTES >> 20} MB")
        found = json.loads(path.read_text())
    except OSError as error:
        raise LowprecError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise LowprecError(f"{path}: no JSON: {error}") from None
    if not isinstance(found, dict):
        raise LowprecError(f"{path}: expected a JSON object")
    return found
