"""What tasks and training runs say: their tables, and the words of the curves."""

from __future__ import annotations

from typing import Any

from lowprec.report.data import Report
from lowprec.report.tables import number

Row = dict[str, Any]


def task_rows(report: Report) -> list[Row]:
    """Heading to text, or to {"value", "text"} for a number, per recipe, task and score."""
    return [
        {
            "Recipe": row["recipe"],
            "Task": row["task"],
            "Score of": row["metric"],
            "Score": _within(row["score"], row["interval"], "{:.3f}"),
            "Unquantized": number(row["base"], "{:.4f}"),
            "Change": _within(row["change"], row["change_interval"], "{:+.3f}"),
            "Items": number(row["items"], "{}"),
            "Lost": _known(row["lost"], "{}"),
            "Gained": _known(row["gained"], "{}"),
            "p (McNemar)": _known(row["p"], "{:.2g}"),
            "p, Holm": _known(row["holm"], "{:.2g}"),
            "q, BH": _known(row["bh"], "{:.2g}"),
        }
        for row in report.tasks
    ]


def training_rows(report: Report) -> list[Row]:
    """The same per training recipe."""
    return [
        {
            "Recipe": row["recipe"],
            "Seeds": number(len(row["seeds"]), "{}"),
            "Diverged": number(row["diverged"], "{}"),
            "Final loss (nats/byte)": _known(row["nll"], "{:.4f}"),
            "Difference": _around(row["difference"], _half(row["interval"]), "{:+.4f}"),
        }
        for row in report.training
    ]


def training_text(report: Report) -> str:
    """The curves in words, for those who do not see them."""
    ends = (
        f"{row['recipe']}: {row['nll']:.4g} nats per byte, {row['difference']:+.2g}"
        for row in report.training
        if row["nll"] is not None and row["difference"] is not None
    )
    what = "Held-out loss while training, and its difference to the baseline"
    return f"{what}; at the end {'; '.join(ends)}"


def _half(interval: Any) -> float | None:
    return (interval[1] - interval[0]) / 2 if interval else None


def _around(value: float | None, half: float | None, form: str) -> Row:
    """A value ± half the width of its 95 % interval, where it has one."""
    cell = _known(value, form)
    if value is not None and half is not None:
        cell["text"] += " ± " + form.replace("+", "").format(half)
    return cell


def _within(value: float | None, interval: Any, form: str) -> Row:
    """A value and the ends of its 95 % interval, which need not lie evenly around it."""
    cell = _known(value, form)
    if value is not None and interval:
        cell["text"] += f" ({form.format(interval[0])} to {form.format(interval[1])})"
    return cell


def _known(value: float | None, form: str) -> Row:
    return {"value": 1e9, "text": "-"} if value is None else number(value, form)
