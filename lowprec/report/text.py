"""Rows and values as text for a terminal, or as JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any


def print_json(data: Any) -> None:
    """`data` as indented JSON on standard output; null for infinity and NaN."""
    print(json.dumps(_finite(data), indent=1, ensure_ascii=False, allow_nan=False))


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def show_rows(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    """Rows as JSON, or as a table under the keys of all of them in order of appearance."""
    if as_json:
        print_json(rows)
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[plain(row.get(name, "")) for name in names] for row in rows]
    right = [all(isinstance(row.get(name, 0), int | float) for row in rows) for name in names]
    if sys.stdout.isatty():
        _rich_table(names, cells, right)
        return
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    for line in [names, *cells]:
        aligned = zip(line, widths, right, strict=True)
        print("  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in aligned).rstrip())


def _rich_table(names: list[str], cells: list[list[str]], right: list[bool]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name, numeric in zip(names, right, strict=True):
        table.add_column(name, justify="right" if numeric else "left")
    for row in cells:
        table.add_row(*(cell.replace("[", "\\[") for cell in row))
    Console().print(table)


def plain(value: Any) -> str:
    """A value as people read it: numbers to six significant digits."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value))
    return str(value)


def print_columns(cells: Iterable[str]) -> None:
    """Short texts beside each other, as many as fit 96 characters."""
    texts = list(cells)
    width = max(map(len, texts)) + 3
    per_line = max(1, 96 // width)
    for start in range(0, len(texts), per_line):
        print("".join(text.ljust(width) for text in texts[start : start + per_line]).rstrip())


def engineering(value: float) -> str:
    """Three significant digits, with k or M."""
    for factor, suffix in ((1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{suffix}"
    return f"{value:.3g}"
