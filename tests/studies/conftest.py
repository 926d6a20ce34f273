"""One undisturbed run of the tiny study, shared by the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowprec.studies import StudyResult, study
from tests import tiny_study


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of study.toml beside its model and text."""
    return tiny_study.make(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def undisturbed(tiny: Path) -> StudyResult:
    return study(tiny, tiny.parent / "undisturbed")
