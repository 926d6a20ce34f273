"""What other commands left in a study's folder joins its report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lowprec.errors import LowprecError
from lowprec.report.outcomes import task_rows, training_rows
from lowprec.report.page import html
from lowprec.spec.record import Metric, Record
from lowprec.studies import StudyResult, study
from lowprec.studies.beside import found_beside
from lowprec.studies.store import dump

RUNS = Path(__file__).parents[2] / "evals" / "results" / "pretrain"


def record(recipe: str, lost: int, gained: int) -> Record:
    """Of 40 items, half of which the unquantized model answers."""
    from lowprec.eval.significance import mcnemar

    base = [1.0] * 20 + [0.0] * 20
    after = [0.0] * lost + base[lost:20] + [1.0] * gained + base[20 + gained :]
    pair = mcnemar(base, after)
    return Record(
        kind="tasks",
        subject={"recipe": recipe, "model": {"name": "m"}},
        metrics={
            "a acc,none": Metric(value=sum(after) / 40),
            "a acc,none base": Metric(value=0.5),
            "a acc,none change": Metric(value=pair.difference, se=pair.se),
            "a perplexity,none": Metric(value=9.0),
            "a perplexity,none base": Metric(value=8.0),
        },
        details={
            "pairs": [{"task": "a", "metric": "acc,none"} | vars(pair)],
            "items": {"recipe": {"a": {"acc,none": after, "perplexity,none": [[1.0, 2.0]] * 40}}},
        },
        environment={},
    )


def test_tasks_have_intervals_and_corrected_p_values(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    for number, (recipe, lost, gained) in enumerate((("r1", 12, 1), ("r2", 3, 2))):
        (tmp_path / "tasks" / f"{number}.json").write_text(dump(record(recipe, lost, gained)))
    rows = found_beside(tmp_path, {"r1": "first"})["tasks"]
    assert [row["recipe"] for row in rows] == ["first", "first", "r2", "r2"]
    accuracy, perplexity, other, _ = rows
    after = [0.0] * 12 + [1.0] * 9 + [0.0] * 19
    assert sum(after) / 40 == accuracy["score"]
    # Wilson: (9 + z²/2 ± z sqrt(9 · 31 / 40 + z²/4)) / (40 + z²), z = 1.96.
    assert accuracy["interval"] == pytest.approx((0.1232, 0.3750), abs=1e-4)
    # Agresti and Min: -11/42 ± 1.96 sqrt(13 + 1 - 11²/42) / 42.
    assert accuracy["change_interval"] == pytest.approx((-0.4175, -0.1063), abs=1e-4)
    assert accuracy["p"] < 0.05
    assert (accuracy["holm"], other["holm"]) == (2 * accuracy["p"], other["p"])
    assert (perplexity["p"], perplexity["interval"], perplexity["holm"]) == (None, None, None)
    (tmp_path / "tasks" / "bad.json").write_text("{}")
    with pytest.raises(LowprecError, match=r"bad\.json: no record"):
        found_beside(tmp_path, {})


@pytest.mark.usefixtures("no_page")
def test_they_are_in_the_studys_report(
    undisturbed: StudyResult, tiny: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(undisturbed.folder, tmp_path / "out")
    (out / "tasks").mkdir()
    spelled = undisturbed.study.recipes[1].recipe.spell()
    (out / "tasks" / "mxfp8.json").write_text(dump(record(spelled, 5, 1)))
    shutil.copytree(RUNS, out / "training")
    report = study(tiny, out).report
    first, second = task_rows(report)
    assert (first["Recipe"], first["Score"]["text"]) == ("mxfp8", "0.400 (0.263 to 0.554)")
    assert first["Change"]["text"] == "-0.100 (-0.215 to +0.025)"
    assert second["Change"]["text"] == "-"
    runs = {row["Recipe"]: row for row in training_rows(report)}
    wanted = {row["recipe"]: row for row in json.loads((RUNS / "summary.json").read_text())}
    assert runs.keys() == wanted.keys()
    for name, row in wanted.items():
        assert runs[name]["Difference"]["value"] == row["difference"]
    assert runs["bf16"]["Difference"]["text"] == "+0.0000 ± 0.0000"
    text = html(report)
    assert 'id="task-table"' in text
    assert 'id="training-table"' in text
    # The four recipes' losses, corrected for there being four of them.
    for candidate in report.candidates:
        assert candidate.corrected is not None
        assert 0 <= candidate.corrected[1] <= candidate.corrected[0] <= 1
    assert report.candidates[0].corrected == (1, 1)  # a cast to float32 changes nothing
