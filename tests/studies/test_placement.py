"""Where a model's weights are changes no record; without KL there are its other measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lowprec.cli.app import app
from lowprec.errors import LowprecError
from lowprec.studies import StudyResult, load_study, study


def cells(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "cells").iterdir()}


def edited(tiny: Path, name: str, option: str) -> Path:
    path = tiny.with_name(f"{name}.toml")
    path.write_text(tiny.read_text().replace("windows = 3", f"windows = 3\n{option}"))
    return path


@pytest.mark.usefixtures("no_page")
@pytest.mark.filterwarnings("ignore")  # accelerate's and transformers' own
@pytest.mark.parametrize("option", ["stream = true", 'device_map = "auto"'])
def test_a_model_in_parts_has_the_same_records(
    undisturbed: StudyResult, tiny: Path, tmp_path: Path, option: str
) -> None:
    found = study(edited(tiny, "placed", option), tmp_path / "out")
    assert not found.failed
    assert cells(tmp_path / "out") == cells(undisturbed.folder)


@pytest.mark.usefixtures("no_page")
def test_perplexities_alone_are_those_of_the_whole_record(
    undisturbed: StudyResult, tiny: Path, tmp_path: Path
) -> None:
    found = study(edited(tiny, "brief", "perplexity_only = true"), tmp_path / "out")
    pairs = list(zip(found.records, undisturbed.records, strict=True))[:4]
    for brief, whole in pairs:
        assert brief.name != whole.name
        assert brief.metrics == {k: v for k, v in whole.metrics.items() if not k.startswith("kl")}
        assert brief.details["by_cluster"].keys() == {"tokens", "dnll", "top1"}
        assert brief.details["operands"] == whole.details["operands"]
    assert (tmp_path / "out" / "baseline" / "baseline.f32").stat().st_size < 2000


def test_eval_has_the_same_options(tiny: Path, tmp_path: Path) -> None:
    folder = tiny.parent
    out = str(tmp_path / "record.json")
    command = ["eval", str(folder / "model"), "--recipe", "*: weight=mxfp4/floor", "-o", out]
    command += ["--text", str(folder / "text.txt"), "--length", "32", "--windows", "3"]
    ran = CliRunner().invoke(app, [*command, "--stream", "--perplexity-only"])
    assert ran.exit_code == 0, ran.output
    metrics = json.loads(Path(out).read_text())["metrics"]
    assert "ppl" in metrics
    assert "kl" not in metrics
    both = CliRunner().invoke(app, [*command, "--stream", "--device-map", "auto"])
    assert "expected one of them" in str(both.exception)


def test_both_at_once_are_refused(tiny: Path) -> None:
    path = edited(tiny, "both", 'stream = true\ndevice_map = "auto"')
    with pytest.raises(LowprecError, match="stream and device_map: expected one of them"):
        load_study(path)
