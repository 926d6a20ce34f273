"""What machine and system files share: sources by name, and `based_on`, a file that says only
what it changes in another one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowprec.errors import LowprecError, unknown
from lowprec.perf.quantity import WHAT_IF

# Here no number is a quantity: fields of a format, sizes of blocks, counts.
_PLAIN = {"operands", "scalings", "size", "dimensions", "taper", "host", "chips"}


def merged(base: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`base` with `changes` in it: tables key by key, lists of named tables by name (a new name
    is a new entry), everything else replaced. A bare number is an assumption.

    The base's aliases stay with the base.
    """
    result = {k: v for k, v in base.items() if k != "aliases"}
    if "name" in changes and "title" not in changes:
        result["title"] = f"{base.get('title', base.get('name'))}, changed"
    return _merge(result, changes, where)


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    result = dict(base)
    for key, value in changes.items():
        result[key] = value if key in _PLAIN else _value(base.get(key), value, f"{where}: {key}")
    return result


def _value(old: Any, new: Any, where: str) -> Any:
    if isinstance(new, int | float) and not isinstance(new, bool):
        return {"value": float(new), "kind": "assumed", "source": WHAT_IF}
    if isinstance(new, Mapping):
        if "value" in new:
            return {"kind": "assumed", "source": WHAT_IF} | dict(new)
        return _merge(old if isinstance(old, Mapping) else {}, new, where)
    if isinstance(new, list) and any(isinstance(item, Mapping) for item in new):
        return _named(old if isinstance(old, list) else [], new, where)
    return new


def _named(old: list[Any], new: list[Any], where: str) -> list[Any]:
    items = {item["name"]: item for item in old}
    for i, change in enumerate(new):
        if not isinstance(change, Mapping) or not isinstance(name := change.get("name"), str):
            raise LowprecError(f"{where}.{i}: expected a table with the name of what it changes")
        items[name] = _merge(items.get(name, {}), change, f"{where}.{name}")
    return list(items.values())


def cited(data: dict[str, Any], path: Path, *, required: bool) -> dict[str, Any]:
    """`data` with its `[sources]`: a value's `source` is the name of one of those."""
    sources = data.pop("sources", None if required else {})
    if not isinstance(sources, dict) or not all(isinstance(s, str) for s in sources.values()):
        raise LowprecError(f"{path}: sources: expected a table of name = 'where it was read'")
    used: set[str] = set()
    data = {key: _cite(value, sources, used, f"{path}: {key}") for key, value in data.items()}
    for name in sources.keys() - used:
        raise LowprecError(f"{path}: sources: {name!r} is cited by no value")
    return data


def _cite(value: Any, sources: Mapping[str, str], used: set[str], where: str) -> Any:
    """`value` with every `source` replaced by the text it names."""
    if isinstance(value, list):
        return [_cite(item, sources, used, f"{where}.{i}") for i, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    cited = {k: _cite(v, sources, used, f"{where}.{k}") for k, v in value.items()}
    if isinstance(name := value.get("source"), str):
        if name not in sources:
            raise unknown("source", name, sources, f"{where}.source")
        used.add(name)
        cited["source"] = sources[name]
    return cited
