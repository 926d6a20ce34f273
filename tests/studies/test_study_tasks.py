"""A study that names tasks: their scores with paired statistics beside its other cells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowprec.errors import LowprecError
from lowprec.report.outcomes import task_rows
from lowprec.report.page import html
from lowprec.report.progress import SilentProgress
from lowprec.spec import load_recipe
from lowprec.spec.record import Record
from lowprec.studies import StudyResult, study
from lowprec.studies.results import load_rows
from lowprec.studies.tasks import evaluate_tasks
from tests import tiny_study

pytest.importorskip("lm_eval")
AutoTokenizer = pytest.importorskip("transformers").AutoTokenizer
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TASKS = """
[tasks]
names = ["birds.yaml"]
items = 12
"""
BIRDS = """
task: birds
dataset_path: json
dataset_kwargs: {{data_files: {{validation: {data}}}, cache_dir: {cache}}}
output_type: multiple_choice
validation_split: validation
doc_to_text: "{{{{query}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: gold
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
BROKEN = """
[[recipes]]
name = "not finite"
recipe = "lm_head: keep; *: activation=float8_e5m2/fixed=1e-30:tensor/nearest-even/OvfInf"
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of the tiny model with a task of its own kind, and a recipe that breaks the model."""
    folder = tmp_path_factory.mktemp("tasks")
    path = tiny_study.make(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model", eos_token="!")
    tokenizer.save_pretrained(folder / "model")
    items = [
        {"query": f"{word} {i}", "choices": ["cat", "harbour", "seven"], "gold": i % 3}
        for i, word in enumerate(tiny_study.WORDS)
    ]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, items)))
    task = BIRDS.format(data=folder / "data.jsonl", cache=folder / "cache")
    (folder / "birds.yaml").write_text(task)
    path.write_text(tiny_study.STUDY.replace("\n[throughput]", f"{TASKS}\n[throughput]"))
    return path


@pytest.fixture(scope="module")
def found(file: Path) -> StudyResult:
    return study(file, file.parent / "out")


def of_tasks(result: StudyResult) -> list[Record]:
    return [record for record in result.records if record.kind == "tasks"]


def test_scores_are_those_of_the_command_for_one_recipe(found: StudyResult, file: Path) -> None:
    records = of_tasks(found)
    assert len(records) == 4
    assert [set(r.subject["tasks"]) for r in records] == [{"birds"}] * 4
    alone = evaluate_tasks(
        str(file.parent / "model"), load_recipe(found.study.recipes[2].recipe.spell()),
        [str(file.parent / "birds.yaml")], SilentProgress(), limit=12,
    )  # fmt: skip
    assert alone.metrics == records[2].metrics
    assert alone.details == records[2].details
    # A cast to float32 changes no answer.
    assert records[0].metrics["birds acc,none change"].value == 0
    assert 0 < records[0].metrics["birds acc,none base"].value < 1


def test_the_report_and_the_rows_have_them(found: StudyResult) -> None:
    rows = task_rows(found.report)
    assert [(row["Recipe"], row["Task"], row["Score of"]) for row in rows] == [
        (named.name, "birds", "acc") for named in found.study.recipes
    ]
    assert all(row["Items"]["value"] == 12 for row in rows)
    assert all(0 <= row["p, Holm"]["value"] <= 1 for row in rows)
    page = html(found.report)
    assert 'id="task-table"' in page
    assert "birds: the first 12 items of each" in page
    listed = [row for row in load_rows(found.folder) if row["kind"] == "tasks"]
    assert {(row["recipe"], row["on"]) for row in listed} == {
        (named.name, "birds") for named in found.study.recipes
    }


@pytest.mark.usefixtures("no_page")
def test_it_resumes_and_computes_what_changed(found: StudyResult, file: Path) -> None:
    out = found.folder
    assert study(file, out).computed == 0
    lost = next(r for r in of_tasks(found) if r.subject["recipe"].count("nvfp4"))
    (out / "cells" / f"{lost.name}.json").unlink()
    again = study(file, out)
    assert again.computed == 1
    assert again.records == found.records
    longer = file.with_name("longer.toml")
    longer.write_text(file.read_text().replace("items = 12", "items = 14") + BROKEN)
    more = study(longer, out)
    assert more.computed == 4 + 2  # the broken recipe has a throughput on two machines
    assert [(f.what, f.error) for f in more.failed] == [
        ("not finite", "window 0: the model's logits are not finite"),
        ("not finite, tasks", "tasks: birds: the model's logits are not finite"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('["birds.yaml"]', '["birds.yaml", "lambda.toml"]', r"lambda\.toml: no such file"),
        ("birds.yaml", "none.yaml", "No such file"),
        ("items = 12", "item = 12", "tasks: item: unknown key; did you mean 'items'?"),
        ("items = 12", "items = 0", "tasks: items: "),
        ('["birds.yaml"]', "[]", "tasks: names: "),
        ('["birds.yaml"]', '["birds.yaml", "birds.yaml"]', "stands there twice"),
        ("windows = 3", "windows = 3\nstream = true", r"\[tasks\] needs \[accuracy\]"),
    ],
)
def test_errors_come_before_anything_runs(
    file: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    bad = file.with_name("bad.toml")
    bad.write_text(file.read_text().replace(old, new))
    with pytest.raises(LowprecError, match=message):
        study(bad, tmp_path)
    assert not list(tmp_path.glob("cells/*"))


def test_a_tokenizer_without_a_first_token_is_refused(file: Path, tmp_path: Path) -> None:
    bare = tiny_study.make(tmp_path)
    bare.write_text(file.read_text().replace("birds.yaml", str(file.parent / "birds.yaml")))
    with pytest.raises(LowprecError, match="a tokenizer with a BOS or an EOS token"):
        study(bare, tmp_path / "out")
