"""The document as PDF, set by Typst, which needs no TeX and no fonts of the system."""

from __future__ import annotations

import json
import shutil
import tempfile
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from lowprec.errors import LowprecError
from lowprec.proposal.document.model import Document, plain


def require_typst() -> None:
    """LowprecError where typst is not installed."""
    if find_spec("typst") is None:
        raise LowprecError(
            "the PDF needs typst, which is not installed: pip install 'lowprec[proposal]'"
        )


def pdf(document: Document) -> bytes:
    """The PDF: the same bytes for the same document and the same version of Typst.

    LowprecError where typst is not installed.
    """
    return _set(document, "pdf")[0]


def pages(document: Document, dots_per_inch: float = 110) -> list[bytes]:
    """Every page as a PNG."""
    return _set(document, "png", dots_per_inch)


def _set(
    document: Document, form: Literal["pdf", "png"], dots_per_inch: float | None = None
) -> list[bytes]:
    require_typst()
    import typst

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(document, folder)
        found = typst.compile(
            folder / "page.typ",
            root=folder,
            format=form,
            ppi=dots_per_inch,
            ignore_system_fonts=True,
            timestamp=0,
        )
    assert found is not None
    return found if isinstance(found, list) else [found]


def _write(document: Document, folder: Path) -> None:
    """The template, the content as JSON and the drawings."""
    data = plain(document)
    for section in data["sections"]:
        for block in section["blocks"]:
            if svg := block.pop("svg", None):
                (folder / f"{block['name']}.svg").write_text(svg)
    (folder / "content.json").write_text(json.dumps(data))
    with as_file(files("lowprec.proposal.document").joinpath("page.typ")) as template:
        shutil.copy(template, folder / "page.typ")
