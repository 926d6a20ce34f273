"""Packages and results that are damaged or built to harm: a clear refusal, and nothing else."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowprec.errors import LowprecError
from lowprec.proposal import vectors
from lowprec.proposal.verify import check_manifest, verify
from lowprec.proposal.verify import manifest as manifests

NAME = "decode-element"


def listed(package: Path) -> dict[str, dict[str, object]]:
    return {
        path.relative_to(package).as_posix(): {
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "bytes": path.stat().st_size,
        }
        for path in package.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }


def write_manifest(package: Path, files: object) -> None:
    data = {"schema": 1, "format": "mxfp4", "baseline": None, "lowprec": "0", "files": files}
    (package / "manifest.json").write_text(json.dumps(data))


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with one set."""
    package = tmp_path_factory.mktemp("sent") / "package"
    found = [s for s in vectors.generate(vectors.load_target("mxfp4/floor")) if s.name == NAME]
    vectors.write(found, package / "vectors")
    (package / "README.md").write_text("A package.\n")
    write_manifest(package, listed(package))
    return package


@pytest.fixture
def package(sent: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sent, tmp_path / "package"))


@pytest.fixture
def results(sent: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    shutil.copy(sent / "vectors" / f"{NAME}.hex", folder)
    return folder


def test_a_package_as_it_was_sent_is_verified(package: Path, results: Path) -> None:
    files = check_manifest(package)
    assert files is not None
    assert (files.right, files.missing, files.changed, files.extra) == (5, (), (), ())
    (verdict,) = verify(package, results)
    assert verdict.answered
    assert not verdict.wrong


def test_vectors_alone_have_no_manifest(package: Path, results: Path) -> None:
    assert check_manifest(package / "vectors") is None
    assert len(verify(package / "vectors", results)) == 1


def test_missing_changed_and_further_files_are_named(package: Path, results: Path) -> None:
    (package / "README.md").unlink()
    path = package / "vectors" / f"{NAME}.json"
    path.write_bytes(path.read_bytes().replace(b"0", b"1", 1))
    (package / "notes.txt").write_text("mine")
    files = check_manifest(package)
    assert files is not None
    assert (files.missing, files.changed) == (("README.md",), (f"vectors/{NAME}.json",))
    assert files.extra == ("notes.txt",)
    assert "  not listed: notes.txt" in files.sentences
    with pytest.raises(LowprecError, match=r"not as it was sent: 1 missing, 1 changed: README\.md"):
        verify(package, results)


def test_a_file_of_another_size_is_not_read(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (package / "README.md").open("ab") as file:
        file.truncate(1 << 33)  # sparse
    read: list[Path] = []
    open_ = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *a: read.append(self) or open_(self, *a))
    with pytest.raises(LowprecError, match="more than 4 GiB"):
        check_manifest(package)
    assert package / "README.md" not in read


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../../x", "a//b", "", ".", "a\\b", "a\0b", "manifest.json"]
)
def test_paths_out_of_the_package_are_refused(package: Path, name: str) -> None:
    write_manifest(package, {name: {"sha256": "0" * 64, "bytes": 1}})
    with pytest.raises(LowprecError, match="expected a path within the package"):
        check_manifest(package)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "expected an object of 1 to"),
        ({}, "expected an object of 1 to"),
        ({"a": 3}, "sha256: expected 64"),
        ({"a": {"sha256": "0" * 63, "bytes": 1}}, "sha256: expected 64"),
        ({"a": {"sha256": "0" * 64, "bytes": "1"}}, "bytes: expected a size"),
        ({"a": {"sha256": "0" * 64, "bytes": True}}, "bytes: expected a size"),
        ({"a": {"sha256": "0" * 64, "bytes": -1}}, "bytes: expected a size"),
    ],
)
def test_manifests_of_wrong_types_are_refused(package: Path, files: object, message: str) -> None:
    write_manifest(package, files)
    with pytest.raises(LowprecError, match=message):
        check_manifest(package)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"schema": 2, "files": {}}', "schema 1"),
        ('{"schema": 1, "files": {}, "files": {}}', "'files' stands there twice"),
        ('{"schema": 1, "files": {"a": {"bytes": NaN}}}', "the number NaN"),
        ("9" * 10_000, "no JSON"),
    ],
)
def test_texts_that_are_no_manifest_are_refused(package: Path, text: str, message: str) -> None:
    (package / "manifest.json").write_text(text)
    with pytest.raises(LowprecError, match=message):
        check_manifest(package)


def _link(path: Path, to: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(to)


@pytest.mark.parametrize(
    "place", ["manifest.json", "README.md", f"vectors/{NAME}.hex", "vectors/further"]
)
def test_links_in_a_package_are_refused(package: Path, results: Path, place: str) -> None:
    _link(package / place, "/etc/passwd")
    with pytest.raises(LowprecError, match="no link"):
        verify(package, results)


def test_a_linked_folder_of_vectors_is_refused(package: Path, results: Path) -> None:
    (package / "manifest.json").unlink()
    (package / "vectors").rename(package / "real")
    (package / "vectors").symlink_to(package / "real")
    with pytest.raises(LowprecError, match="no link"):
        verify(package, results)


def test_a_pipe_is_refused_and_not_waited_for(package: Path, results: Path) -> None:
    os.mkfifo(package / "pipe")
    with pytest.raises(LowprecError, match="regular file"):
        verify(package, results)
    (results / f"{NAME}.hex").unlink()
    os.mkfifo(results / f"{NAME}.hex")
    with pytest.raises(LowprecError, match="regular file"):
        verify(package / "vectors", results)


def test_too_many_files_are_not_read(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MAX_FILES", 3)
    write_manifest(package, {"a": {"sha256": "0" * 64, "bytes": 1}})
    with pytest.raises(LowprecError, match="too many files"):
        check_manifest(package)


# Results.


def answer(results: Path, ending: str, content: bytes) -> None:
    for path in results.iterdir():
        path.unlink()
    (results / f"{NAME}{ending}").write_bytes(content)


def archive(**arrays: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in arrays.items():
            file.writestr(f"{name}.npy", data)
    return buffer.getvalue()


def array(data: object, pickled: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array(data, dtype=object if pickled else None), allow_pickle=pickled)
    return buffer.getvalue()


class Bomb:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, ("bomb-went-off",)


def npy_head(shape: str, dtype: str = "<u8") -> bytes:
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode()


def twice() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("head.npy", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("head.npy", b"2")
    return buffer.getvalue()


# Ending, content, message.
BOMBS: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "zip bomb": (".npz", lambda: archive(head=b"\0" * (129 << 20)), "unpacks to more than"),
    "pickle": (".npz", lambda: archive(head=array([Bomb()], pickled=True)), "unsigned integers"),
    "shape of words": (".npz", lambda: archive(head=npy_head("(1 << 62,)")), "head"),
    "huge shape": (".npz", lambda: archive(head=npy_head("(1" + "0" * 18 + ",)")), "do not fill"),
    "negative shape": (".npz", lambda: archive(head=npy_head("(-8,)")), "do not fill"),
    "floats": (".npz", lambda: archive(head=array([0.5])), "unsigned integers"),
    "two of a name": (".npz", twice, "same name"),
    "path": (".npz", lambda: archive(**{"../../x": array([1])}), "unsigned integers"),
    "no zip": (".npz", lambda: b"PK\x03\x04" + b"\0" * 60, "no npz"),
    "cut zip": (".npz", lambda: archive(head=array([1]))[:-9], "no npz"),
    "deep JSON": (".json", lambda: b"[" * 200_000, "no JSON"),
    "JSON number": (".json", lambda: b"9" * 20_000, "no JSON"),
    "JSON of NaN": (".json", lambda: b"NaN", "the number NaN"),
    "two keys": (".json", lambda: b'{"schema": 1, "schema": 1}', "stands there twice"),
    "binary hex": (".hex", lambda: bytes(range(256)), "ASCII"),
    "empty hex": (".hex", lambda: b"", "first line"),
    "wide CSV": (".csv", lambda: b"," * 100_000, "same name"),
    "long cell": (".csv", lambda: b"value\n" + b"f" * 200_000, "limit|hexadecimal"),
    "words": (".csv", lambda: b"value\n" + b"f " * 1000, "rows; expected"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_before_they_take_memory(
    package: Path, results: Path, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ending, content, message = BOMBS[name]
    answer(results, ending, content())
    monkeypatch.chdir(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(LowprecError, match=message):
            verify(package, results)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert not (tmp_path / "bomb-went-off").exists()


def test_a_huge_file_is_not_read(package: Path, results: Path) -> None:
    answer(results, ".csv", b"value\n")
    os.truncate(results / f"{NAME}.csv", 1 << 40)  # sparse
    with pytest.raises(LowprecError, match="larger than 64 MiB"):
        verify(package, results)


def test_answers_of_nothing_but_nan_are_judged(package: Path, results: Path) -> None:
    asked = vectors.read(package / "vectors" / f"{NAME}.hex")
    answer(results, ".csv", b"value\n" + b"7fffffff\n" * asked.rows)
    (verdict,) = verify(package, results)
    assert len(verdict.wrong) == asked.rows
    assert verdict.diagnoses == ()


# Fuzzing: any damage to any file of package and results.

FILES = ("manifest.json", *(f"vectors/{NAME}{ending}" for ending in vectors.files.FORMS))
MARKS = (b'"', b"{", b"[", b"\0", b"nan", b"-1", b"9" * 40, b"e999", b"../", b"\n", b"# ", b"PK")


def damaged(whole: bytes, data: st.DataObject) -> bytes:
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed)))
        new = data.draw(st.sampled_from(MARKS) | st.binary(max_size=12))
        changed[at : at + data.draw(st.sampled_from([0, 1, 4, 1 << 20]))] = new
    return bytes(changed)


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_damage_gives_a_verdict_or_an_error(
    sent: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzz"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sent, folder / "package")
    (folder / "results").mkdir()
    ending = data.draw(st.sampled_from([".hex", ".json", ".npz"]))
    answers = folder / "results" / f"{NAME}{ending}"
    shutil.copy(sent / "vectors" / f"{NAME}{ending}", answers)
    hit = data.draw(st.sampled_from([*(folder / "package" / name for name in FILES), answers]))
    hit.write_bytes(damaged(hit.read_bytes(), data))
    with suppress(LowprecError):
        assert len(verify(folder / "package", folder / "results")) == 1
    # Without the manifest the damage is the readers' matter.
    (folder / "package" / "manifest.json").unlink()
    with suppress(LowprecError):
        assert len(verify(folder / "package", folder / "results")) == 1
