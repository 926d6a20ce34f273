"""The head of a vector file, checked key by key, and the set that it and the words make."""

from __future__ import annotations

import json
import math
from typing import Any

from lowprec.errors import LowprecError
from lowprec.proposal.vectors.model import MAX_COLUMNS, MAX_ROWS, SCHEMA, Column, VectorSet, Words

MAX_HEAD = 8 << 20
_TYPES = {
    "kind": str, "target": str, "part": str, "level": str, "digest": str, "spec": dict,
    "rows": int, "columns": list,
}  # fmt: skip
_COLUMN = {"name": str, "role": str, "bits": int, "format": str, "many": bool}


# JSON has no numbers for what a codebook may hold.
_NAMED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def text(data: Any, indent: int | None = None) -> str:
    """Canonical JSON, on one line unless indented; NaN and Inf are strings."""
    return json.dumps(_named(data), sort_keys=True, indent=indent, allow_nan=False)


def _named(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _named(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_named(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return "NaN" if data != data else "Infinity" if data > 0 else "-Infinity"
    return data


def _numbers(data: Any) -> Any:
    """The inverse of `_named`: names of numbers stand in lists alone, where a spec has no texts."""
    if isinstance(data, dict):
        return {key: _numbers(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_NAMED.get(v, v) if isinstance(v, str) else _numbers(v) for v in data]
    return data


def _no_constant(name: str) -> None:
    raise LowprecError(f"no JSON: the number {name}; expected the string {name!r}")


def parse(data: str | bytes) -> Any:
    """JSON, whatever it holds; LowprecError where it is none or has a key twice."""
    try:
        return json.loads(data, object_pairs_hook=_once, parse_constant=_no_constant)
    except LowprecError:
        raise
    except (ValueError, RecursionError) as error:
        message = str(error).splitlines()[0] if str(error) else "too deep"
        raise LowprecError(f"no JSON: {message}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise LowprecError(f"the key {twice[:40]!r} stands there twice")
    return found


def check(head: Any) -> dict[str, Any]:
    """`head`, if it has all that `VectorSet.head` gives, of the right types."""
    if not isinstance(head, dict):
        raise LowprecError("head: expected a JSON object")
    if head.get("schema") != SCHEMA:
        raise LowprecError(f"schema {str(head.get('schema'))[:20]!r}; expected {SCHEMA}")
    _types(head, _TYPES, "head")
    if not 0 <= head["rows"] <= MAX_ROWS:
        raise LowprecError(f"{head['rows']} rows; at most {MAX_ROWS}")
    if not 1 <= len(head["columns"]) <= MAX_COLUMNS:
        raise LowprecError(f"{len(head['columns'])} columns; expected 1 to {MAX_COLUMNS}")
    for column in head["columns"]:
        if not isinstance(column, dict):
            raise LowprecError("columns: expected objects")
        _types(column, _COLUMN, "column")
        if not 1 <= column["bits"] <= 64:
            raise LowprecError(f"column {column['name'][:30]}: bits: expected 1 to 64")
    return head | {"spec": _numbers(head["spec"])}


def _types(data: dict[str, Any], types: dict[str, type], where: str) -> None:
    for key, kind in types.items():
        if type(data.get(key)) is not kind:
            raise LowprecError(f"{where}: {key}: expected {kind.__name__}")


def assemble(
    head: dict[str, Any], words: list[tuple[Words, ...]], why: tuple[str, ...]
) -> VectorSet:
    """The set of a checked head; LowprecError where head and words disagree."""
    if len(why) != head["rows"]:
        raise LowprecError(f"{len(why)} rows; the head promises {head['rows']}: truncated?")
    columns = tuple(
        Column(c["name"], c["role"], c["bits"], c["format"], w, c["many"])
        for c, w in zip(head["columns"], words, strict=True)
    )
    found = VectorSet(
        head["kind"], head["target"], head["part"], head["level"], head["spec"], columns, why
    )
    if found.digest != head["digest"]:
        raise LowprecError("digest: does not belong to the spec")
    return found
