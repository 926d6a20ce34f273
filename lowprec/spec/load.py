"""From TOML files to the frozen types. Files are data: bounded, never executed."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from lowprec.errors import LowprecError, did_you_mean
from lowprec.spec.base import Spec

MAX_FILE_BYTES = 4 << 20
_PACKAGE = Path(__file__).parent.parent

# pydantic puts the branch of a union it tried into the path of an error; users know no branches.
_UNION_BRANCH = re.compile(r"float$|int$|codebook$|tuple\[|literal\[|str$")
S = TypeVar("S", bound=Spec)


def data_dir(name: str) -> Path:
    """The folder of shipped data ("formats", "evals"), in a wheel or in a checkout."""
    for folder in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise LowprecError(f"this installation of lowprec lacks its {name!r} data folder")


def cache_dir() -> Path:
    """``$LOWPREC_CACHE``, else ``$XDG_CACHE_HOME/lowprec``, else ``~/.cache/lowprec``; created."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("LOWPREC_CACHE") or Path(home) / "lowprec").expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LowprecError(f"cache folder {folder}: {error.strerror}; set LOWPREC_CACHE") from None
    return folder


def read_toml(path: str | Path) -> dict[str, Any]:
    """The content of a TOML file of at most 4 MiB; every failure is a one-line error."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise LowprecError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB; not read")
        return tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        near = did_you_mean(path.name, [p.name for p in path.parent.glob("*.toml")])
        raise LowprecError(f"{path}: no such file{near}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise LowprecError(f"{path}: {str(error).splitlines()[0]}") from None


def build(cls: type[S], data: Any, where: str) -> S:
    """`data` as a `cls`, or a one-line error that names `where` and the key."""
    try:
        return cls.model_validate(_tuples(data))
    except ValidationError as error:
        raise LowprecError(f"{where}: {_first(error, cls)}") from None


def _tuples(data: Any) -> Any:
    """TOML has lists, the frozen types have tuples."""
    if isinstance(data, Mapping):
        return {key: _tuples(value) for key, value in data.items()}
    return tuple(map(_tuples, data)) if isinstance(data, list | tuple) else data


def _keys(cls: type[Spec], loc: tuple[int | str, ...]) -> list[str]:
    """The fields that the last part of `loc` could have meant, as far as the types say."""
    for part in loc[:-1]:
        field = cls.model_fields.get(str(part))
        if field is None:
            return list(cls.model_fields) if len(loc) <= 2 else []
        inner = [t for t in (field.annotation, *get_args(field.annotation)) if _is_spec(t)]
        if len(inner) != 1:
            return []
        cls = inner[0]
    return list(cls.model_fields)


def _is_spec(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Spec)


def _first(error: ValidationError, cls: type[Spec]) -> str:
    errors = error.errors(include_url=False)
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    literal = [e for e in errors if e["loc"][:1] == first["loc"][:1] and "literal" in e["type"]]
    if literal and isinstance(literal[0]["input"], str):
        first = literal[0]
    key = ".".join(str(part) for part in first["loc"] if not _UNION_BRANCH.match(str(part)))
    if first["type"] == "extra_forbidden":
        known = _keys(cls, first["loc"])
        return f"{key}: unknown key{did_you_mean(str(first['loc'][-1]), known)}"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "literal_error":
        names = re.findall(r"'([^']*)'", first["ctx"]["expected"])
        message += did_you_mean(str(first["input"]), names) if len(names) > 3 else ""
    if first["type"] != "missing" and isinstance(first["input"], str | int | float | bool):
        message += f" (got {first['input']!r})"
    return f"{key}: {message}" if key else message
