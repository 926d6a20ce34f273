"""Content: sections of text, tables and figures. How they look is the renderers' matter.

Text is plain but for `code` between backticks, **strong** words and exponents: 2^−3, 2^(e − 1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_MARKED = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\^(\([^()]*\)|−?[\w.]*\w)")


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Heading:
    """Within a section, without a number."""

    text: str


@dataclass(frozen=True)
class Points:
    """A list; numbered where the order matters."""

    items: tuple[str, ...]
    numbered: bool = False


@dataclass(frozen=True)
class Listing:
    """Code or commands, as they stand."""

    text: str


@dataclass(frozen=True)
class Absent:
    """What no record says, said plainly."""

    text: str


@dataclass(frozen=True)
class Table:
    """Cells are text. right: the columns of numbers. wide: the columns whose text may take more
    than a line and that share what width is left. strong: a row that stands out. source: where the
    numbers come from. dense: many short rows, set small."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    source: str
    right: frozenset[int] = frozenset()
    wide: frozenset[int] = frozenset()
    strong: frozenset[int] = frozenset()
    dense: bool = False


@dataclass(frozen=True)
class Figure:
    """svg: the drawing; alternative: the same in words, for those who do not see it. name: what a
    file of it is called. width: the share of the text's width."""

    name: str
    caption: str
    svg: str
    alternative: str
    source: str
    width: float = 1.0


Block = Paragraph | Heading | Points | Listing | Absent | Table | Figure


@dataclass(frozen=True)
class Section:
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """facts: what stands under the title, as name and text. kind: what stands over it."""

    title: str
    subtitle: str
    facts: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...] = field(default=())
    kind: str = "Number format proposal"

    @property
    def figures(self) -> list[Figure]:
        blocks = (block for section in self.sections for block in section.blocks)
        return [block for block in blocks if isinstance(block, Figure)]


def spans(text: str) -> list[dict[str, str]]:
    """The runs of a text: plain, code, strong or raised."""
    found, at = [], 0
    for match in _MARKED.finditer(text):
        if match.start() > at:
            found.append({"kind": "plain", "text": text[at : match.start()]})
        kind = "code" if match[1] else "strong" if match[2] else "raised"
        raised = (match[3] or "").removeprefix("(").removesuffix(")")
        found.append({"kind": kind, "text": match[1] or match[2] or raised})
        at = match.end()
    if at < len(text):
        found.append({"kind": "plain", "text": text[at:]})
    return found


def plain(document: Document) -> dict[str, Any]:
    """The document as plain data with its numbers, which all three forms are made from."""
    counts = {"Table": 0, "Figure": 0}
    return {
        "title": document.title,
        "subtitle": document.subtitle,
        "kind": document.kind,
        "facts": [[name, spans(text)] for name, text in document.facts],
        "sections": [
            {"number": i, "title": section.title, "blocks": list(_blocks(section.blocks, counts))}
            for i, section in enumerate(document.sections, 1)
        ],
    }


def _blocks(blocks: tuple[Block, ...], counts: dict[str, int]) -> Iterator[dict[str, Any]]:
    for block in blocks:
        name = type(block).__name__
        if name in counts:
            counts[name] += 1
        yield {"kind": name.lower(), "number": counts.get(name, 0)} | _block(block)


def _block(block: Block) -> dict[str, Any]:
    match block:
        case Paragraph() | Heading() | Absent():
            return {"spans": spans(block.text)}
        case Listing():
            return {"text": block.text}
        case Points():
            return {"items": [spans(item) for item in block.items], "numbered": block.numbered}
        case Table():
            return _table(block)
        case Figure():
            return {
                "name": block.name,
                "caption": spans(block.caption),
                "svg": block.svg,
                "alternative": block.alternative,
                "source": spans(block.source),
                "width": block.width,
            }


def _table(table: Table) -> dict[str, Any]:
    return {
        "caption": spans(table.caption),
        "columns": [spans(column) for column in table.columns],
        "rows": [[spans(cell) for cell in row] for row in table.rows],
        "right": sorted(table.right),
        "wide": sorted(table.wide),
        "strong": sorted(table.strong),
        "dense": table.dense,
        "source": spans(table.source),
    }
