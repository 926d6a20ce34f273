"""Whether a package is as it was sent: every file under the digest that its manifest has for it.

Nothing in a package is trusted: names are checked before they are opened, sizes before anything is
read, and no link is followed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowprec.errors import LowprecError
from lowprec.proposal.vectors.files import read_bytes
from lowprec.proposal.vectors.head import parse

MANIFEST = "manifest.json"
SCHEMA = 1
MAX_MANIFEST = 16 << 20
MAX_FILES = 20_000
MAX_DEPTH = 12
# Of all files together.
MAX_BYTES = 4 << 30
_PART = re.compile(r"[^/\\\x00-\x1f\x7f]{1,255}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
SHOWN = 5


@dataclass(frozen=True)
class Integrity:
    """Files against the manifest: how many are as they should be, and the names of those that are
    missing, changed, or there without being listed."""

    right: int
    missing: tuple[str, ...]
    changed: tuple[str, ...]
    extra: tuple[str, ...]

    @property
    def sentences(self) -> list[str]:
        lines = [f"manifest: {self.right} files are as they were sent"]
        kinds = (("missing", self.missing), ("changed", self.changed), ("not listed", self.extra))
        return lines + [f"  {kind}: {_named(names)}" for kind, names in kinds if names]

    def to_json(self) -> dict[str, Any]:
        return {
            "right": self.right,
            "missing": list(self.missing),
            "changed": list(self.changed),
            "extra": list(self.extra),
        }

    def require_whole(self, package: Path) -> None:
        """LowprecError for a package with missing or changed files; those not listed may stay."""
        wrong = [
            f"{len(x)} {w}" for w, x in (("missing", self.missing), ("changed", self.changed)) if x
        ]
        if wrong:
            names = _named((*self.missing, *self.changed))
            raise LowprecError(f"{package}: not as it was sent: {', '.join(wrong)}: {names}")


def _named(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def check_manifest(package: Path) -> Integrity | None:
    """The files of `package` against its manifest, or None where it has none (a folder of vectors).

    LowprecError for a manifest that is none, for names that lead out of the package, and for links
    in it.
    """
    if not (package / MANIFEST).exists() and not (package / MANIFEST).is_symlink():
        return None
    wanted = _read(package / MANIFEST)
    found = dict(_walk(package))
    found.pop(MANIFEST, None)
    if sum(found.values()) > MAX_BYTES:
        raise LowprecError(f"{package}: more than {MAX_BYTES >> 30} GiB; not read")
    listed = [name for name in wanted if name in found]
    changed = [name for name in listed if not _is(package / name, found[name], *wanted[name])]
    return Integrity(
        len(listed) - len(changed),
        tuple(sorted(wanted.keys() - found.keys())),
        tuple(sorted(changed)),
        tuple(sorted(found.keys() - wanted.keys())),
    )


def _is(path: Path, size: int, digest: str, nbytes: int) -> bool:
    """Whether a file has that size and digest; of another size it is not read."""
    if size != nbytes:
        return False
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
    except OSError as error:
        raise LowprecError(f"{path}: {error.strerror}") from None


def _read(path: Path) -> dict[str, tuple[str, int]]:
    """Digest and size by name."""
    try:
        data = parse(read_bytes(path, MAX_MANIFEST))
    except LowprecError as error:
        raise LowprecError(f"{path}: {error}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise LowprecError(f"{path}: expected a JSON object with schema {SCHEMA}")
    files = data.get("files")
    if not isinstance(files, dict) or not 1 <= len(files) <= MAX_FILES:
        raise LowprecError(f"{path}: files: expected an object of 1 to {MAX_FILES} files")
    return {_safe(name, path): _entry(entry, name, path) for name, entry in files.items()}


def _safe(name: str, where: Path) -> str:
    parts = name.split("/")
    plain = all(_PART.fullmatch(part) and part not in (".", "..") for part in parts)
    if not plain or len(parts) > MAX_DEPTH or name == MANIFEST:
        raise LowprecError(f"{where}: file {name[:80]!r}: expected a path within the package")
    return name


def _entry(entry: Any, name: str, where: Path) -> tuple[str, int]:
    digest, size = (entry.get(k) if isinstance(entry, dict) else None for k in ("sha256", "bytes"))
    if not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
        raise LowprecError(f"{where}: {name[:80]!r}: sha256: expected 64 hexadecimal digits")
    if type(size) is not int or size < 0:
        raise LowprecError(f"{where}: {name[:80]!r}: bytes: expected a size")
    return digest, size


def _walk(package: Path) -> Iterator[tuple[str, int]]:
    """Name and size of every file; LowprecError for links and for what is no file."""
    todo, count = [("", 0)], 0
    while todo:
        prefix, depth = todo.pop()
        try:
            with os.scandir(package / prefix) as entries:
                for entry in entries:
                    count += 1
                    name = f"{prefix}{entry.name}"
                    if count > MAX_FILES or depth >= MAX_DEPTH:
                        raise LowprecError(f"{package}: too many files, or too deep; not read")
                    if entry.is_dir(follow_symlinks=False):
                        todo.append((f"{name}/", depth + 1))
                    elif entry.is_file(follow_symlinks=False):
                        yield name, entry.stat(follow_symlinks=False).st_size
                    else:
                        raise LowprecError(f"{package / name}: expected a regular file, no link")
        except OSError as error:
            raise LowprecError(f"{package / prefix}: {error.strerror}") from None
