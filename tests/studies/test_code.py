"""The digest of the code that a number comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

import lowprec
from lowprec.studies import code

PACKAGE = Path(lowprec.__file__).parent


@pytest.mark.parametrize("package", sorted({*code.ACCURACY, *code.THROUGHPUT}))
def test_every_file_of_a_package_counts(package: str) -> None:
    files = (path for path in (PACKAGE / package).rglob("*") if path.is_file())
    suffixes = {path.suffix for path in files if "__pycache__" not in path.parts}
    assert suffixes <= code._SUFFIXES


def test_a_change_of_any_of_them_changes_the_digest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(code, "_PACKAGE", tmp_path)
    (tmp_path / "kernels").mkdir()
    seen = set()
    for name in ("a.py", "core.c", "core_grid.h", "data.toml"):
        for text in ("1", "2"):
            (tmp_path / "kernels" / name).write_text(text)
            seen.add(code.code_digest.__wrapped__(("kernels",)))
    assert len(seen) == 8
