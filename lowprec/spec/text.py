"""Quantizers and recipes in one line of text, as records spell them and users type them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowprec.errors import LowprecError, unknown
from lowprec.spec.approximation import FUNCTIONS, Approximation, load_estimate
from lowprec.spec.base import Spec
from lowprec.spec.block import BlockFormat
from lowprec.spec.catalogue import load_format
from lowprec.spec.datapath import load_datapath
from lowprec.spec.format import FloatFormat
from lowprec.spec.load import build, data_dir, read_toml
from lowprec.spec.projection import ROUNDINGS, SATURATIONS, Projection
from lowprec.spec.quantizer import RULES, Quantizer
from lowprec.spec.recipe import QUANTIZED, Recipe, Rule
from lowprec.spec.training import Delayed, InputGradient, WeightGradient
from lowprec.spec.transform import Transform

_QUANTIZERS = (*QUANTIZED, "gradient", "outlier")
_TABLES: dict[str, type[Spec]] = {
    "transform": Transform,
    "delayed": Delayed,
    "input_gradient": InputGradient,
    "weight_gradient": WeightGradient,
    "approximation": Approximation,
}
_SWITCHES = ("keep", "gptq", "requantize", *_TABLES)


def load_quantizer(text: str, where: str = "") -> Quantizer:
    """A quantizer from ``format/rule[=number][:granularity][/rounding[:bits]][/saturation]``.

    A scalar format alone is a plain cast; the rule fixed has a number, ``fixed=0.5``. A scalar
    format with a granularity, ``tensor``, ``channel`` or a block length, gets a float32 scale:
    ``float8_e4m3fn/amax:channel``.
    """
    place = where or f"quantizer {text!r}"
    head, dot, tail = text.partition(".toml/")
    name, *parts = [head + ".toml", *tail.split("/")] if dot else text.split("/")
    fmt = load_format(name, place)
    if not parts and isinstance(fmt, BlockFormat):
        raise LowprecError(f"{place}: {name!r} needs a scale rule, as in '{name}/{_usual(fmt)}'")
    rule, colon, granularity = (parts or ["cast"])[0].partition(":")
    rule, equals, number = rule.partition("=")
    if rule not in RULES:
        raise unknown("scale rule", rule, RULES, place)
    if colon:
        fmt = load_format(f"{name}_{_suffix(granularity, place)}", place)
    data = {"format": fmt, "rule": rule, "projection": _projection(parts[1:], place)}
    return build(Quantizer, data | ({"fixed": _number(number)} if equals else {}), place)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _usual(fmt: BlockFormat) -> str:
    if fmt.zero_point is not None or fmt.offset is not None:
        return "minmax"
    return "floor" if isinstance(fmt.scale, FloatFormat) and fmt.scale.precision == 1 else "amax"


def _suffix(granularity: str, where: str) -> str:
    if granularity.isdecimal():
        return f"g{granularity}"
    if granularity in ("token", "row"):
        raise LowprecError(
            f"{where}: unknown granularity {granularity!r}; expected 'channel', one scale per row:"
            " per token of an activation, per output channel of a weight"
        )
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

    The text is ``pattern: words`` joined by ``;``. A word is ``keep`` or a key of `Rule` with its
    value, ``weight=QUANTIZER``, ``datapath=hopper_fp8``, ``layers=4-27``; a key of a rule's table
    has a dot, ``transform.rotation=32``. A quantizer alone stands for weight and activation of
    every module.
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
    match, _, words = text.partition(": ")
    rule: dict[str, Any] = {"match": match}
    for word in words.split():
        key, equals, value = word.partition("=")
        *tables, name = key.split(".")
        if not equals and name not in _SWITCHES:
            raise LowprecError(f"{where}: {word!r}: expected keep, or an operand: weight=QUANTIZER")
        table = rule
        for each in tables:
            table = table.setdefault(each, {})
        if not equals and name in _TABLES:
            table.setdefault(name, {})
        else:
            table[name] = _plain(name, value) if equals else True
    return rule


def _plain(name: str, value: str) -> Any:
    """A word's value as a TOML file would hold it."""
    if name == "layers":
        return [int(part) if part.isdecimal() else part for part in value.split("-")]
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            pass
    return value


def _recipe(data: Mapping[str, Any], where: str) -> Recipe:
    data = dict(data)
    rules = data.get("rules")
    if isinstance(rules, list | tuple) and all(isinstance(rule, Mapping) for rule in rules):
        data["rules"] = [_table(Rule, rule, f"{where}: rules.{i}") for i, rule in enumerate(rules)]
    return build(Recipe, data, where)


def _table(cls: type[Spec], table: Mapping[str, Any], where: str) -> Spec:
    """A rule or one of its tables, with the quantizers and datapaths that it names."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        place = f"{where}.{key}"
        if isinstance(value, Mapping) and key in _TABLES:
            found[key] = _table(_TABLES[key], value, place)
        elif isinstance(value, str) and key in _QUANTIZERS:
            found[key] = load_quantizer(value, place)
        elif isinstance(value, str) and key == "datapath":
            found[key] = load_datapath(value, place)
        elif isinstance(value, str) and key in FUNCTIONS:
            found[key] = load_estimate(value, place)
        else:
            found[key] = value
    return build(cls, found, where)
