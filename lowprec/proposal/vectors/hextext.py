"""Hex text: a head of comment lines, then a line per row."""

from __future__ import annotations

import re
from typing import Any

from lowprec.errors import LowprecError
from lowprec.proposal.vectors import head
from lowprec.proposal.vectors.model import MAX_ROWS, Column, VectorSet, Words

TITLE = "# lowprec conformance vectors"
_LINE = re.compile(r"# ([a-z]+): (.*)")
_COLUMN = re.compile(r"([a-z_]+) (in|out|step) (\d{1,2}) (\S+)( many)?")
_CELL = re.compile(r"-|[0-9a-fA-F]{1,16}(,[0-9a-fA-F]{1,16})*")
NONE = "-"


def dump(found: VectorSet) -> bytes:
    h = found.head
    lines = [TITLE]
    lines += [f"# {key}: {h[key]}" for key in _SIMPLE]
    lines.append(f"# spec: {head.text(h['spec'])}")
    lines += [
        f"# column: {c.name} {c.role} {c.bits} {c.format}{' many' if c.many else ''}"
        for c in found.columns
    ]
    for i, why in enumerate(found.why):
        lines.append(" ".join([*(cell(c, c.words[i]) for c in found.columns), why]))
    return ("\n".join(lines) + "\n").encode()


_SIMPLE = ("schema", "kind", "target", "part", "level", "digest", "rows")


def cell(column: Column, words: Words) -> str:
    """The words of one row: hexadecimal, of as many digits as the bits need, joined by commas."""
    return ",".join(f"{word:0{column.digits}x}" for word in words) or NONE


def words_of(text: str, where: str) -> Words:
    """What `cell` wrote; case does not matter."""
    if not _CELL.fullmatch(text):
        raise LowprecError(f"{where}: {text[:40]!r}: expected hexadecimal words")
    return () if text == NONE else tuple(int(word, 16) for word in text.split(","))


def load(data: bytes) -> VectorSet:
    try:
        lines = data.decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise LowprecError("expected ASCII text") from None
    if lines[0].strip() != TITLE:
        raise LowprecError(f"first line: expected {TITLE!r}")
    top = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    found = head.check(_head(lines[1:top]))
    body = [line for line in lines[top:] if line.strip()]
    if len(body) > MAX_ROWS:
        raise LowprecError(f"{len(body)} rows; at most {MAX_ROWS}")
    count = len(found["columns"])
    cells: list[list[Words]] = [[] for _ in range(count)]
    why = []
    for number, line in enumerate(body, 1):
        parts = line.split()
        if len(parts) != count + 1:
            raise LowprecError(f"row {number}: {len(parts)} fields; expected {count + 1}")
        for own, part in zip(cells, parts, strict=False):
            own.append(words_of(part, f"row {number}"))
        why.append(parts[-1])
    return head.assemble(found, [tuple(own) for own in cells], tuple(why))


def _head(lines: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"columns": []}
    for line in lines:
        match = _LINE.fullmatch(line.rstrip("\r"))
        if not match:
            raise LowprecError(f"head: {line[:60]!r}: expected '# key: value'")
        key, text = match.groups()
        if key == "column":
            found["columns"].append(_column(text))
        elif key in found:
            raise LowprecError(f"head: {key} stands there twice")
        elif key == "spec":
            found[key] = head.parse(text)
        else:
            found[key] = _integer(text) if key in ("schema", "rows") else text
    return found


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,9}", text) else None


def _column(text: str) -> dict[str, Any]:
    match = _COLUMN.fullmatch(text)
    if not match:
        raise LowprecError(f"column {text[:60]!r}: expected NAME in|out|step BITS FORMAT [many]")
    name, role, bits, fmt, many = match.groups()
    return {"name": name, "role": role, "bits": int(bits), "format": fmt, "many": bool(many)}
