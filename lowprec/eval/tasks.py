"""Accuracy on tasks, through lm-evaluation-harness's own model interface and scoring."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowprec.errors import LowprecError
from lowprec.eval.fetch import Say, sha256_file, to_stderr
from lowprec.eval.task_files import list_tasks, load_task, written


@dataclass(frozen=True)
class Tasks:
    """Tasks ready to run. names: as lm-eval calls them; folders: where it finds those that it does
    not ship; shipped: whether it must look at those that it does; data: digests of the others'."""

    names: tuple[str, ...]
    folders: tuple[Path, ...]
    shipped: bool
    data: dict[str, str]


@dataclass(frozen=True)
class TaskScores:
    """What lm-eval says. scores: by task, then by ``metric,filter``, its aggregate. items: the same
    of each document, in order; None for what is no number. documents: by task, the hash of each."""

    scores: dict[str, dict[str, float]]
    items: dict[str, dict[str, list[Any]]]
    documents: dict[str, list[str]]

    @property
    def counts(self) -> dict[str, int]:
        """Documents by task."""
        return {task: len(hashes) for task, hashes in self.documents.items()}


def prepare(tasks: Sequence[str], say: Say = to_stderr) -> Tasks:
    """Find each task: one of `list_tasks`, a .toml file like them, a .yaml file of lm-eval's kind,
    or the name of any task that lm-eval itself knows (``lm-eval:piqa`` for one that has a name of
    `list_tasks` too). Data of packages is fetched once, checked and kept in the cache."""
    names, folders, shipped, data = [], [], False, {}
    for task in tasks:
        if task in list_tasks() or task.endswith(".toml"):
            found = load_task(task)
            folder = written(found, say)
            names.append(found.name)
            folders.append(folder)
            data[found.name] = sha256_file(folder / "data.jsonl")
        elif task.endswith((".yaml", ".yml")):
            names.append(_name_in(Path(task)))
            folders.append(Path(task).resolve().parent)
            data[names[-1]] = sha256_file(Path(task))
        else:
            names.append(task.removeprefix("lm-eval:"))
            shipped = True
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None or not names:
        raise LowprecError(f"tasks: {twice} stands there twice" if names else "tasks: none named")
    return Tasks(tuple(names), tuple(dict.fromkeys(folders)), shipped, data)


def run_tasks(
    model: Any,
    tokenizer: Any,
    tasks: Tasks,
    *,
    limit: int | None = None,
    shots: int | None = None,
    batch: int = 1,
    seed: int = 1234,
) -> TaskScores:
    """lm-eval's scores of a model in memory, wrapped or not, on the first `limit` documents.

    batch: sequences at a time. Above 1 they are padded, and scales that are taken over a whole
    activation depend on which of them share a batch. shots: examples in front of each document,
    drawn with `seed`; what the task says by default. LowprecError where lm-eval is not installed,
    or does not know a task.
    """
    lm_eval, manager = _manager(tasks)
    from lm_eval.models.huggingface import HFLM

    with _quiet():
        lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch)
        result = lm_eval.simple_evaluate(
            model=lm,
            tasks=list(tasks.names),
            task_manager=manager,
            num_fewshot=shots,
            limit=limit,
            bootstrap_iters=0,
            log_samples=True,
            random_seed=seed,
            numpy_random_seed=seed,
            torch_random_seed=seed,
            fewshot_random_seed=seed,
        )
    return collected(result)


def check_tasks(tasks: Tasks, tokenizer: Any) -> None:
    """LowprecError where lm-eval is not installed, does not know one of them, or would find no
    token to put in front of a text."""
    if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
        raise LowprecError("tasks: lm-eval needs a tokenizer with a BOS or an EOS token")
    _manager(tasks)


def collected(result: dict[str, Any]) -> TaskScores:
    """The scores and per-document values in what lm-eval answers."""
    scores = {
        task: {
            key: float(value)
            for key, value in found.items()
            if isinstance(value, int | float) and "_stderr" not in key and "," in key
        }
        for task, found in result["results"].items()
    }
    items: dict[str, dict[str, list[Any]]] = {}
    documents: dict[str, list[str]] = {}
    for task, samples in result["samples"].items():
        if any(_holds_nan(sample["resps"]) for sample in samples):
            raise LowprecError(f"tasks: {task}: the model's logits are not finite")
        columns = items.setdefault(task, {})
        # A sample for every filter of every document.
        first = samples[0]["filter"] if samples else None
        documents[task] = [s["doc_hash"] for s in samples if s["filter"] == first]
        for sample in samples:
            for metric in sample["metrics"]:
                key = f"{metric},{sample['filter']}"
                columns.setdefault(key, []).append(_plain(sample[metric]))
    return TaskScores(scores, items, documents)


def _holds_nan(answers: Any) -> bool:
    """Of an item's answers, nested lists of (log-likelihood, ...) or text. lm-eval takes the first
    choice for the likeliest of several that are NaN, and counts it as any other answer."""
    if isinstance(answers, list | tuple):
        return any(_holds_nan(answer) for answer in answers)
    return isinstance(answers, float) and math.isnan(answers)


def _plain(value: Any) -> Any:
    """A number, or the (sum, weight) of a perplexity's document."""
    if isinstance(value, tuple | list):
        return [float(v) for v in value]
    return float(value)


def _manager(tasks: Tasks) -> tuple[Any, Any]:
    try:
        import lm_eval
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise LowprecError(
            f"tasks run through lm-evaluation-harness ({error}): pip install 'lowprec[tasks]'"
        ) from None
    with _quiet():
        folders = [str(folder) for folder in tasks.folders]
        manager = TaskManager(include_path=folders, include_defaults=tasks.shipped)
    known = set(manager.all_tasks)
    unknown = [name for name in tasks.names if name not in known]
    if unknown:
        raise LowprecError(
            f"tasks: lm-eval knows no {', '.join(unknown)}; with data from packages: "
            f"{', '.join(list_tasks())}"
        )
    return lm_eval, manager


def _name_in(path: Path) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise LowprecError(f"{path}: {error.strerror}; expected a task of lm-eval") from None
    names = [line.removeprefix("task:").strip() for line in lines if line.startswith("task:")]
    if len(names) != 1 or not names[0]:
        raise LowprecError(f"{path}: expected a line 'task: NAME', as lm-eval's tasks have")
    return names[0].strip("\"'")


@contextmanager
def _quiet() -> Iterator[None]:
    """lm-eval's chatter off for a while; its errors stay."""
    names = ("lm_eval", "lm_eval.models.huggingface", "lm_eval.evaluator", "lm_eval.tasks")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
