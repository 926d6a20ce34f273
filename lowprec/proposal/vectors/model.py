"""Vector sets: inputs and the answers that the contract gives, as words of bits.

A set is a table. Each row is one question and its answer, each column holds words of a fixed
number of bits: one word per row, or (`many`) any number of them. What the words are the code
points of stands in `format`. ``docs/vectors.md`` describes the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lowprec.errors import LowprecError
from lowprec.spec import BlockFormat, Datapath, Format, Quantizer, digest

SCHEMA = 1
Kind = Literal["decode", "encode", "convert", "stochastic", "quantize", "dot"]
Level = Literal["smoke", "standard", "full"]
Words = tuple[int, ...]
Head = tuple[str, Literal["in", "out", "step"], int, str, bool]
Target = Format | BlockFormat | Quantizer | Datapath

KINDS: tuple[str, ...] = get_args(Kind)
LEVELS: tuple[str, ...] = get_args(Level)
MAX_ROWS = 1 << 20
MAX_WORDS = 1 << 23
MAX_COLUMNS = 16
_NAME = re.compile(r"[a-z][a-z_]{0,30}")
_WHY = re.compile(r"[a-z][a-z0-9-]{0,40}")
_FORMAT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


@dataclass(frozen=True)
class Column:
    """The words of one name in all rows.

    role: "in" for what is given, "out" for what is asked, "step" for what a checker may use to
    find out where an answer went wrong. format: the scalar format, or "integer".
    """

    name: str
    role: Literal["in", "out", "step"]
    bits: int
    format: str
    words: tuple[Words, ...]
    many: bool = False

    @property
    def digits(self) -> int:
        """Hexadecimal digits of a word."""
        return -(-self.bits // 4)

    @property
    def head(self) -> dict[str, Any]:
        """All but the words, as plain data."""
        return {
            "name": self.name,
            "role": self.role,
            "bits": self.bits,
            "format": self.format,
            "many": self.many,
        }


@dataclass(frozen=True)
class VectorSet:
    """Questions of one kind to one target, and their answers.

    target: the quantizer or datapath as it is spelled. part: which of its formats or operands it
    is about. spec: the format, quantizer or datapath itself, as plain data. why: a word per row
    that says what the row is there for.
    """

    kind: Kind
    target: str
    part: str
    level: Level
    spec: dict[str, Any]
    columns: tuple[Column, ...]
    why: tuple[str, ...]

    def __post_init__(self) -> None:
        fault = _fault(self)
        if fault:
            raise LowprecError(f"vectors {self.name}: {fault}")

    @property
    def name(self) -> str:
        """What its files are called, without the ending."""
        return f"{self.kind}-{self.part}"

    @property
    def digest(self) -> str:
        """SHA-256 of the spec that the answers are of."""
        return digest(self.spec)

    @property
    def rows(self) -> int:
        return len(self.why)

    @property
    def head(self) -> dict[str, Any]:
        """All but the rows, as plain data: what the files hold at their top."""
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "target": self.target,
            "part": self.part,
            "level": self.level,
            "digest": self.digest,
            "spec": self.spec,
            "rows": self.rows,
            "columns": [column.head for column in self.columns],
        }

    def column(self, name: str) -> Column:
        """The column of this name; LowprecError where there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        names = ", ".join(column.name for column in self.columns)
        raise LowprecError(f"vectors {self.name}: no column {name!r}; it has {names}")


def _fault(found: VectorSet) -> str | None:
    if found.kind not in KINDS:
        return f"kind {found.kind!r}; expected one of {', '.join(KINDS)}"
    if found.level not in LEVELS:
        return f"level {found.level!r}; expected one of {', '.join(LEVELS)}"
    if not _FORMAT.fullmatch(found.part):
        return f"part {found.part!r} is no name"
    if not 1 <= len(found.columns) <= MAX_COLUMNS:
        return f"{len(found.columns)} columns; expected 1 to {MAX_COLUMNS}"
    if found.rows > MAX_ROWS:
        return f"{found.rows} rows; at most {MAX_ROWS}"
    if len({column.name for column in found.columns}) != len(found.columns):
        return "two columns have the same name"
    if sum(len(words) for column in found.columns for words in column.words) > MAX_WORDS:
        return f"more than {MAX_WORDS} words"
    wrong = next((word for word in found.why if not _WHY.fullmatch(word)), None)
    if wrong is not None:
        return f"why {wrong!r}; expected a lower-case word"
    faults = (_column_fault(column, found.rows) for column in found.columns)
    return next((fault for fault in faults if fault), None)


def _column_fault(column: Column, rows: int) -> str | None:
    if not _NAME.fullmatch(column.name) or column.name == "why":
        return f"column {column.name!r}: expected a name of lower-case letters"
    if column.role not in ("in", "out", "step"):
        return f"column {column.name}: role {column.role!r}; expected in, out or step"
    if not _FORMAT.fullmatch(column.format):
        return f"column {column.name}: format {column.format!r} is no name"
    if not 1 <= column.bits <= 64:
        return f"column {column.name}: {column.bits} bits; expected 1 to 64"
    if len(column.words) != rows:
        return f"column {column.name}: {len(column.words)} rows; expected {rows}"
    for words in column.words:
        if not column.many and len(words) != 1:
            return f"column {column.name}: {len(words)} words in a row; expected one"
        if any(word < 0 or word >> column.bits for word in words):
            return f"column {column.name}: a word that {column.bits} bits do not hold"
    return None


Row = tuple[str, tuple[int | Words, ...]]


def table(
    kind: Kind,
    target: str,
    part: str,
    level: Level,
    spec: dict[str, Any],
    heads: list[Head],
    rows: list[Row],
) -> VectorSet:
    """A set from its rows: the reason of each and its words in the columns' order."""
    columns = tuple(
        Column(name, role, bits, fmt, tuple(_words(row[1][i]) for row in rows), many)
        for i, (name, role, bits, fmt, many) in enumerate(heads)
    )
    return VectorSet(kind, target, part, level, spec, columns, tuple(why for why, _ in rows))


def _words(cell: int | Words) -> Words:
    return (cell,) if isinstance(cell, int) else tuple(cell)


def thin(rows: list[Row], limit: int, why: Callable[[Row], str] = lambda row: row[0]) -> list[Row]:
    """At most about `limit` of the rows, in their order: of every reason a share that is spread
    over its rows, the first and the last included."""
    if len(rows) <= limit:
        return rows
    groups: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(why(row), []).append(i)
    kept: set[int] = set()
    # Small groups first, so that what they do not use goes to the larger ones.
    left, remaining = limit, len(groups)
    for members in sorted(groups.values(), key=len):
        count = min(len(members), max(2, left // remaining))
        kept |= {members[(len(members) - 1) * k // max(count - 1, 1)] for k in range(count)}
        left, remaining = left - count, remaining - 1
    return [rows[i] for i in sorted(kept)]
