"""The tables of a report, as columns and rows; the page and the charts read the same ones."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from lowprec.report.data import Candidate, Report


@dataclass(frozen=True)
class Table:
    """Columns and rows of plain values, as compact as JSON allows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def records(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def to_json(self) -> dict[str, Any]:
        return {"columns": self.columns, "rows": self.rows}


PRICES = (
    "recipe",
    "model",
    "machine",
    "workload",
    "tokens_per_second",
    "chips",
    "bound",
    "native",
    "front_kl",
    "front_dnll",
)
LAYERS = ("recipe", "path", "layer", "kind", "weight_db", "activation_db")
COVERAGE = ("recipe", "modules", "count", "share_of_flops", "reason", "weight", "activation")
# Heading, metric, number format.
METRICS = (
    ("KL (nats/token)", "kl", "{:.4f}"),
    ("ΔNLL (nats/token)", "dnll", "{:+.4f}"),
    ("Same top-1", "top1", "{:.4f}"),
    ("RMS Δp", "rms_dp", "{:.4f}"),
    ("Perplexity", "ppl", "{:.2f}"),
    ("KL median", "kl_median", "{:.4f}"),
    ("KL 99.9 %", "kl_p999", "{:.3f}"),
)


def price_table(report: Report) -> Table:
    """One row per throughput cell; four significant digits, and more would claim too much."""
    rows = tuple(
        (
            p.candidate,
            p.model,
            p.machine,
            p.workload,
            float(f"{p.tokens_per_second:.4g}"),
            p.chips,
            p.bound,
            p.native,
            p.front_kl,
            p.front_dnll,
        )
        for p in report.prices
    )
    return Table(PRICES, rows)


def layer_table(report: Report) -> Table:
    """One row per recipe and quantized module: SQNR of weight and input activation in dB."""
    rows = []
    for candidate in report.candidates:
        for layer in _details(candidate, "layers"):
            path = layer["path"]
            number = re.search(r"\.(\d+)\.", path)
            ratios = [_rounded(layer.get(key)) for key in ("weight_db", "activation_db")]
            if number and any(ratio is not None for ratio in ratios):
                kind = path.rpartition(".")[2]
                rows.append((candidate.name, path, int(number[1]), kind, *ratios))
    return Table(LAYERS, tuple(rows))


def _rounded(ratio: float | None) -> float | None:
    """Finite ratios to a hundredth; an exact operand has no noise and no ratio."""
    return round(ratio, 2) if ratio is not None and abs(ratio) < 1e6 else None


def _details(candidate: Candidate, key: str) -> list[dict[str, Any]]:
    return candidate.record.details.get(key, []) if candidate.record else []


def coverage_table(report: Report) -> Table:
    """One row per recipe and group of modules that it treats alike."""
    rows = []
    for candidate in report.candidates:
        entries = _details(candidate, "coverage")
        rows += [(candidate.name, *(entry[key] for key in COVERAGE[1:])) for entry in entries]
    return Table(COVERAGE, tuple(rows))


def source_table(report: Report) -> Table:
    """One row per figure of each machine of the study."""
    rows = tuple((s.machine, s.key, s.value, s.kind, s.source) for s in report.sources)
    return Table(("machine", "figure", "value", "kind", "source"), rows)


def accuracy_rows(report: Report) -> list[dict[str, Any]]:
    """Heading to text, or to {"value", "text"} for a number, per measured recipe."""
    return [_accuracy(c) for c in report.candidates if c.record]


def _accuracy(candidate: Candidate) -> dict[str, Any]:
    weight, activation = candidate.bits
    row: dict[str, Any] = {
        "Recipe": candidate.name,
        "Bits W": number(weight, "{:g}"),
        "Bits A": number(activation, "{:g}"),
    }
    for heading, name, form in METRICS:
        row[heading] = with_interval(candidate, name, form)
    by_holm, by_bh = candidate.corrected or (None, None)
    for heading, value in (("p (ΔNLL), Holm", by_holm), ("q (ΔNLL), BH", by_bh)):
        row[heading] = _probability(value)
    row["Covered"] = number(covered(candidate), "{:.1%}")
    return row | {"Weights": candidate.weight, "Activations": candidate.activation}


def _probability(value: float | None) -> dict[str, Any]:
    return {"value": 1e9, "text": "-"} if value is None else number(value, "{:.2g}")


def covered(candidate: Candidate) -> float:
    """The share of the model's matmul FLOP with a quantized operand."""
    return covered_share(_details(candidate, "coverage"))


def covered_share(rows: list[dict[str, Any]]) -> float:
    """The same of the rows of an accuracy record's coverage."""
    operands = ("operands", "weight", "activation")
    return math.fsum(
        row["share_of_flops"]
        for row in rows
        if any(row.get(name, "kept") != "kept" for name in operands)
    )


def number(value: float | None, form: str) -> dict[str, Any]:
    """A number and its text; "kept" for none, which sorts last."""
    return (
        {"value": 1e9, "text": "kept"}
        if value is None
        else {"value": value, "text": form.format(value)}
    )


def with_interval(candidate: Candidate, name: str, form: str) -> dict[str, Any]:
    """A metric ± half the width of its 95 % interval, where it has one."""
    metric = candidate.metric(name)
    if metric is None:
        return {"value": 1e9, "text": "-"}
    text = form.format(metric.value)
    ends = candidate.interval(name)
    if ends is not None:
        text += " ± " + form.replace("+", "").format((ends[1] - ends[0]) / 2)
    return {"value": metric.value, "text": text}
