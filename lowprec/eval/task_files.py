"""Tasks whose data a package holds: fetched, checked, and written as lm-eval reads them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lowprec.errors import LowprecError
from lowprec.eval.data import load_text
from lowprec.eval.fetch import Say, Wheel, fetch, read_member
from lowprec.spec.base import Spec, digest
from lowprec.spec.load import build, cache_dir, data_dir, read_toml

MAX_DATA_BYTES = 128 << 20
# Requests of the package from here on are its unconditional twins of the others.
_TWINS = 1_000_000
Item = dict[str, Any]


class PackageRequests(Spec):
    """Requests as AI2's evaluation package ships them: gzipped lines of JSON in a wheel, one for
    each answer to each document."""

    wheel: Wheel
    member: str


class TaskFile(Spec):
    """A task whose data a package holds: one file under evals/tasks.

    kind: ``multiple_choice`` (which of the answers is likeliest; acc and acc_norm),
    ``loglikelihood`` (is the answer what the model would say; acc and perplexity), ``rolling``
    (perplexity of whole documents, those of a suite), ``generate`` (is what it says the answer;
    exact_match). answer: of ``generate``, a pattern whose first group is taken from what is said;
    until, tokens: where that ends.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    title: str
    kind: Literal["multiple_choice", "loglikelihood", "rolling", "generate"]
    requests: PackageRequests | None = None
    suite: str | None = None
    target: str = "choices.0"
    answer: str | None = None
    until: tuple[str, ...] = ("\n",)
    tokens: Annotated[int, Field(ge=1, le=4096)] = 32
    licence: str
    citation: str
    source: str
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _possible(self) -> TaskFile:
        if (self.suite is None) != (self.kind != "rolling") or (
            (self.requests is None) != (self.kind == "rolling")
        ):
            raise ValueError("a task has requests, and one of kind 'rolling' a suite instead")
        return self


def list_tasks() -> list[str]:
    """Names of the tasks whose data a package holds."""
    return sorted(path.stem for path in (data_dir("evals") / "tasks").glob("*.toml"))


def load_task(name: str) -> TaskFile:
    """One of `list_tasks`, or from a .toml file like theirs."""
    path = Path(name) if name.endswith(".toml") else data_dir("evals") / "tasks" / f"{name}.toml"
    return build(TaskFile, read_toml(path), str(path))


def written(task: TaskFile, say: Say) -> Path:
    """The folder of the task's data and of its description for lm-eval, in the cache."""
    folder = cache_dir() / "tasks" / f"{task.name}-{digest(task.to_json())[:12]}"
    data = folder / "data.jsonl"
    if not data.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / ".data.partial"
        with partial.open("w") as file:
            for item in _items(task, say):
                file.write(json.dumps(item) + "\n")
        partial.replace(data)
    # JSON is YAML.
    (folder / f"{task.name}.yaml").write_text(json.dumps(_description(task, data), indent=1))
    return folder


def _items(task: TaskFile, say: Say) -> Iterator[Item]:
    if task.suite is not None:
        yield from ({"text": document} for document in load_text(task.suite, say).documents)
        return
    assert task.requests is not None
    packed = read_member(fetch(task.requests.wheel, say), task.requests.member, MAX_DATA_BYTES)
    documents: dict[int, list[Item]] = {}
    for line in gzip.decompress(packed).decode().splitlines():
        request = json.loads(line)
        if request["doc_id"] < _TWINS:
            documents.setdefault(request["doc_id"], []).append(request)
    for requests in documents.values():
        requests.sort(key=lambda request: request["idx"])
        first = requests[0]
        context = {r["request"]["context"] for r in requests}
        if len(context) != 1:
            raise LowprecError(f"{task.name}: its answers have different contexts")
        item = {"query": first["request"]["context"]}
        if task.kind == "generate":
            yield item | {"answer": str(_at(first["doc"], task.target))}
            continue
        choices = [r["request"]["continuation"].removeprefix(" ") for r in requests]
        gold = first["label"] if task.kind == "multiple_choice" else 0
        yield item | {"choices": choices, "gold": gold, "answer": choices[gold]}


def _at(document: Any, path: str) -> Any:
    for key in path.split("."):
        document = document[int(key)] if isinstance(document, list) else document[key]
    return document


def _description(task: TaskFile, data: Path) -> dict[str, Any]:
    """The task in lm-eval's own words."""
    files = {"data_files": {"validation": str(data)}, "cache_dir": str(data.parent / "datasets")}
    about: dict[str, Any] = {"task": task.name, "dataset_path": "json", "dataset_kwargs": files}
    about |= {"validation_split": "validation", "doc_to_text": "{{query}}", "num_fewshot": 0}
    about |= {"target_delimiter": " ", "metadata": {"version": digest(task.to_json())[:12]}}

    def metrics(*names: str, higher: bool = True, aggregation: str = "mean") -> list[Item]:
        return [
            {"metric": name, "aggregation": aggregation, "higher_is_better": higher}
            for name in names
        ]

    match task.kind:
        case "multiple_choice":
            about |= {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}"}
            about |= {"doc_to_target": "gold", "metric_list": metrics("acc", "acc_norm")}
        case "loglikelihood":
            # Of this kind lm-eval puts no delimiter between the two.
            about |= {"output_type": "loglikelihood", "doc_to_target": "{{' ' + answer}}"}
            perplexity = metrics("perplexity", higher=False, aggregation="perplexity")
            about |= {"metric_list": [*metrics("acc"), *perplexity]}
        case "rolling":
            about |= {"output_type": "loglikelihood_rolling", "doc_to_text": ""}
            about |= {"doc_to_target": "{{text}}"}
            words = ("word_perplexity", "byte_perplexity")
            found = [
                m
                for w in words
                for m in metrics(w, higher=False, aggregation="weighted_perplexity")
            ]
            bits = metrics("bits_per_byte", higher=False, aggregation="bits_per_byte")
            about |= {"metric_list": [*found, *bits]}
        case "generate":
            about |= {"output_type": "generate_until", "doc_to_target": "{{answer}}"}
            kwargs = {"until": list(task.until), "do_sample": False, "max_gen_toks": task.tokens}
            about |= {"generation_kwargs": kwargs}
            exact = metrics("exact_match")[0]
            exact |= {"ignore_case": True, "ignore_punctuation": True}
            about |= {"metric_list": [exact]}
            if task.answer is not None:
                steps = [{"function": "regex", "regex_pattern": task.answer}]
                steps += [{"function": "take_first"}]
                about |= {"filter_list": [{"name": "none", "filter": steps}]}
    return about
