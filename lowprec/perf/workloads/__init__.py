"""Workloads that come with lowprec: a named model is priced without torch, at any sizes."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from lowprec.errors import LowprecError, unknown
from lowprec.spec import Workload, read_toml
from lowprec.spec.load import MAX_FILE_BYTES

__all__ = ["find_workload", "list_workloads", "load_workload", "read_workload"]

_FOLDER = Path(__file__).parent
# What a published name says of tuning, of a revision or of formats, behind that of the shape.
_VARIANT = re.compile(
    r"[-_](instruct|chat|base|hf|it|thinking|awq|gptq|kv|[wa]\d+a?\d*|v\d|\d{4}|"
    r"(nv|mx)?fp\d+|bf16|fp8[-_]dynamic|quantized\.\w+|eagle\d?)$"
)


def list_workloads() -> list[str]:
    """Names of the models whose workloads come with lowprec."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def load_workload(name: str | Path) -> Workload:
    """The workload of a model by its name or hub id, or from a file of `lowprec trace`.

    Owner, tuning, revision and format in a hub id are passed over, since they do not change the
    shapes: ``nvidia/DeepSeek-R1-0528-NVFP4`` is ``deepseek-v3``. Of a decode pass, batch 1,
    context 2048; `Workload.at` gives others.
    LowprecError: no such model, with the nearest name; a file that holds no workload.
    """
    text = str(name)
    if text.endswith(".json"):
        return read_workload(Path(text))
    found = find_workload(text)
    if found is None:
        raise unknown("workload", text.rpartition("/")[2], {*list_workloads(), *_aliases()})
    return found


def find_workload(name: str) -> Workload | None:
    """The shipped workload of the model of this name or hub id; None if there is none."""
    plain = name.rpartition("/")[2].lower()
    while plain:
        if (known := _aliases().get(plain, plain)) in list_workloads():
            return _shipped(known)
        shorter = _VARIANT.sub("", plain)
        if shorter == plain:
            return None
        plain = shorter
    return None


def read_workload(path: Path) -> Workload:
    """The workload in a file. LowprecError names the file and the key that is wrong."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise LowprecError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB; not read")
        return Workload.model_validate(json.loads(path.read_bytes()))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise LowprecError(f"{path}: {key}: {first['msg']}; expected a recorded workload") from None
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, LowprecError):
            raise
        raise LowprecError(f"{path}: {error}") from None


@cache
def _shipped(name: str) -> Workload:
    return read_workload(_FOLDER / f"{name}.json")


@cache
def _aliases() -> dict[str, str]:
    """Shipped names by the names of models that have the same shapes."""
    names = read_toml(_FOLDER / "aliases.toml")
    return {alias: name for name, aliases in names.items() for alias in aliases}
