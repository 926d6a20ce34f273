"""Vector sets as files: hex text, JSON and npz. Files are data: bounded, never executed.

Every size is checked before anything of that size is allocated. Nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from lowprec.errors import LowprecError, unknown
from lowprec.proposal.vectors import hextext, jsontext, npz
from lowprec.proposal.vectors.model import SCHEMA, VectorSet

MAX_BYTES = 64 << 20
FORMS = {".hex": hextext, ".json": jsontext, ".npz": npz}
INDEX = "index.json"


def write(sets: Iterable[VectorSet], folder: Path) -> list[Path]:
    """Every set as NAME.hex, NAME.json and NAME.npz in `folder`, which is made, and an index of
    them. The same sets give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    written, rows = [], {}
    for each in sets:
        for ending, form in FORMS.items():
            path = folder / f"{each.name}{ending}"
            path.write_bytes(form.dump(each))
            written.append(path)
        rows[each.name] = {"kind": each.kind, "target": each.target, "rows": each.rows}
    index = folder / INDEX
    index.write_text(json.dumps({"schema": SCHEMA, "sets": rows}, indent=1, sort_keys=True) + "\n")
    return [*written, index]


def read(path: str | Path) -> VectorSet:
    """The set of one file, in any of the three forms.

    LowprecError for a file that is none: another schema, wrong types, words that do not fit,
    truncated, too large, a link.
    """
    path = Path(path)
    form = FORMS.get(path.suffix)
    if form is None:
        raise unknown("ending", path.suffix, FORMS, str(path))
    data = read_bytes(path)
    try:
        found: VectorSet = form.load(data)
        return found
    except LowprecError as error:
        raise LowprecError(f"{path}: {error}") from None


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """A regular file of at most `limit` bytes, that no link leads to."""
    try:
        if path.is_symlink() or not path.is_file():
            raise LowprecError(f"{path}: expected a regular file, no link")
        size = path.stat().st_size
        if size > limit:
            raise LowprecError(f"{path}: larger than {limit >> 20} MiB; not read")
        with path.open("rb") as file:
            # Memory is taken for what is asked, not for what is there.
            return file.read(size)
    except (OSError, ValueError) as error:
        if isinstance(error, LowprecError):
            raise
        raise LowprecError(f"{path}: {error}") from None
