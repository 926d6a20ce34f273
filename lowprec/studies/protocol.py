"""How the numbers of a report came about, in words, and what they do not say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

EMULATION = """Every quantized operand is put on the values of its format exactly as the recipe
says; products and sums are those of float32 unless it names a datapath. What a recipe keeps runs in
float32. Weights are rounded to nearest unless the recipe says gptq. What a recipe calibrates has
seen {calibration} windows of the same text behind the scored ones."""

STATISTICS = """KL(P || Q) over the whole vocabulary, P being the unquantized model; ΔNLL is the
paired difference on the same tokens. Standard errors are cluster-robust over documents (over
windows in a text of one document) and the intervals are 95 % of Student's t; the records hold those
of a bootstrap over the clusters too. They speak of the choice of tokens, not of other models or
other kinds of text."""

TASKS = """The same model answers through lm-evaluation-harness, whose scores these are, with each
recipe and without. 95 % intervals over items are Wilson's, those of paired changes Agresti and
Min's, where items are right or wrong, else Student's t; p is McNemar's exact test on the items
whose answer changed. A recipe with random bits runs once."""

ROOFLINE = """A roofline of every operation recorded from the model, at datasheet rates and
bandwidths, with scales counted in the bytes. It is a bound: measured speed is lower, and how much
lower differs by kernel. The tokens per second of one model stand beside the accuracy of another,
where the chart shows a model that is not the evaluated one."""


def accuracy_lines(
    asked: Any, subject: Mapping[str, Any], details: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """(what, how) of an accuracy record's numbers; `asked` is the study's Accuracy."""
    model, text = subject["model"]["name"], subject["text"]["name"]
    what = f"""{model} in float32 on {text}, protocol {asked.cut.described()}:
    {details["tokens"]} scored tokens in {details["clusters"]} clusters."""
    return [
        ("Model and text", _line(what)),
        ("Emulation", _line(EMULATION.format(calibration=asked.calibration))),
        ("Statistics", _line(STATISTICS)),
    ]


def task_lines(asked: Any) -> list[tuple[str, str]]:
    """(what, how) of the task records' numbers; `asked` is the study's TaskList."""
    items = "all items" if asked.items is None else f"the first {asked.items} items"
    shots = "" if asked.shots is None else f" behind {asked.shots} examples"
    names = ", ".join(PurePath(name).stem for name in asked.names)
    return [("Tasks", f"{_line(TASKS)} {names}: {items} of each{shots}.")]


def throughput_lines(calibration: str, notes: Iterable[str]) -> list[tuple[str, str]]:
    """(what, how) of the throughput records' numbers."""
    return [
        ("Throughput", f"{_line(ROOFLINE)} Calibration: {calibration}."),
        ("Notes of the throughput model", " · ".join(dict.fromkeys(notes))),
    ]


def _line(text: str) -> str:
    return " ".join(text.split())
