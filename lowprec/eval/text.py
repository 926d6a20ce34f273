"""A text: documents of prose, and what stands between them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

SEPARATOR = "\n\n"


@dataclass(frozen=True)
class Text:
    """Documents of prose; `digest` is the SHA-256 (hex) of them all.

    separator: what stands between two of them in the one file that they come from. rows: their
    lines are the rows of the data set, which some protocols join with blank lines.
    """

    name: str
    documents: tuple[str, ...]
    separator: str = SEPARATOR
    rows: bool = False

    @property
    def digest(self) -> str:
        sha = hashlib.sha256()
        for document in self.documents:
            data = document.encode()
            sha.update(len(data).to_bytes(8, "little") + data)
        return sha.hexdigest()
