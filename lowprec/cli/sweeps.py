"""What `lowprec perf --sweep` and `--elasticities` print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowprec.perf import Machine
    from lowprec.perf.sweep import Case, Crossover
    from lowprec.spec import Workload


def show_sweep(
    workloads: Sequence[Workload],
    recipes: Sequence[str],
    machines: Sequence[Machine],
    sweeps: Sequence[str],
    options: dict[str, Any],
    *,
    elasticities: bool,
    as_json: bool,
) -> None:
    """The curve, one row per point, and where it turns; what 10 % better buys, if asked for."""
    from lowprec.perf.sweep import Parameter, crossovers, sweep
    from lowprec.report.text import print_json, show_rows

    parameters = [Parameter.parse(text) for text in sweeps]
    cases = sweep(workloads, recipes, machines, parameters, **options)
    turns = [turn for p in parameters for turn in crossovers(cases, p.path, **options)]
    buys = _elasticities(workloads, recipes, machines, options) if elasticities else []
    if as_json:
        data = {"curve": [_point(c) for c in cases], "crossovers": [_json(t) for t in turns]}
        print_json(data | ({"elasticities": buys} if elasticities else {}))
        return
    show_rows([_row(case, len(recipes) > 1) for case in cases], as_json=False)
    for turn in turns:
        print(_sentence(turn))
    if buys:
        print()
        show_rows([_bought(row) for row in buys], as_json=False)


def show_elasticities(
    workloads: Sequence[Workload],
    recipes: Sequence[str],
    machines: Sequence[Machine],
    options: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    """What a 10 % better X buys, one row per parameter that matters."""
    from lowprec.report.text import print_json, show_rows

    rows = _elasticities(workloads, recipes, machines, options)
    if as_json:
        print_json(rows)
    else:
        show_rows([_bought(row) for row in rows], as_json=False)


def _elasticities(
    workloads: Sequence[Workload],
    recipes: Sequence[str],
    machines: Sequence[Machine],
    options: dict[str, Any],
) -> list[dict[str, Any]]:
    from lowprec.perf.sweep import elasticities

    return [
        {
            "machine": chip.name,
            "recipe": recipe,
            "batch": workload.batch,
            "parameter": found.path,
            "value": found.value,
            "by": found.by,
            "gain": found.gain,
        }
        for workload in workloads
        for recipe in recipes
        for chip in machines
        for found in elasticities(workload, recipe, chip, **options)
    ]


def _bought(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **{k: row[k] for k in ("machine", "recipe", "batch", "parameter")},
        "value": f"{row['value']:.4g}",
        "10 % better buys": f"{row['gain']:+.2%} tokens/s",
    }


def _point(case: Case) -> dict[str, Any]:
    found = case.estimate
    return {
        "machine": found.machine,
        "recipe": case.label,
        "batch": case.workload.batch,
        "values": dict(case.values),
        "seconds": found.seconds,
        "low": found.low,
        "high": found.high,
        "tokens_per_second_per_chip": found.tokens_per_second_per_chip,
        "chips": found.chips,
        "bound": found.bound,
        "shares": found.shares,
    }


def _row(case: Case, several: bool) -> dict[str, Any]:
    from lowprec.report.text import engineering

    found = case.estimate
    return {
        "machine": found.machine,
        **({"recipe": case.label} if several else {}),
        "batch": case.workload.batch,
        **{path: f"{value:.4g}" for path, value in case.values.items()},
        "tokens/s/chip": engineering(found.tokens_per_second_per_chip),
        "ms": f"{found.seconds * 1e3:.4g}",
        "chips": found.chips,
        "bound": found.bound,
        "share": f"{found.shares[found.bound]:.0%}",
    }


def _json(turn: Crossover) -> dict[str, Any]:
    where = {"machine": turn.case.machine.name, "batch": turn.case.workload.batch}
    fields = {k: getattr(turn, k) for k in ("what", "path", "value", "before", "after")}
    return where | fields | ({"recipe": turn.case.label} if turn.what == "bound" else {})


def _sentence(turn: Crossover) -> str:
    where = f"{turn.case.machine.name}, batch {turn.case.workload.batch}"
    at = f"{turn.path} = {turn.value:.4g}"
    if turn.what == "bound":
        return f"crossover: {where}, {turn.case.label}: {turn.before} to {turn.after} at {at}"
    return f"crossover: {where}: {turn.after} overtakes {turn.before} at {at}"
