"""The document as Markdown; its figures are files beside it."""

from __future__ import annotations

from typing import Any

from lowprec.proposal.document.model import Document, plain

FIGURES = "figures"


def markdown(document: Document) -> str:
    """GitHub's Markdown; figures are linked as ``figures/NAME.svg``."""
    data = plain(document)
    lines = [f"# {data['title']}", "", data["subtitle"], ""]
    lines += [f"- {name}: {_text(spans)}" for name, spans in data["facts"]]
    for section in data["sections"]:
        lines += ["", f"## {section['number']}. {section['title']}"]
        for block in section["blocks"]:
            lines += ["", *_block(block)]
    return "\n".join(lines) + "\n"


def _block(block: dict[str, Any]) -> list[str]:
    match block["kind"]:
        case "paragraph":
            return [_text(block["spans"])]
        case "heading":
            return [f"### {_text(block['spans'])}"]
        case "absent":
            return [f"> {_text(block['spans'])}"]
        case "listing":
            return ["```", *block["text"].splitlines(), "```"]
        case "points":
            return [
                f"{f'{i}.' if block['numbered'] else '-'} {_text(item)}"
                for i, item in enumerate(block["items"], 1)
            ]
        case "table":
            return _table(block)
    image = f"![{_escaped(block['alternative'])}]({FIGURES}/{block['name']}.svg)"
    return [image, "", _caption("Figure", block)]


def _table(block: dict[str, Any]) -> list[str]:
    rules = ["---:" if i in block["right"] else "---" for i in range(len(block["columns"]))]
    lines = [_caption("Table", block), "", _row([_text(c) for c in block["columns"]]), _row(rules)]
    for i, row in enumerate(block["rows"]):
        cells = [_text(cell) for cell in row]
        if i in block["strong"]:
            cells = [f"**{cell}**" if cell and "**" not in cell else cell for cell in cells]
        lines.append(_row(cells))
    return lines


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _caption(what: str, block: dict[str, Any]) -> str:
    return f"*{what} {block['number']}.* {_text(block['caption'])} *Source: {_plain(block)}*"


def _plain(block: dict[str, Any]) -> str:
    return "".join(span["text"] for span in block["source"])


def _text(spans: list[dict[str, str]]) -> str:
    marks = {"plain": "{}", "code": "`{}`", "strong": "**{}**", "raised": "<sup>{}</sup>"}
    return "".join(
        marks[s["kind"]].format(s["text"] if s["kind"] == "code" else _escaped(s["text"]))
        for s in spans
    )


def _escaped(text: str) -> str:
    for mark in "\\*_[]<>":
        text = text.replace(mark, f"\\{mark}")
    return text
