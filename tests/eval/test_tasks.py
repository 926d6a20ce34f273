"""Tasks through lm-eval: what our path says is what lm-eval says by itself, to the last digit."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowprec.errors import LowprecError
from lowprec.eval.task_files import TaskFile, list_tasks, load_task, written
from lowprec.eval.tasks import Tasks, TaskScores, prepare, run_tasks
from lowprec.nn import unwrap, wrap
from lowprec.spec import load_recipe
from lowprec.studies.tasks import _metrics, _pairs
from tests.eval.tiny import byte_tokenizer, tiny_llama, write_wheel

lm_eval = pytest.importorskip("lm_eval")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
KINDS = ("multiple_choice", "loglikelihood", "rolling", "generate")
RECIPE = load_recipe("lm_head: keep; *: weight=mxfp4/floor activation=mxfp4/floor")


def requests(count: int) -> bytes:
    """Lines as AI2's package has them, with the unconditional twin of each."""
    lines = []
    for i in range(count):
        for idx in (1, 0):
            request = {
                "context": f"Question: {i} or {i * i}?\nAnswer:",
                "continuation": f" {'ab'[idx]}",
            }
            doc = {"id": i, "answers": ["a", "b"]}
            line = {"request": request, "idx": idx, "doc_id": i, "label": i % 2, "doc": doc}
            lines += [line, line | {"doc_id": 1_000_000 + i}]
    return gzip.compress("\n".join(map(json.dumps, lines)).encode())


@pytest.fixture
def folders(index: Path) -> dict[str, Path]:
    """A task of each kind, written for lm-eval."""
    wheel = write_wheel(index, "asked", {"asked/requests.jsonl.gz": requests(12)})
    words = dict.fromkeys(("title", "licence", "citation", "source"), "x")
    found = {}
    (index.parent / "texts").mkdir()
    suite = index.parent / "texts" / "prose.txt"
    suite.write_text("it was a dark and stormy night " * 8)
    for kind in KINDS:
        data: dict[str, Any] = {"name": f"tiny_{kind}", "kind": kind, **words}
        if kind == "rolling":
            data["suite"] = str(suite)
        else:
            data["requests"] = {"wheel": wheel.to_json(), "member": "asked/requests.jsonl.gz"}
        if kind == "generate":
            data |= {"target": "answers.0", "answer": "([a-z])", "tokens": 8}
        found[f"tiny_{kind}"] = written(TaskFile.model_validate(data), lambda _: None)
    return found


def ours(folders: dict[str, Path], model: Any, **options: Any) -> TaskScores:
    tasks = Tasks(tuple(folders), tuple(folders.values()), False, {})
    return run_tasks(model, byte_tokenizer(), tasks, **options)


def test_scores_are_lm_evals_own(folders: dict[str, Path], tiny_folder: Path) -> None:
    """Its own loading of the model's folder, its own command's arguments, no code of ours."""
    from lm_eval.tasks import TaskManager

    theirs = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(tiny_folder), "dtype": "float32"},
        tasks=list(folders),
        task_manager=TaskManager(
            include_path=[str(f) for f in folders.values()], include_defaults=False
        ),
        batch_size=1,
        device="cpu",
        bootstrap_iters=0,
        limit=8,
    )
    found = ours(folders, tiny_llama(), limit=8)
    compared = 0
    for task, scores in found.scores.items():
        for metric, value in scores.items():
            assert value == theirs["results"][task][metric], (task, metric)
            compared += 1
    assert compared == 2 + 2 + 3 + 1
    acc = found.items["tiny_multiple_choice"]["acc,none"]
    assert len(acc) == len(found.documents["tiny_multiple_choice"]) == 8
    assert np.mean(acc) == found.scores["tiny_multiple_choice"]["acc,none"]
    assert 0 < np.mean(acc) < 1


def test_a_recipe_is_paired_with_the_unquantized_model(folders: dict[str, Path]) -> None:
    model = tiny_llama()
    base = ours(folders, model)
    wrapped = ours(folders, wrap(model, RECIPE))
    unwrap(model)
    assert ours(folders, model) == base
    assert wrapped.documents == base.documents
    assert wrapped.scores["tiny_rolling"] != base.scores["tiny_rolling"]
    pairs = {(p["task"], p["metric"]): p for p in _pairs(base, wrapped)}
    assert ("tiny_multiple_choice", "acc,none") in pairs
    assert ("tiny_loglikelihood", "acc,none") in pairs
    assert ("tiny_loglikelihood", "perplexity,none") not in pairs
    metrics = _metrics(base, wrapped)
    pair = pairs["tiny_multiple_choice", "acc,none"]
    change = metrics["tiny_multiple_choice acc,none change"]
    assert (change.value, change.se) == (
        pytest.approx(pair["difference"]),
        pytest.approx(pair["se"]),
    )
    assert "tiny_rolling word_perplexity,none change" not in metrics
    assert "tiny_rolling word_perplexity,none base" in metrics


def test_lines_of_requests_become_items(folders: dict[str, Path]) -> None:
    rows = [
        json.loads(line)
        for line in (folders["tiny_multiple_choice"] / "data.jsonl").read_text().splitlines()
    ]
    assert len(rows) == 12
    query = "Question: 3 or 9?\nAnswer:"
    assert rows[3] == {"query": query, "choices": ["a", "b"], "gold": 1, "answer": "b"}


@pytest.mark.parametrize("kind", ["multiple_choice", "loglikelihood", "generate"])
def test_the_model_is_asked_what_the_package_asks(folders: dict[str, Path], kind: str) -> None:
    """Contexts and continuations, to the last blank, as lm-eval makes them of our description."""
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=[str(folders[f"tiny_{kind}"])], include_defaults=False)
    [task] = manager.load_task_or_group([f"tiny_{kind}"]).values()
    task.build_all_requests(rank=0, world_size=1)
    asked = [instance.args for instance in task.instances]
    query = "Question: 3 or 9?\nAnswer:"
    if kind == "multiple_choice":
        assert asked[6:8] == [(query, " a"), (query, " b")]
    elif kind == "loglikelihood":
        assert asked[3] == (query, " a")
    else:
        assert asked[3][0] == query
        assert asked[3][1]["max_gen_toks"] == 8


def test_local_tasks_of_lm_evals_kind(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(json.dumps({"q": f"{i} is", "a": "x"}) for i in range(4)))
    own = tmp_path / "own.yaml"
    own.write_text(
        f"task: own\ndataset_path: json\noutput_type: loglikelihood\n"
        f"dataset_kwargs: {{data_files: {{validation: {data}}}, cache_dir: {tmp_path}}}\n"
        'validation_split: validation\ndoc_to_text: "{{q}}"\ndoc_to_target: "{{a}}"\n'
        "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\n"
    )
    tasks = prepare([str(own)])
    assert tasks.names == ("own",)
    found = run_tasks(tiny_llama(), byte_tokenizer(), tasks, limit=3)
    assert len(found.items["own"]["acc,none"]) == 3
    with pytest.raises(LowprecError, match="own stands there twice"):
        prepare([str(own), str(own)])
    with pytest.raises(LowprecError, match=r"none.yaml: No such file"):
        prepare([str(tmp_path / "none.yaml")])
    data.with_suffix(".yaml").write_text("x: 1")
    with pytest.raises(LowprecError, match="expected a line 'task: NAME'"):
        prepare([str(data.with_suffix(".yaml"))])
    with pytest.raises(LowprecError, match="lm-eval knows no piqqa"):
        run_tasks(None, None, Tasks(("piqqa",), (tmp_path,), False, {}))


def test_shipped_tasks_are_valid() -> None:
    kinds = {load_task(name).kind for name in list_tasks()}
    assert kinds == set(KINDS)
    for name in list_tasks():
        assert load_task(name).name == name
    with pytest.raises(ValueError, match="a task has requests"):
        TaskFile(name="x", title="x", kind="generate", licence="x", citation="x", source="x")


@pytest.mark.slow
def test_scores_of_a_real_model_are_lm_evals_own() -> None:
    """SmolLM2 from its folder by lm-eval alone, and in memory by us, on real items."""
    from lm_eval.tasks import TaskManager

    from lowprec.eval import load_model
    from lowprec.spec.load import cache_dir

    loaded, tasks = load_model("smollm2-135m"), prepare(["arc_easy", "lambada"])
    [folder] = [p for p in (cache_dir() / "models").glob("smollm2-135m-*") if p.is_dir()]
    theirs = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(folder), "dtype": "float32"},
        tasks=list(tasks.names),
        task_manager=TaskManager(
            include_path=[str(f) for f in tasks.folders], include_defaults=False
        ),
        batch_size=1,
        device="cpu",
        bootstrap_iters=0,
        limit=6,
    )
    found = run_tasks(loaded.model, loaded.tokenizer, tasks, limit=6)
    for task, scores in found.scores.items():
        assert scores == {metric: theirs["results"][task][metric] for metric in scores}
        for sample, value in zip(
            theirs["samples"][task], found.items[task]["acc,none"], strict=True
        ):
            assert float(sample["acc"]) == value
    assert found.scores["lambada"]["perplexity,none"] < 1000
