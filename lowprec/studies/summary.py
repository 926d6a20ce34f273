"""From records to what people read: the report's content, the closing table, the manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lowprec.perf import Machine, Quantity
from lowprec.report.data import Candidate, Failed, Price, Report, Source
from lowprec.spec.base import Spec
from lowprec.spec.record import Record
from lowprec.studies.pareto import pareto
from lowprec.studies.protocol import accuracy_lines, task_lines, throughput_lines
from lowprec.studies.study import Study


@dataclass(frozen=True)
class Priced:
    """A throughput record and what it is called in the study."""

    recipe: str
    model: str
    machine: str
    record: Record


def build_report(
    plan: Study,
    accuracy: Sequence[Record | None],
    priced: Sequence[Priced],
    machines: Sequence[Machine],
    failed: Sequence[Failed] = (),
) -> Report:
    """All that the report shows. The chart opens with the first model, machine and workload.
    accuracy: a record per recipe, or None where its cell failed; or nothing at all."""
    records: list[Record | None] = [*accuracy] or [None] * len(plan.recipes)
    candidates = tuple(
        Candidate(named.name, named.recipe, record, corrected)
        for named, record, corrected in zip(plan.recipes, records, _corrected(records), strict=True)
    )
    prices = _prices(candidates, priced)
    return Report(
        title=plan.title or plan.name,
        candidates=candidates,
        prices=prices,
        sources=tuple(source for each in machines for source in _sources(each)),
        shown=(prices[0].model, prices[0].machine, prices[0].workload) if prices else None,
        protocol=_protocol(plan, accuracy, priced),
        digests=_digests(plan, accuracy, priced),
        failed=tuple(failed),
    )


def _corrected(records: Sequence[Record | None]) -> list[tuple[float, float] | None]:
    """The p-values of "it loses no likelihood" (dnll is 0), of all recipes that were measured,
    after Holm and after Benjamini and Hochberg."""
    measured = [r is not None and "dof" in r.details for r in records]
    if not any(measured):
        return [None] * len(records)
    from lowprec.eval.significance import benjamini_hochberg, holm
    from lowprec.eval.statistics import p_value

    p = []
    for record in records:
        if record is not None and "dof" in record.details:
            metric = record.metrics["dnll"]
            p.append(p_value(metric.value, metric.se or 0.0, record.details["dof"]))
    both = iter(zip(holm(p), benjamini_hochberg(p), strict=True))
    return [next(both) if known else None for known in measured]


def rows(result: Report, machines: int = 4) -> list[dict[str, Any]]:
    """The closing table: one plain row per recipe, with the tokens per second of the first
    `machines` machines for the model and the workload that the chart opens with."""
    model, _, workload = result.shown or ("", "", "")
    speeds: dict[str, dict[str, float]] = {}
    for p in result.prices:
        if (p.model, p.workload) == (model, workload):
            speeds.setdefault(p.candidate, {})[p.machine] = p.tokens_per_second
    found = []
    for c in result.candidates:
        row: dict[str, Any] = {"recipe": c.name, "bits": list(c.bits)}
        for key in ("dnll", "kl", "top1", "ppl"):
            metric = c.metric(key)
            if metric:
                row[key] = {"value": metric.value, "se": metric.se, "interval": c.interval(key)}
        if c.corrected is not None:
            row |= {"p_holm": c.corrected[0], "q_bh": c.corrected[1]}
        some = list(speeds.get(c.name, {}).items())[:machines]
        found.append(row | {"tokens_per_second": dict(some)})
    return found


def _prices(candidates: Sequence[Candidate], priced: Sequence[Priced]) -> tuple[Price, ...]:
    losses = {c.name: {key: _value(c, key) for key in ("kl", "dnll")} for c in candidates}
    groups: dict[tuple[str, str, str], list[tuple[Priced, dict[str, Any]]]] = {}
    for each in priced:
        for line in each.record.details["workloads"]:
            groups.setdefault((each.model, each.machine, line["workload"]), []).append((each, line))
    found = []
    for (model, machine, workload), members in groups.items():
        speeds = [line["tokens_per_second_per_chip"] for _, line in members]
        fronts = [
            pareto(
                [
                    (losses[each.recipe][key], s)
                    for (each, _), s in zip(members, speeds, strict=True)
                ]
            )
            for key in ("kl", "dnll")
        ]
        for (each, line), speed, on_kl, on_dnll in zip(members, speeds, *fronts, strict=True):
            native = not line["fallbacks"]
            found.append(
                Price(
                    each.recipe,
                    model,
                    machine,
                    workload,
                    speed,
                    line["chips"],
                    line["bound"],
                    native,
                    on_kl,
                    on_dnll,
                )
            )
    return tuple(found)


def _value(candidate: Candidate, key: str) -> float:
    metric = candidate.metric(key)
    return metric.value if metric else float("nan")


def _sources(machine: Machine) -> Iterator[Source]:
    """Every figure of a machine, with where it was read and what other sources say."""
    for key, quantity in _quantities(machine, ""):
        said = "; ".join(f"{c.value:.6g}: {c.source}" for c in quantity.disputed)
        parts = [quantity.source, quantity.note or "", f"disputed: {said}" if said else ""]
        text = " · ".join(part for part in parts if part)
        yield Source(machine.name, key, f"{quantity.value:.6g}", quantity.kind, text)


def _quantities(spec: Any, key: str) -> Iterator[tuple[str, Quantity]]:
    if isinstance(spec, Quantity):
        yield key, spec
    elif isinstance(spec, Spec):
        for name in type(spec).model_fields:
            yield from _quantities(getattr(spec, name), f"{key}.{name}" if key else name)
    elif isinstance(spec, tuple):
        for i, each in enumerate(spec):
            yield from _quantities(each, f"{key}.{getattr(each, 'name', i)}")


def _protocol(
    plan: Study, accuracy: Sequence[Record | None], priced: Sequence[Priced]
) -> tuple[tuple[str, str], ...]:
    lines: list[tuple[str, str]] = []
    first = next(filter(None, accuracy), None)
    if first is not None:
        lines += accuracy_lines(plan.accuracy, first.subject, first.details)
    if plan.tasks is not None:
        lines += task_lines(plan.tasks)
    if priced:
        notes = [n for p in priced for line in p.record.details["workloads"] for n in line["notes"]]
        lines += throughput_lines(priced[0].record.details["calibration"], notes)
    return tuple(lines)


def _digests(
    plan: Study, accuracy: Sequence[Record | None], priced: Sequence[Priced]
) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {"study": plan.digest, "seed": str(plan.seed)}
    measured = [record for record in accuracy if record is not None]
    for record in measured:
        subject = record.subject
        found[f"model {subject['model']['name']}"] = subject["model"]["digest"]
        found[f"text {subject['text']['name']}"] = subject["text"]["digest"]
        found["windows"] = subject["windows"]
        found["code of the accuracy half"] = subject["code"]
        found |= {f"environment: {key}": value for key, value in record.environment.items()}
    for each in priced:
        subject = each.record.subject
        found.setdefault(f"model {each.model}", subject["model"]["digest"])
        found[f"machine {each.machine}"] = subject["machine"]["digest"]
        found["code of the throughput half"] = subject["code"]
    for record in (*measured, *(p.record for p in priced)):
        found |= {f"format {name}": value for name, value in record.subject["formats"].items()}
    for named in plan.recipes:
        found[f"recipe {named.name}"] = named.recipe.spell()
    for name, cell in _named(plan, accuracy).items():
        found[f"accuracy cell {name}"] = cell
    return tuple(found.items())


def _named(plan: Study, accuracy: Sequence[Record | None]) -> dict[str, str]:
    """The names of the accuracy cells, by the recipes'."""
    pairs = zip(plan.recipes, accuracy, strict=False)
    return {named.name: record.name for named, record in pairs if record is not None}


def manifest(
    plan: Study,
    accuracy: Sequence[Record | None],
    priced: Sequence[Priced],
    tasks: Sequence[str] = (),
) -> str:
    """study.json: the study in full and the names of its cells, by what they are called. tasks:
    those of the task cells, by recipe."""
    cells = {
        "accuracy": _named(plan, accuracy),
        "tasks": {named.name: cell for named, cell in zip(plan.recipes, tasks, strict=False)},
        "throughput": [[p.model, p.machine, p.recipe, p.record.name] for p in priced],
    }
    return json.dumps({"study": plan.to_json(), "cells": cells}, indent=1, sort_keys=True) + "\n"
