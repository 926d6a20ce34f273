"""The models that are priced: a configuration is enough, no weights are needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowprec.errors import LowprecError, unknown
from lowprec.perf import find_workload, list_workloads
from lowprec.spec.base import digest
from lowprec.spec.load import MAX_FILE_BYTES


@dataclass(frozen=True)
class Shape:
    """A model to price: a shipped workload, or what is traced: a transformers configuration as
    plain data, or a loaded model."""

    name: str
    digest: str
    source: Any


def load_shape(name: str, say: Callable[[str], None], where: str = "") -> Shape:
    """A shipped workload by name, a config.json, or any model that `eval.load_model` takes.

    LowprecError where `name` is none of these; `where` is the file and key it stands in.
    """
    place = f"{where}: " if where else ""
    if (shipped := find_workload(name)) is not None:
        return Shape(shipped.model, shipped.digest, shipped)
    if name.endswith(".json"):
        path = Path(name).expanduser()
        if not path.is_file():
            raise LowprecError(f"{place}{path}: no such file")
        return _config(path, path.parent.name if path.stem == "config" else path.stem)
    from lowprec.eval.models import list_models, load_model

    if "/" not in name and name not in list_models() and not Path(name).is_dir():
        raise unknown("model", name, [*list_models(), *list_workloads()], where)
    loaded = load_model(name, say=say, where=where)
    return Shape(loaded.name, loaded.digest, loaded.model)


def _config(path: Path, name: str) -> Shape:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise LowprecError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB; not read")
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise LowprecError(f"{path}: {error}") from None
    if not isinstance(data, dict) or "model_type" not in data:
        raise LowprecError(f"{path}: model_type: missing; expected a transformers configuration")
    return Shape(name, digest(data), data)
