"""From TOML files and short texts to the frozen types. Files are data: bounded, never executed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from lowprec.errors import LowprecError, did_you_mean, unknown
from lowprec.spec.base import Spec
from lowprec.spec.block import BlockFormat
from lowprec.spec.facts import Facts
from lowprec.spec.format import AnyFormat, CodebookFormat, FloatFormat, Format, IntFormat
from lowprec.spec.projection import ROUNDINGS, SATURATIONS, Projection
from lowprec.spec.quantizer import RULES, Quantizer
from lowprec.spec.recipe import Recipe

MAX_FILE_BYTES = 4 << 20
_PACKAGE = Path(__file__).parent.parent
_SCALAR: TypeAdapter[FloatFormat | IntFormat | CodebookFormat] = TypeAdapter(AnyFormat)
_GRANULARITY = re.compile(r"(?P<scalar>.+)_(?P<block>tensor|channel|g(?P<group>[1-9]\d{0,5}))")

S = TypeVar("S", bound=Spec)


def data_dir(name: str) -> Path:
    """The folder of shipped data ("formats", "evals"), in a wheel or in a checkout."""
    for folder in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise LowprecError(f"this installation of lowprec lacks its {name!r} data folder")


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
    return validate(TypeAdapter(cls), data, where, list(cls.model_fields))


def validate(adapter: TypeAdapter[Any], data: Any, where: str, keys: list[str]) -> Any:
    """`build` for any type; `keys` are the valid top-level keys, for the nearest name."""
    try:
        return adapter.validate_python(_tuples(data))
    except ValidationError as error:
        raise LowprecError(f"{where}: {_first(error, keys)}") from None


def _tuples(data: Any) -> Any:
    """TOML has lists, the frozen types have tuples."""
    if isinstance(data, Mapping):
        return {key: _tuples(value) for key, value in data.items()}
    return tuple(map(_tuples, data)) if isinstance(data, list | tuple) else data


def _first(error: ValidationError, keys: list[str]) -> str:
    errors = error.errors(include_url=False)
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    key = ".".join(str(part) for part in first["loc"] if part not in ("float", "int", "codebook"))
    if first["type"] == "extra_forbidden":
        known = keys if len(first["loc"]) <= 2 else []
        return f"{key}: unknown key{did_you_mean(str(first['loc'][-1]), known)}"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "literal_error":
        names = re.findall(r"'([^']*)'", first["ctx"]["expected"])
        message += did_you_mean(str(first["input"]), names) if len(names) > 3 else ""
    if first["type"] != "missing" and isinstance(first["input"], str | int | float | bool):
        message += f" (got {first['input']!r})"
    return f"{key}: {message}" if key else message


def list_formats() -> list[str]:
    """Names of all built-in formats, scalar and block."""
    return sorted(_files())


@cache
def _files() -> dict[str, Path]:
    return {path.stem: path for path in data_dir("formats").glob("*/*.toml")}


def load_format(name: str | Path, where: str = "") -> Format | BlockFormat:
    """A format by its name, or from a .toml file.

    A scalar's name with ``_tensor``, ``_channel`` or ``_gN`` is that format with a float32 scale
    per tensor, per channel or per N elements.
    """
    text = str(name)
    if text.endswith(".toml"):
        return _format_file(Path(text))[0]
    if text in _files():
        return _built_in(text)
    family = _GRANULARITY.fullmatch(text)
    if family and family["scalar"] in _files():
        block = (int(family["group"]),) if family["group"] else family["block"]
        data = {"name": text, "element": family["scalar"], "scale": "float32", "block": block}
        return _block(data, where or text)
    raise unknown("format", text, list_formats(), where)


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
    kinds = {"float": FloatFormat, "int": IntFormat, "codebook": CodebookFormat}
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


def load_quantizer(text: str, where: str = "") -> Quantizer:
    """A quantizer from ``format/rule[:granularity][/rounding[:bits]][/saturation]``.

    A scalar format alone is a plain cast. A scalar format with a granularity, ``tensor``,
    ``channel`` or a block length, gets a float32 scale: ``float8_e4m3fn/amax:channel``.
    """
    place = where or f"quantizer {text!r}"
    head, dot, tail = text.partition(".toml/")
    name, *parts = [head + ".toml", *tail.split("/")] if dot else text.split("/")
    fmt = load_format(name, place)
    if not parts and isinstance(fmt, BlockFormat):
        raise LowprecError(f"{place}: {name!r} needs a scale rule, as in '{name}/{_usual(fmt)}'")
    rule, colon, granularity = (parts or ["cast"])[0].partition(":")
    if rule not in RULES:
        raise unknown("scale rule", rule, RULES, place)
    if colon:
        fmt = load_format(f"{name}_{_suffix(granularity, place)}", place)
    return build(
        Quantizer, {"format": fmt, "rule": rule, "projection": _projection(parts[1:], place)}, place
    )


def _usual(fmt: BlockFormat) -> str:
    return "floor" if isinstance(fmt.scale, FloatFormat) and fmt.scale.precision == 1 else "amax"


def _suffix(granularity: str, where: str) -> str:
    if granularity.isdecimal():
        return f"g{granularity}"
    if granularity not in ("tensor", "channel"):
        raise unknown("granularity", granularity, ["tensor", "channel", "a block length"], where)
    return granularity


def _projection(parts: list[str], where: str) -> Projection:
    data: dict[str, Any] = {}
    for part in parts:
        name, colon, bits = part.partition(":")
        if name in ROUNDINGS and "rounding" not in data:
            data["rounding"] = name
            if colon:
                data["bits"] = int(bits) if bits.isdecimal() else bits
        elif part in SATURATIONS and "saturation" not in data:
            data["saturation"] = part
        else:
            raise unknown("rounding or saturation", part, (*ROUNDINGS, *SATURATIONS), where)
    return build(Projection, data, where)


def load_recipe(source: str | Path | Mapping[str, Any] | Recipe, where: str = "") -> Recipe:
    """A recipe from a .toml file, a name under evals/recipes, a dict, or a text.

    The text is ``pattern: operands`` joined by ``;``, with operands ``keep`` or
    ``weight=QUANTIZER activation=QUANTIZER``; a quantizer alone stands for both operands of every
    module.
    """
    if isinstance(source, Recipe):
        return source
    if isinstance(source, Mapping):
        return _recipe(source, where or "recipe")
    text = str(source)
    if text.endswith(".toml") and "=" not in text:
        return _recipe(read_toml(text), text)
    if re.fullmatch(r"[\w.+-]+", text):
        named = data_dir("evals") / "recipes" / f"{text}.toml"
        if named.is_file():
            return _recipe(read_toml(named), str(named))
    if ": " not in text:
        text = f"*: weight={text} activation={text}"
    rules = [
        _text_rule(part.strip(), where or "recipe") for part in text.split(";") if part.strip()
    ]
    return _recipe({"name": "text", "rules": rules}, where or "recipe")


def _text_rule(text: str, where: str) -> dict[str, Any]:
    match, _, operands = text.partition(": ")
    rule: dict[str, Any] = {"match": match}
    for operand in operands.split():
        key, equals, value = operand.partition("=")
        if not equals and operand != "keep":
            raise LowprecError(f"{where}: {operand!r}: expected keep, weight=... or activation=...")
        rule[key] = value if equals else True
    return rule


def _recipe(data: Mapping[str, Any], where: str) -> Recipe:
    data = dict(data)
    rules = data.get("rules")
    if isinstance(rules, list | tuple) and all(isinstance(rule, Mapping) for rule in rules):
        data["rules"] = tuple(
            _quantizers(rule, f"{where}: rules.{i}") for i, rule in enumerate(rules)
        )
    return build(Recipe, data, where)


def _quantizers(rule: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {
        key: load_quantizer(value, f"{where}.{key}")
        if key in ("weight", "activation") and isinstance(value, str)
        else value
        for key, value in rule.items()
    }
