"""The quantities of a machine by path: reading one, and replacing it for a what-if."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeVar

from lowprec.errors import LowprecError, unknown
from lowprec.perf.quantity import Quantity
from lowprec.spec import Spec

S = TypeVar("S", bound=Spec)


def walk(spec: Spec, prefix: str = "") -> Iterator[tuple[str, Quantity]]:
    """Every quantity below `spec` with its path; items of a list go by their name."""
    for field, value in spec:
        if isinstance(value, Quantity):
            yield prefix + field, value
        elif isinstance(value, Spec):
            yield from walk(value, f"{prefix}{field}.")
        elif isinstance(value, tuple):
            for item in value:
                if isinstance(item, Spec) and hasattr(item, "name"):
                    yield from walk(item, f"{prefix}{field}.{item.name}.")


def get(spec: Spec, path: str, where: str) -> Quantity:
    """The quantity at `path`. LowprecError names `where` and the nearest path that has one."""
    found = dict(walk(spec))
    if path not in found:
        raise unknown("parameter", path, found, where)
    return found[path]


def put(spec: S, path: str, value: float, where: str) -> S:
    """`spec` with the quantity at `path` replaced by an assumption. A quantity that no source
    gave can be set too. LowprecError: no such path, or a value that is no positive number."""
    if not (math.isfinite(value) and value > 0):
        raise LowprecError(f"{where}: {path}: expected a positive number, got {value!r}")
    changed = _put(spec, path.split("."), Quantity.what_if(value))
    if changed is None:
        raise unknown("parameter", path, dict(walk(spec)), where)
    return changed


def _put(spec: S, parts: list[str], quantity: Quantity) -> S | None:
    """None: there is no such path."""
    field, *rest = parts
    if field not in type(spec).model_fields:
        return None
    old: Any = getattr(spec, field)
    new: Any = None
    if not rest:
        may = "Quantity" in str(type(spec).model_fields[field].annotation)
        new = quantity if may and (old is None or isinstance(old, Quantity)) else None
    elif isinstance(old, tuple):
        items = [
            (_put(item, rest[1:], quantity) if rest[1:] else None)
            if getattr(item, "name", None) == rest[0]
            else item
            for item in old
        ]
        known = any(getattr(item, "name", None) == rest[0] for item in old)
        new = tuple(items) if known and None not in items else None
    elif isinstance(old, Spec) and not isinstance(old, Quantity):
        new = _put(old, rest, quantity)
    return None if new is None else spec.model_copy(update={field: new})
