"""JSON: the head's keys, and `data`, a list of rows; words are strings of hexadecimal digits."""

from __future__ import annotations

import json
from typing import Any

from lowprec.errors import LowprecError
from lowprec.proposal.vectors import head
from lowprec.proposal.vectors.hextext import words_of
from lowprec.proposal.vectors.model import MAX_ROWS, Column, VectorSet, Words


def dump(found: VectorSet) -> bytes:
    top = head.text(found.head, indent=1)
    rows = [
        json.dumps([*(_cell(c, c.words[i]) for c in found.columns), why])
        for i, why in enumerate(found.why)
    ]
    # One row per line, so that people can read it and tools can compare versions.
    return (top[:-2] + ',\n "data": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n").encode()


def _cell(column: Column, words: Words) -> str | list[str]:
    texts = [f"{word:0{column.digits}x}" for word in words]
    return texts if column.many else texts[0]


def load(data: bytes) -> VectorSet:
    top = head.parse(data)
    found = head.check(top)
    rows = top.get("data")
    if not isinstance(rows, list) or len(rows) > MAX_ROWS:
        raise LowprecError(f"data: expected a list of at most {MAX_ROWS} rows")
    count = len(found["columns"])
    cells: list[list[Words]] = [[] for _ in range(count)]
    why = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, list) or len(row) != count + 1 or not isinstance(row[-1], str):
            raise LowprecError(f"row {number}: expected {count} cells and a word")
        for own, cell in zip(cells, row, strict=False):
            own.append(_words(cell, f"row {number}"))
        why.append(row[-1])
    return head.assemble(found, [tuple(own) for own in cells], tuple(why))


def _words(cell: Any, where: str) -> Words:
    texts = cell if isinstance(cell, list) else [cell]
    if not all(isinstance(text, str) and len(text) <= 16 for text in texts):
        raise LowprecError(f"{where}: expected strings of hexadecimal digits")
    return tuple(word for text in texts for word in words_of(text, where))
