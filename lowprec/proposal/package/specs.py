"""Formats and datapaths as TOML files that `lowprec` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lowprec.proposal.subject import Proposal, Side
from lowprec.spec import BlockFormat, Datapath, Format, data_dir


def format_files(p: Proposal) -> Iterator[tuple[str, bytes]]:
    """The file of each format, and of each scalar format that it is made of, by name. A file that
    exists is copied; others are written from the parameters."""
    seen = set()
    for side in filter(None, (p.ours, p.baseline)):
        for name, content in _of(side):
            if name not in seen:
                seen.add(name)
                yield name, content


def _of(side: Side) -> Iterator[tuple[str, bytes]]:
    fmt = side.format
    parts = fmt.parts.values() if isinstance(fmt, BlockFormat) else ()
    for part in {part.name: part for part in parts}.values():
        yield f"{part.name}.toml", _shipped("scalar", part.name) or _written(part)
    kind = "block" if isinstance(fmt, BlockFormat) else "scalar"
    own = side.file.read_bytes() if side.file else _shipped(kind, fmt.name)
    yield f"{fmt.name}.toml", own or _written(fmt)


def _shipped(kind: str, name: str) -> bytes | None:
    path: Path = data_dir("formats") / kind / f"{name}.toml"
    return path.read_bytes() if path.is_file() else None


def _written(fmt: Format | BlockFormat) -> bytes:
    facts = {"source": f"{fmt.name}: written from its parameters by lowprec propose"}
    return toml(fmt.to_json() | {"facts": facts}).encode()


def datapath_file(unit: Datapath, name: str) -> bytes:
    """The unit of a format as `load_datapath` reads it."""
    facts = {
        "source": f"lowprec.spec.default_datapath of {name}: what today's tensor cores would be",
        "evidence": "assumed",
    }
    return toml(unit.to_json() | {"facts": facts}).encode()


def toml(data: Mapping[str, Any]) -> str:
    """Plain data as TOML: values first, then a table for each mapping; nothing for None."""
    flat = {k: v for k, v in data.items() if v is not None and not isinstance(v, Mapping)}
    lines = [f"{key} = {_value(value)}" for key, value in flat.items()]
    for key, value in data.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{key}]"]
            lines += [f"{k} = {_value(v)}" for k, v in value.items() if v is not None]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value, ensure_ascii=False)
        case Mapping():
            inner = [f"{k} = {_value(v)}" for k, v in value.items() if v is not None]
            return "{ " + ", ".join(inner) + " }"
        case list() | tuple():
            return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)
