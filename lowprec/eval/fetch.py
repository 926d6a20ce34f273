"""Files out of package-index wheels: downloaded once by pip itself, checked, cached."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Annotated

from filelock import FileLock
from pydantic import Field

from lowprec.errors import LowprecError
from lowprec.spec.base import Spec
from lowprec.spec.load import cache_dir

Say = Callable[[str], None]
_CHUNK = 1 << 20


def to_stderr(message: str) -> None:
    """Where progress messages go unless the caller has a better place."""
    print(message, file=sys.stderr, flush=True)


class Wheel(Spec):
    """A wheel on a package index, as ``pip download`` names it, and the file it must be."""

    requirement: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+$")]
    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*\.whl$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def sha256_file(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path: Path, expected: str) -> None:
    """Raise LowprecError, and remove the file, unless its SHA-256 is `expected`."""
    actual = sha256_file(path)
    if actual != expected:
        size = path.stat().st_size
        path.unlink()
        raise LowprecError(
            f"{path}: truncated or altered ({size} bytes): expected sha256 {expected}, "
            f"got {actual}; the file was removed, so run again to download it anew"
        )


def fetch(wheel: Wheel, say: Say = to_stderr) -> Path:
    """The wheel's path in the cache, downloaded with pip where it is not there yet.

    pip runs with the user's own index settings, takes wheels only and executes nothing from
    them. The file is checked every time. A machine without an index can be given the file by
    hand, in the ``downloads`` folder of the cache.
    """
    folder = cache_dir() / "downloads"
    folder.mkdir(exist_ok=True)
    path = folder / wheel.file
    with FileLock(f"{path}.lock"):
        if not path.is_file():
            say(f"downloading {wheel.requirement} from the package index, once")
            partial = folder / f".{wheel.file}.partial"
            shutil.rmtree(partial, ignore_errors=True)  # what a killed download left
            _pip_download(wheel, partial, folder)
            check_sha256(partial / wheel.file, wheel.sha256)
            (partial / wheel.file).replace(path)
            partial.rmdir()
        else:
            check_sha256(path, wheel.sha256)
    return path


def _pip_download(wheel: Wheel, to: Path, by_hand: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--ignore-requires-python"]
    command += ["--dest", str(to), wheel.requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if not (to / wheel.file).is_file():
        lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no message"]
        raise LowprecError(
            f"{wheel.file}: pip could not download {wheel.requirement} ({errors[-1]}); check the "
            f"index settings of pip, or put the file into {by_hand}"
        )


def open_member(archive: Path | IO[bytes], member: str, limit: int) -> tuple[zipfile.ZipFile, int]:
    """The opened zip `archive` and the size in bytes of `member`, which is at most `limit`.

    LowprecError where it is no zip file, lacks the member, or the member is larger.
    """
    name = getattr(archive, "name", archive)
    try:
        opened = zipfile.ZipFile(archive)
        size = opened.getinfo(member).file_size
    except (zipfile.BadZipFile, OSError) as error:
        raise LowprecError(f"{name}: not a readable zip archive ({error})") from None
    except KeyError:
        opened.close()
        raise LowprecError(f"{name}: has no member {member!r}") from None
    if size > limit:
        opened.close()
        raise LowprecError(f"{name}: {member} has {size} bytes; at most {limit} are read")
    return opened, size


def read_member(archive: Path | IO[bytes], member: str, limit: int) -> bytes:
    """The bytes of one member of a zip archive; LowprecError above `limit` bytes."""
    opened, size = open_member(archive, member, limit)
    with opened, opened.open(member) as file:
        try:
            return file.read(size + 1)
        except (zipfile.BadZipFile, EOFError, OSError) as error:
            raise LowprecError(f"{member}: damaged in its archive ({error})") from None


def extract_member(archive: Path, member: str, to: Path, limit: int) -> None:
    """Append one member of a zip archive to the file `to`; LowprecError above `limit` bytes."""
    opened, _ = open_member(archive, member, limit)
    with opened, opened.open(member) as source, to.open("ab") as target:
        shutil.copyfileobj(source, target, _CHUNK)
