"""The document as one HTML file that loads nothing."""

from __future__ import annotations

import re
from importlib.resources import files

from lowprec.proposal.document.model import Document, plain


def html(document: Document) -> str:
    """The page, with its style and drawings inside."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["drawing"] = lambda block: Markup(_drawing(block["svg"], block["name"]))
    template = environment.from_string(_resource("page.html.jinja"))
    return template.render(document=plain(document), css=Markup(_resource("page.css")))


def _resource(name: str) -> str:
    return files("lowprec.proposal.document").joinpath(name).read_text()


def _drawing(svg: str, name: str) -> str:
    """SVG to stand in a page: without a size of its own, and ids that no other drawing has."""
    svg = re.sub(r"<\?xml[^>]*\?>|<!DOCTYPE[^>]*>", "", svg).strip()
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
