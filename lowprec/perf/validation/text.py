"""Sizes and units out of the words of a measurement."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lowprec.errors import LowprecError

_PAIR = re.compile(r"([A-Za-z_][A-Za-z_/]*)\s*[=:]\s*([0-9][0-9,_]*(?:\.[0-9]+)?)([kK]i?)?\b")
# Not the 1 of 1.5, 1e6 or 1k.
_CHAIN = re.compile(r"((?:[A-Za-z_/]+\s*=\s*)+)([0-9][0-9,_]*)(?![0-9A-Za-z_]|[,.][0-9])")
_PRODUCT = re.compile(r"([MNK])\s*[xX*\u00d7]\s*([MNK])\s*[xX*\u00d7]\s*([MNK])\s*[=:]?\s*")
_NUMBERS = re.compile(
    r"([0-9][0-9,_]*)\s*[xX*\u00d7]\s*([0-9][0-9,_]*)\s*[xX*\u00d7]\s*([0-9][0-9,_]*)"
)
# In brackets, or with each size behind its letter.
_TUPLE = re.compile(r"[\[(]\s*([0-9]+)\s*,\s*([0-9]+)\s*,\s*([0-9]+)\s*[\])]")
_LETTERS = re.compile(r"\bm([0-9]+)[_-]?n([0-9]+)[_-]?k([0-9]+)\b", re.IGNORECASE)
_CUBE = re.compile(r"\b([0-9]+)\s*(?:\^|\*\*)\s*3\b")
SECONDS = {"s": 1.0, "sec": 1.0, "second": 1.0, "ms": 1e-3, "msec": 1e-3, "millisecond": 1e-3,
           "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "usec": 1e-6, "microsecond": 1e-6, "ns": 1e-9,
           "nsec": 1e-9, "nanosecond": 1e-9}  # fmt: skip
_RATES = {"flop": 1.0, "gflop": 1e9, "tflop": 1e12, "pflop": 1e15, "top": 1e12, "gop": 1e9,
          "pop": 1e15}  # fmt: skip
_STREAMS = {"gb": 1e9, "tb": 1e12, "mb": 1e6, "gib": 2.0**30, "tib": 2.0**40}


def sizes(text: str) -> dict[str, int]:
    """Sizes by their names in lower case: "M=1 N=2048", "M=N=K=8192", "MxNxK=1x2x3", "1x2x3"."""
    found: dict[str, int] = {}
    if product := _PRODUCT.search(text):
        numbers = _NUMBERS.search(text, product.end())
        if numbers:
            found |= {
                name.lower(): _integer(number)
                for name, number in zip(product.groups(), numbers.groups(), strict=True)
            }
            return found
    for names, number in _CHAIN.findall(text):
        for name in re.split(r"\s*=\s*", names.strip().rstrip("=")):
            if name:
                found[name.strip().lower()] = _integer(number)
    for name, number, kilo in _PAIR.findall(text):
        size = float(re.sub("[,_]", "", number)) * (1024 if kilo else 1)
        if size != int(size):
            raise LowprecError(f"shape: {text!r}: {name} is {size:g}, expected a whole number")
        found[name.lower()] = int(size)
    if not found:
        found = _bare(text)
    return found


def _bare(text: str) -> dict[str, int]:
    """M, N and K of sizes without names."""
    for pattern in (_LETTERS, _NUMBERS, _TUPLE):
        if match := pattern.search(text):
            return dict(zip("mnk", map(_integer, match.groups()), strict=True))
    return dict.fromkeys("mnk", int(cube[1])) if (cube := _CUBE.search(text)) else {}


def _integer(text: str) -> int:
    return int(re.sub("[,_]", "", text))


def need(found: dict[str, int], names: Mapping[str, tuple[str, ...]], shape: str) -> dict[str, int]:
    """The sizes that `names` asks for, each by one of its spellings; LowprecError if one lacks."""
    result = {}
    for name, spellings in names.items():
        value = next((found[s] for s in spellings if s in found), None)
        if value is None:
            raise LowprecError(f"shape: {shape!r} gives no {name} (expected {spellings[0]}=...)")
        if value < 1:
            raise LowprecError(f"shape: {shape!r}: {name} is {value}, expected 1 or more")
        result[name] = value
    return result


def in_unit(unit: str, seconds: float, flops: float, moved: float) -> float:
    """A time, rate or bandwidth in the unit that the row uses; LowprecError for another one."""
    text = re.sub(r"/s(?:ec)?$|\s", "", unit.strip().lower())
    one = text if len(text) < 3 else text.removesuffix("s")
    for spelled in (text, one):
        if spelled in SECONDS:
            return seconds / SECONDS[spelled]
    if one in _RATES and flops:
        return flops / seconds / _RATES[one]
    if text in _STREAMS and moved:
        return moved / seconds / _STREAMS[text]
    raise LowprecError(f"unit: {unit!r} is not known for this row; expected us, ms, TFLOPS or GB/s")
