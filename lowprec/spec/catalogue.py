"""The catalogue: every format by its name, built in, of a family, or from a user's file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lowprec.errors import LowprecError, unknown
from lowprec.spec.block import BlockFormat
from lowprec.spec.facts import Facts
from lowprec.spec.format import CodebookFormat, FloatFormat, Format, IntFormat
from lowprec.spec.load import build, data_dir, read_toml

_P3109 = re.compile(r"binary(?P<k>[1-9]\d?)p(?P<p>[1-9]\d?)(?P<sign>[su])(?P<domain>[ef])")
_GRANULARITY = re.compile(r"(?P<scalar>.+)_(?P<block>tensor|channel|g(?P<group>[1-9]\d{0,5}))")


def list_formats() -> list[str]:
    """Names of all built-in formats, scalar and block."""
    return sorted(_files())


@cache
def _files() -> dict[str, Path]:
    return {path.stem: path for path in data_dir("formats").glob("*/*.toml")}


def load_format(name: str | Path, where: str = "") -> Format | BlockFormat:
    """A format by its name, or from a .toml file.

    Families need no file: ``binary{K}p{P}{s|u}{e|f}`` of IEEE P3109, and a scalar's name with
    ``_tensor``, ``_channel`` or ``_gN``: that format with a float32 scale per tensor, per channel
    or per N elements.
    """
    text = str(name)
    if text.endswith(".toml"):
        return _format_file(Path(text))[0]
    if text in _files():
        return _built_in(text)
    if match := _P3109.fullmatch(text):
        return _p3109(match, where or text)
    family = _GRANULARITY.fullmatch(text)
    if family and (family["scalar"] in _files() or _P3109.fullmatch(family["scalar"])):
        block = (int(family["group"]),) if family["group"] else family["block"]
        data = {"name": text, "element": family["scalar"], "scale": "float32", "block": block}
        return _block(data, where or text)
    raise unknown("format", text, list_formats(), where)


@cache
def _built_in(name: str) -> Format | BlockFormat:
    return _format_file(_files()[name])[0]


def _p3109(match: re.Match[str], where: str) -> FloatFormat:
    """A format of IEEE P3109 (interim report, 2025): signed or unsigned, extended (with
    infinities) or finite; one NaN, no -0, bias 2^(K-P-1) signed and 2^(K-P) unsigned."""
    k, p, signed = int(match["k"]), int(match["p"]), match["sign"] == "s"
    if not (3 <= k <= 15 and 1 <= p <= k - signed):
        raise LowprecError(
            f"{where}: P3109 has K = 3 to 15 and P = 1 to K-1 (signed) or K (unsigned); "
            f"got K = {k}, P = {p}"
        )
    parameters = {
        "name": match[0],
        "kind": "float",
        "bits": k,
        "precision": p,
        "bias": 1 << (k - p - 1 if signed else k - p),
        "signed": signed,
        "infinity": match["domain"] == "e",
        "nan": "negative-zero" if signed else "all-ones",
    }
    return build(FloatFormat, parameters, where)


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
    """A block format whose element and scales are names, paths or inline tables."""
    data = dict(data)
    for key in ("element", "scale", "tensor_scale"):
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
    return build(BlockFormat, data, where)
