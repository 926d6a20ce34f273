"""Downloads through the real pip, from a folder that stands for the index."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from lowprec.errors import LowprecError
from lowprec.eval.fetch import Wheel, extract_member, fetch, read_member
from lowprec.spec.load import cache_dir
from tests.eval.tiny import write_wheel


def test_download_once(index: Path) -> None:
    said: list[str] = []
    wheel = write_wheel(index, "sample", {"sample/text.txt": b"hello"})
    path = fetch(wheel, said.append)
    assert path.parent == cache_dir() / "downloads"
    (index / wheel.file).unlink()
    assert fetch(wheel, said.append) == path
    assert said == ["downloading sample==1.0 from the package index, once"]
    assert read_member(path, "sample/text.txt", 5) == b"hello"
    assert {p.name for p in path.parent.iterdir()} == {wheel.file, f"{wheel.file}.lock"}


def test_altered_on_the_index(index: Path) -> None:
    wheel = write_wheel(index, "sample", {"sample/text.txt": b"hello"})
    write_wheel(index, "sample", {"sample/text.txt": b"other"})
    with pytest.raises(LowprecError, match=f"sample-1.0.*expected sha256 {wheel.sha256}, got "):
        fetch(wheel, lambda _: None)
    assert not list((cache_dir() / "downloads").rglob("*.whl"))


def test_truncated_in_the_cache_is_removed_and_fetched_anew(index: Path) -> None:
    wheel = write_wheel(index, "sample", {"sample/text.txt": b"hello"})
    path = fetch(wheel, lambda _: None)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(LowprecError, match="truncated or altered") as caught:
        fetch(wheel, lambda _: None)
    assert "\n" not in str(caught.value)
    assert not path.exists()
    assert fetch(wheel, lambda _: None).is_file()


@pytest.mark.usefixtures("index")
def test_no_index() -> None:
    wheel = Wheel(requirement="absent==1.0", file="absent-1.0-py3-none-any.whl", sha256="0" * 64)
    with pytest.raises(
        LowprecError, match=r"pip could not download absent==1\.0 .*No matching"
    ) as e:
        fetch(wheel, lambda _: None)
    assert "\n" not in str(e.value)
    assert str(cache_dir()) in str(e.value)


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOWPREC_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "lowprec"
    monkeypatch.setenv("LOWPREC_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOWPREC_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(LowprecError, match="set LOWPREC_CACHE"):
        cache_dir()


def test_archives_are_bounded_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("big", bytes(1 << 20))
    with pytest.raises(LowprecError, match="big has 1048576 bytes; at most 1000"):
        read_member(path, "big", 1000)
    with pytest.raises(LowprecError, match="no member 'small'"):
        extract_member(path, "small", tmp_path / "out", 1000)
    extract_member(path, "big", tmp_path / "out", 1 << 20)
    assert (tmp_path / "out").stat().st_size == 1 << 20
    path.write_bytes(b"no zip")
    with pytest.raises(LowprecError, match="not a readable zip"):
        read_member(path, "big", 1000)
