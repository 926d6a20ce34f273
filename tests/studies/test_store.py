from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lowprec.errors import LowprecError
from lowprec.spec import Metric, Record
from lowprec.studies.store import Store, dump

RECORD = Record(
    kind="accuracy",
    subject={"recipe": "x", "n": 3, "list": [1, 2.5]},
    metrics={"kl": Metric(value=0.1, se=0.01), "odd": Metric(value=float("inf"))},
    details={"rows": [{"a": 1}]},
    environment={"torch": "2"},
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "out")
    with store.locked():
        store.write(RECORD)
    return store


def test_what_is_written_is_read(store: Store) -> None:
    assert store.read(RECORD.name) == RECORD
    assert store.path(RECORD.name).read_text() == dump(RECORD)
    assert store.read("0" * 64) is None
    assert store.corrupt == []


@pytest.mark.parametrize("cut", [0, 1, 10, 100, -1])
def test_a_truncated_file_is_not_trusted(store: Store, cut: int) -> None:
    path = store.path(RECORD.name)
    path.write_text(path.read_text()[:cut])
    assert store.read(RECORD.name) is None
    assert store.corrupt == [path]


@pytest.mark.parametrize(
    ("old", "new"),
    [('"x"', '"y"'), ("2.5", "2.50"), ("0.01", '"0.01"'), ("accuracy", "speed"), ("2.5", "2.6")],
)
def test_an_altered_file_is_not_trusted(store: Store, old: str, new: str) -> None:
    path = store.path(RECORD.name)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert store.read(RECORD.name) is None


def test_bytes_that_are_no_text_are_not_trusted(store: Store) -> None:
    store.path(RECORD.name).write_bytes(b"\xff\x00")
    assert store.read(RECORD.name) is None


def test_leftovers_of_a_killed_write_are_removed(store: Store) -> None:
    (store.cells / ".writing-abc").write_text("{")
    with store.locked():
        assert sorted(p.name for p in store.cells.iterdir()) == [f"{RECORD.name}.json"]


def test_two_at_once_are_refused_and_a_dead_one_is_not(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from lowprec.studies.store import Store\n"
        "with Store(Path(sys.argv[1])).locked(): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "out")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with (
            pytest.raises(LowprecError, match="another study is running there"),
            Store(tmp_path / "out").locked(),
        ):
            pass
        child.kill()
    with Store(tmp_path / "out").locked():
        pass


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LowprecError, match="Not a directory"), Store(tmp_path / "file").locked():
        pass


def test_timings_are_beside_the_records(store: Store) -> None:
    store.time(RECORD.name, 1.23456)
    (line,) = (store.folder / "timings.jsonl").read_text().splitlines()
    assert json.loads(line).items() >= {"cell": RECORD.name, "seconds": 1.235}.items()


def test_files_are_readable_as_the_umask_says(store: Store) -> None:
    mask = os.umask(0)
    os.umask(mask)
    assert store.path(RECORD.name).stat().st_mode & 0o777 == 0o666 & ~mask
