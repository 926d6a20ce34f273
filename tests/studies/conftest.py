"""One undisturbed run of the tiny study, shared by the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowprec.studies import Executor, StudyResult, study
from lowprec.studies.executor import Sizes
from tests import tiny_study


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of study.toml beside its model and text."""
    return tiny_study.make(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def undisturbed(tiny: Path) -> StudyResult:
    one = Executor(workers=1, threads=1)
    return study(tiny, tiny.parent / "undisturbed", executor=one)


@pytest.fixture(autouse=True)
def _one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process alone, whatever the machine has, where a test asks for nothing else: a worker
    takes longer to start than these studies to run."""
    monkeypatch.setattr(
        "lowprec.studies.cells.sizes",
        lambda _bytes, workers, threads: Sizes(workers or 1, threads or 1),
    )


@pytest.fixture
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the report, which takes most of a tiny study's time and is tested elsewhere."""
    monkeypatch.setattr("lowprec.report.page.write", lambda _report, folder: folder / "report.html")
