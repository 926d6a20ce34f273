"""A digest of the source that produces a number, so that a change of code is a change of cell."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
_SUFFIXES = {".py", ".c", ".h", ".toml", ".json"}

ACCURACY = ("spec", "kernels", "nn", "eval")
THROUGHPUT = ("spec", "nn", "perf")


@cache
def code_digest(packages: tuple[str, ...]) -> str:
    """SHA-256 (hex) of the paths and bytes of the Python, C and data files of these packages of
    lowprec, machine files apart: those are digested by themselves."""
    total = hashlib.sha256()
    for package in packages:
        files = (path for path in (_PACKAGE / package).rglob("*") if path.suffix in _SUFFIXES)
        for path in sorted(files):
            if "machines" not in path.parts:
                total.update(f"{path.relative_to(_PACKAGE).as_posix()}\0".encode())
                total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
