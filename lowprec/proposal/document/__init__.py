"""The document: what it is made of, and its three forms, Markdown, HTML and PDF."""

from lowprec.proposal.document.model import (
    Absent,
    Block,
    Document,
    Figure,
    Heading,
    Listing,
    Paragraph,
    Points,
    Section,
    Table,
)

__all__ = [
    "Absent",
    "Block",
    "Document",
    "Figure",
    "Heading",
    "Listing",
    "Paragraph",
    "Points",
    "Section",
    "Table",
]
