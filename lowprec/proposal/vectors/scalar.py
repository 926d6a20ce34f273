"""Vectors of scalar formats: decoding, encoding, converting from bfloat16, stochastic rounding."""

from __future__ import annotations

import math
from random import Random

from lowprec.exact import FLOAT32, FLOAT64, Value, code_of, encode, identical, project, value
from lowprec.exact.arith import IEEE
from lowprec.proposal.vectors.inputs import (
    Question,
    boundaries,
    sampled_codes,
    scattered,
    source_of,
)
from lowprec.proposal.vectors.model import Head, Kind, Level, Row, VectorSet, table, thin
from lowprec.spec import CodebookFormat, FloatFormat, Format, Projection, load_format

# Rows of a set by level.
ROWS = {"smoke": 320, "standard": 4096, "full": 1 << 17}
STOCHASTIC_BITS = 8


def decode_set(fmt: Format, target: str, part: str, level: Level) -> VectorSet:
    """Every code point of up to 8 bits, and of wider formats as many as the level has rows."""
    wide = _widened(fmt)
    rows: list[Row] = []
    for code in sampled_codes(fmt, max(256, min(ROWS[level], 1 << 16))):
        y = value(code, fmt)
        rows.append((_kind_of(y), (code, code_of(y, wide))))
    heads: list[Head] = [
        ("code", "in", fmt.bits, fmt.name, False),
        ("value", "out", wide.bits, wide.name, False),
    ]
    return table("decode", target, part, level, fmt.to_json(), heads, rows)


def encode_set(
    fmt: Format, projection: Projection, target: str, part: str, level: Level
) -> VectorSet:
    """Numbers at, below and above every boundary, the ends of the range and special values."""
    source = source_of(fmt)
    asked = [*boundaries(fmt, ROWS[level]), *scattered(fmt, ROWS[level] // 8, seed=1)]
    rows: list[Row] = [
        (why, (x, encode(value(x, source), fmt, projection)))
        for why, x in _chosen(asked, ROWS[level])
    ]
    return _converted("encode", fmt, projection, source, target, part, level, rows)


def convert_set(
    fmt: Format, projection: Projection, target: str, part: str, level: Level
) -> VectorSet:
    """From bfloat16, another source than float32: all its numbers at the level full."""
    source = load_format("bfloat16")
    assert isinstance(source, FloatFormat)
    asked: list[Question] = []
    for code in sampled_codes(source, min(ROWS[level] // 2, 1 << 16)):
        x = value(code, source)
        if x == x or fmt.has_nan:
            asked.append(("nan" if x != x else "number", code))
    rows: list[Row] = [(w, (x, encode(value(x, source), fmt, projection))) for w, x in asked]
    return _converted("convert", fmt, projection, source, target, part, level, rows)


def stochastic_set(
    fmt: Format, projection: Projection, target: str, part: str, level: Level
) -> VectorSet:
    """Stochastic rounding with the random bits given, at the bits where the answer turns."""
    bits = projection.bits or STOCHASTIC_BITS
    projection = Projection(rounding="stochastic", saturation=projection.saturation, bits=bits)
    source, random, top = source_of(fmt), Random(2), (1 << bits) - 1
    asked = [*boundaries(fmt, ROWS[level] // 8), *scattered(fmt, ROWS[level] // 2, seed=3)]
    rows: list[Row] = []
    for why, x in _chosen(asked, ROWS[level] // 2):
        for r in {0, top, 1 << (bits - 1), random.getrandbits(bits)}:
            code = encode(value(x, source), fmt, projection, r)
            rows.append((why, (x, r, code)))
    rows = thin(rows, ROWS[level])
    heads: list[Head] = [
        ("x", "in", source.bits, source.name, False),
        ("random", "in", bits, "integer", False),
        ("code", "out", fmt.bits, fmt.name, False),
    ]
    spec = {"format": fmt.to_json(), "projection": projection.to_json()}
    return table("stochastic", target, part, level, spec, heads, rows)


def _kind_of(y: Value) -> str:
    if not math.isfinite(y):
        return "nan" if y != y else "infinity"
    return "value" if y else "zero"


def _widened(fmt: Format) -> FloatFormat:
    """float32 if it holds every value, else float64."""
    if fmt.bits <= 8 or isinstance(fmt, CodebookFormat):
        values = (value(code, fmt) for code in range(fmt.code_points))
        exact = all(identical(project(v, FLOAT32.format, IEEE), v) for v in values)
    else:
        exact = (
            source_of(fmt) == FLOAT32.format and _precision(fmt) <= 24
        ) or fmt.name == "float32"
    return FLOAT32.format if exact else FLOAT64.format


def _precision(fmt: Format) -> int:
    return fmt.precision if isinstance(fmt, FloatFormat) else fmt.bits


def _chosen(asked: list[Question], limit: int) -> list[Question]:
    """Each question once, at most about `limit` of them."""
    first: dict[int, str] = {}
    for why, x in asked:
        first.setdefault(x, why)
    rows = thin([(why, (x,)) for x, why in first.items()], limit)
    return [(why, words[0]) for why, words in rows if isinstance(words[0], int)]


def _converted(
    kind: Kind,
    fmt: Format,
    projection: Projection,
    source: FloatFormat,
    target: str,
    part: str,
    level: Level,
    rows: list[Row],
) -> VectorSet:
    heads: list[Head] = [
        ("x", "in", source.bits, source.name, False),
        ("code", "out", fmt.bits, fmt.name, False),
    ]
    spec = {"format": fmt.to_json(), "projection": projection.to_json()}
    return table(kind, target, part, level, spec, heads, rows)
