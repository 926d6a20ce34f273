"""The catalogue: every format by its name, built in, of a family, or from a user's file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from lowprec.errors import LowprecError, unknown
from lowprec.spec import families
from lowprec.spec.block import BlockFormat
from lowprec.spec.facts import Facts
from lowprec.spec.format import CodebookFormat, FloatFormat, Format, IntFormat
from lowprec.spec.load import build, data_dir, read_toml

_GRANULARITY = re.compile(r"(?P<scalar>.+)_(?P<block>tensor|channel|g(?P<group>[1-9]\d{0,5}))")


def list_formats() -> list[str]:
    """Names of all built-in formats, scalar and block."""
    return sorted(_files())


@cache
def _files() -> dict[str, Path]:
    folders = (data_dir("formats") / kind for kind in ("scalar", "block"))
    return {path.stem: path for folder in folders for path in folder.glob("*.toml")}


def load_format(name: str | Path, where: str = "") -> Format | BlockFormat:
    """A format by its name, or from a .toml file.

    Families need no file: ``families.family_names()`` lists the scalar ones, and a scalar's name
    with ``_tensor``, ``_channel`` or ``_gN`` is that format with a float32 scale per tensor, per
    channel or per N elements.
    """
    text = str(name)
    if text.endswith(".toml"):
        return _format_file(Path(text))[0]
    if text in _files():
        return _built_in(text)
    if (scalar := families.resolve(text, where)) is not None:
        return scalar
    match = _GRANULARITY.fullmatch(text)
    if match and _is_named(match["scalar"], where):
        block = (int(match["group"]),) if match["group"] else match["block"]
        data = {"name": text, "element": match["scalar"], "scale": "float32", "block": block}
        return _block(data, where or text)
    raise unknown("format", text, list_formats(), where)


def _is_named(name: str, where: str) -> bool:
    return name in _files() or families.resolve(name, where) is not None


@cache
def _built_in(name: str) -> Format | BlockFormat:
    return _format_file(_files()[name])[0]


def load_facts(name: str | Path) -> Facts:
    """The ``[facts]`` table of a format's file: what its source says of it."""
    path = Path(name) if str(name).endswith(".toml") else _files().get(str(name))
    if path is None:
        raise unknown("format", str(name), list_formats())
    return _format_file(path)[1]


def _format_file(path: Path) -> tuple[Format | BlockFormat, Facts]:
    data = read_toml(path)
    where = str(path)
    if "facts" not in data:
        raise LowprecError(
            f"{where}: facts: missing; expected at least [facts] with source = '...'"
        )
    facts = build(Facts, data.pop("facts"), f"{where}: facts")
    fmt = _block(data, where) if "element" in data else _scalar(data, where)
    if fmt.name != path.stem:
        raise LowprecError(f"{where}: name: {fmt.name!r} differs from the file's {path.stem!r}")
    return fmt, facts


def _scalar(data: Mapping[str, Any], where: str) -> Format:
    kinds: dict[str, type[Format]] = {
        "float": FloatFormat,
        "int": IntFormat,
        "codebook": CodebookFormat,
    }
    kind = data.get("kind")
    if kind not in kinds:
        if kind is None:
            raise LowprecError(f"{where}: kind: missing; expected one of {', '.join(kinds)}")
        raise unknown("kind", str(kind), kinds, f"{where}: kind")
    return build(kinds[str(kind)], data, where)


def _block(data: Mapping[str, Any], where: str) -> BlockFormat:
    """A block format whose scalar formats are names, paths or inline tables."""
    data = dict(data)
    _resolve(data, ("element", "scale", "zero_point", "offset"), where)
    for key in ("outer", "outlier"):
        if isinstance(data.get(key), Mapping):
            data[key] = _resolve(dict(data[key]), ("scale", "element"), f"{where}: {key}")
    if isinstance(data.get("inner"), list | tuple):
        data["inner"] = [
            _resolve(dict(level), ("scale",), f"{where}: inner.{i}")
            if isinstance(level, Mapping)
            else level
            for i, level in enumerate(data["inner"])
        ]
    return build(BlockFormat, data, where)


def _resolve(data: dict[str, Any], keys: Sequence[str], where: str) -> dict[str, Any]:
    """`data` with the scalar formats themselves under `keys`."""
    for key in keys:
        value = data.get(key)
        if isinstance(value, str):
            scalar = load_format(value, f"{where}: {key}")
            if isinstance(scalar, BlockFormat):
                raise LowprecError(
                    f"{where}: {key}: {value!r} is a block format; expected a scalar"
                )
            data[key] = scalar
        elif isinstance(value, Mapping):
            data[key] = _scalar(value, f"{where}: {key}")
    return data
