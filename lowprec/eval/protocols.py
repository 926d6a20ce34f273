"""How a text is cut into windows of tokens, and which tokens are scored: perplexity's protocols.

The same model on the same text has another perplexity under each of them, since the contexts
differ; two numbers are comparable under one protocol only. tests/eval/test_protocols.py has each
of them once more, as a plain loop after its source.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import Field, model_validator

from lowprec.errors import LowprecError
from lowprec.eval.text import Text
from lowprec.spec.base import Spec

Kind = Literal["windows", "gptq", "c4", "strided", "llama.cpp", "per-document"]
KINDS: tuple[str, ...] = get_args(Kind)
# C4 as GPTQ's successors score it: 256 windows of the first 1100 validation documents.
C4_DOCUMENTS, C4_WINDOWS = 1100, 256


class Protocol(Spec):
    """How a text is cut.

    kind:

    - ``windows``: the documents, a blank line behind each, tokenized one by one, cut without
      overlap; BOS in front of every window where the tokenizer begins sequences with it.
    - ``gptq``: WikiText-2 as GPTQ (Frantar et al., arXiv:2210.17323) and its successors score it:
      rows joined by blank lines, tokenized once (a BOS of the tokenizer's only at the very start),
      cut without overlap.
    - ``c4``: C4 as their later code does: the first 1100 documents joined by spaces, tokenized
      once, 256 windows.
    - ``strided``: windows of `seqlen` every `stride` tokens of the text joined as in ``gptq``; only
      tokens that no earlier window scored are (Hugging Face transformers, "Perplexity of
      fixed-length models").
    - ``llama.cpp``: its perplexity tool: the file as it is, tokenized once, cut without overlap,
      BOS in place of every window's first token where the tokenizer has one, and only the second
      half scored.
    - ``per-document``: lm-evaluation-harness's rolling loglikelihood: each document for itself,
      behind BOS (EOS without one); windows predict `seqlen` tokens behind one of context, the last
      one as much context as fits.

    seqlen: tokens that the model reads at once. windows: how many, from the start; all without a
    number. stride: of ``strided`` alone; half of `seqlen` without a number.
    """

    kind: Kind = "windows"
    seqlen: Annotated[int, Field(ge=2, le=1 << 20)] = 512
    windows: Annotated[int, Field(ge=1)] | None = None
    stride: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _possible(self) -> Protocol:
        if self.stride is not None and (self.kind != "strided" or self.stride >= self.seqlen):
            raise ValueError("stride: of kind 'strided' alone, and less than seqlen")
        return self

    @property
    def step(self) -> int:
        """Tokens from the start of a window of ``strided`` to that of the next."""
        return self.stride or self.seqlen // 2

    def described(self) -> str:
        """As a table has it: ``gptq, 2048 tokens``."""
        stride = f", stride {self.step}" if self.kind == "strided" else ""
        count = f", {self.windows} windows" if self.windows else ""
        return f"{self.kind}, {self.seqlen} tokens{stride}{count}"


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of one text.

    ids: int64 [n, L], the tokens of each window, filled up with zeros behind the last scored one.
    clusters: int64 [n, L - 1], for the token at ``ids[:, 1:]`` the number of its document or, in a
    text of one document, of its window: tokens with different numbers are treated as independent.
    bos: the token in front of each window that is no part of the text, if any. scored: bool
    [n, L - 1], which tokens of ``ids[:, 1:]`` are; all without it.
    """

    ids: np.ndarray
    clusters: np.ndarray
    bos: int | None
    scored: np.ndarray | None = None

    @property
    def mask(self) -> np.ndarray:
        """`scored`, written out."""
        return np.ones(self.clusters.shape, bool) if self.scored is None else self.scored

    def tokens(self, i: int) -> np.ndarray:
        """What the model reads of window `i`."""
        return self.ids[i, : int(self.mask[i].nonzero()[0][-1]) + 2]

    def places(self, i: int) -> np.ndarray:
        """Where in ``tokens(i)[1:]`` the scored tokens are."""
        return self.mask[i].nonzero()[0]

    @property
    def owners(self) -> np.ndarray:
        """The cluster of every scored token, window after window."""
        return self.clusters[self.mask]

    @property
    def contexts(self) -> np.ndarray:
        """How many tokens stand in front of every scored token in its window."""
        return self.mask.nonzero()[1] + 1

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of shape, tokens, clusters and what is scored."""
        sha = hashlib.sha256(repr((self.ids.shape, self.bos)).encode())
        sha.update(self.ids.astype("<i8").tobytes())
        sha.update(self.clusters.astype("<i8").tobytes())
        if self.scored is not None:
            sha.update(np.packbits(self.scored).tobytes())
        return sha.hexdigest()


def cut(text: Text, tokenizer: Any, seqlen: int = 512, count: int | None = None) -> Windows:
    """`windows_of` the protocol ``windows``: the first `count` windows of `seqlen` tokens."""
    return windows_of(text, tokenizer, Protocol(seqlen=seqlen, windows=count))


def windows_of(text: Text, tokenizer: Any, protocol: Protocol) -> Windows:
    """The windows of `text` that `protocol` asks for.

    What fills no window at the end is dropped, except under ``strided`` and ``per-document``. The
    BOS policy is the tokenizer's own. LowprecError where the text is too short for them.
    """
    if protocol.kind == "per-document":
        return _per_document(text, tokenizer, protocol)
    if protocol.kind == "windows":
        return _windows(text, tokenizer, protocol)
    wanted = protocol.windows
    if protocol.kind == "llama.cpp":
        stream, owners = _stream(text.documents, text.separator, tokenizer)
    elif protocol.kind == "c4":
        stream, owners = _stream(text.documents[:C4_DOCUMENTS], " ", tokenizer)
        wanted = wanted or min(C4_WINDOWS, max(1, len(stream) // protocol.seqlen))
    else:
        pieces = [_rows(d) for d in text.documents] if text.rows else text.documents
        stream, owners = _stream(pieces, "\n\n", tokenizer)
    if protocol.kind == "strided":
        return _strided(text, stream, owners, protocol)
    ids, clusters = _disjoint(text, stream, owners, protocol.seqlen, wanted)
    if protocol.kind != "llama.cpp":
        return Windows(ids, clusters[:, 1:], None)
    bos = _bos(tokenizer)
    if bos is not None:
        ids = np.insert(ids[:, 1:], 0, bos, axis=1)
    # Its tool reads the predictions at positions n / 2 to n - 2: of the tokens n / 2 + 1 on.
    scored = np.zeros(clusters[:, 1:].shape, bool)
    scored[:, protocol.seqlen // 2 :] = True
    return Windows(ids, clusters[:, 1:], bos, scored)


def _windows(text: Text, tokenizer: Any, protocol: Protocol) -> Windows:
    bos = _bos(tokenizer)
    width = protocol.seqlen - (bos is not None)
    if width < 1:
        raise LowprecError(f"{text.name}: a window of {protocol.seqlen} tokens scores nothing")
    enough = None if protocol.windows is None else protocol.windows * width
    tokens: list[int] = []
    owners: list[int] = []
    for number, document in enumerate(text.documents):
        piece = _ids(tokenizer, document + "\n\n")
        tokens += piece
        owners += [number] * len(piece)
        if enough is not None and len(tokens) >= enough:
            break
    stream, of = np.array(tokens, np.int64), np.array(owners, np.int64)
    ids, clusters = _disjoint(text, stream, of, width, protocol.windows, protocol.seqlen)
    if bos is None:
        return Windows(ids, clusters[:, 1:], None)
    return Windows(np.insert(ids, 0, bos, axis=1), clusters, bos)


def _disjoint(
    text: Text,
    stream: np.ndarray,
    owners: np.ndarray,
    width: int,
    count: int | None,
    seqlen: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and clusters [n, width]; `seqlen` is what a window is called in an error."""
    available, wanted = len(stream) // width, max(1, count or 1)
    if available < wanted:
        raise LowprecError(
            f"{text.name}: {len(stream)} tokens, too short for {wanted} "
            f"window{'s' * (wanted > 1)} of {seqlen or width}"
        )
    n = count or available
    ids = stream[: n * width].reshape(n, width)
    clusters = owners[: n * width].reshape(n, width)
    return ids, _independent(text, clusters)


def _independent(text: Text, clusters: np.ndarray) -> np.ndarray:
    """The documents, or the windows of a text of one."""
    if len(text.documents) > 1:
        return np.ascontiguousarray(clusters)
    return np.repeat(np.arange(len(clusters)), clusters.shape[1]).reshape(clusters.shape)


def _strided(text: Text, stream: np.ndarray, owners: np.ndarray, protocol: Protocol) -> Windows:
    seqlen, total = protocol.seqlen, len(stream)
    if total < 2 or (protocol.windows or 0) > max(1, -(-(total - seqlen) // protocol.step) + 1):
        raise LowprecError(f"{text.name}: {total} tokens, too short for {protocol.described()}")
    found, scored_to = [], 1
    for begin in range(0, total, protocol.step):
        end = min(begin + seqlen, total)
        found.append((stream[begin:end], owners[begin:end], scored_to - begin))
        scored_to = end
        if end == total or len(found) == protocol.windows:
            break
    return _ragged(text, found, None)


def _per_document(text: Text, tokenizer: Any, protocol: Protocol) -> Windows:
    prefix = tokenizer.bos_token_id
    prefix = tokenizer.eos_token_id if prefix is None else prefix
    if prefix is None:
        raise LowprecError(f"{text.name}: per-document scoring needs a tokenizer with BOS or EOS")
    found = list(islice(_rolling(text, tokenizer, prefix, protocol.seqlen), protocol.windows))
    if len(found) < (protocol.windows or 1):
        raise LowprecError(f"{text.name}: too short for {protocol.described()}")
    return _ragged(text, found, prefix)


def _rolling(
    text: Text, tokenizer: Any, prefix: int, seqlen: int
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    for number, document in enumerate(text.documents):
        tokens = np.array([prefix, *_ids(tokenizer, document)], np.int64)
        for done in range(1, len(tokens), seqlen):
            end = min(done + seqlen, len(tokens))
            # Never more than seqlen tokens are read, the last one of which only as an answer.
            begin = done - 1 if done == 1 else max(0, end - seqlen - 1)
            yield tokens[begin:end], np.full(end - begin, number), done - begin


def _ragged(text: Text, rows: list[tuple[np.ndarray, np.ndarray, int]], bos: int | None) -> Windows:
    """Windows of (tokens, owners, place of the first scored token)."""
    length = max(len(tokens) for tokens, _, _ in rows)
    ids = np.zeros((len(rows), length), np.int64)
    clusters = np.zeros((len(rows), length), np.int64)
    scored = np.zeros((len(rows), length), bool)
    for i, (tokens, owners, first) in enumerate(rows):
        ids[i, : len(tokens)], clusters[i, : len(tokens)] = tokens, owners
        scored[i, first : len(tokens)] = True
    return Windows(ids, _independent(text, clusters)[:, 1:], bos, scored[:, 1:])


def _stream(
    pieces: tuple[str, ...] | list[str], separator: str, tokenizer: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The pieces, joined and tokenized at once with the tokenizer's own special tokens, and the
    number of the piece in which each token begins."""
    whole = separator.join(pieces)
    if not getattr(tokenizer, "is_fast", False):
        raise LowprecError(
            "this protocol tokenizes documents at once, which takes a tokenizer that says where "
            "its tokens begin (a fast one); use 'windows' or 'per-document'"
        )
    encoded = tokenizer(whole, return_offsets_mapping=True, verbose=False)
    ends = np.cumsum([len(piece) + len(separator) for piece in pieces])
    starts = np.array([begin for begin, _ in encoded.offset_mapping], np.int64)
    owners = np.searchsorted(ends, starts, side="right")
    return np.array(encoded.input_ids, np.int64), np.minimum(owners, len(pieces) - 1)


def _rows(document: str) -> str:
    """The lines of a document as the rows of Hugging Face's WikiText, joined by blank lines."""
    rows = [f"{line}\n" if line.strip() else "" for line in document.removesuffix("\n").split("\n")]
    return "\n\n".join(rows)


def _ids(tokenizer: Any, text: str) -> list[int]:
    found: list[int] = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
    return found


def _bos(tokenizer: Any) -> int | None:
    first = tokenizer("").input_ids[:1]
    return tokenizer.bos_token_id if first and first[0] == tokenizer.bos_token_id else None
