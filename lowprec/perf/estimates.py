"""The price of a workload under a recipe on a machine, at level 1: the bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from lowprec.errors import LowprecError
from lowprec.perf.hardware import Machine
from lowprec.perf.hardware import machine as load_machine
from lowprec.perf.roofline import (
    RESOURCES,
    Chips,
    Cost,
    Resource,
    Seconds,
    cost,
    nbytes,
    operands,
)
from lowprec.spec import (
    Attention,
    Format,
    Matmul,
    Op,
    Recipe,
    Rule,
    Spec,
    Workload,
    load_format,
    load_recipe,
)


class Term(Spec):
    """`count` operations of equal shape and price; sums over all of them.

    path: of the one operation, or with ``*`` for the layer numbers they differ in. seconds is
    the total of `resources`; utilisation: FLOP done over FLOP that the datapath could have done
    in that time; datapath: None for operations that only move bytes.
    """

    path: str
    kind: str
    count: int
    flops: float
    bytes: float
    seconds: float
    resources: Seconds
    binding: Resource
    datapath: str | None
    native: bool
    reason: str
    utilisation: float


class Estimate(Spec):
    """What a forward pass takes. Per chip: `chips` of them, each with an equal share.

    weight_bytes and cache_bytes are of the whole model, stored once; fits says whether one chip
    holds them. shares: parts of the time by resource, adding up to 1; bound: the largest.
    calibration: how the constants came about; "spec only" is the datasheet's bound.
    """

    machine: str
    recipe: str
    model: str
    phase: str
    calibration: Literal["spec only"]
    seconds: float
    tokens_per_second: float
    tokens_per_second_per_chip: float
    chips: int
    fits: bool
    weight_bytes: int
    cache_bytes: int
    bound: Resource
    shares: dict[Resource, float]
    terms: tuple[Term, ...]
    notes: tuple[str, ...]


def estimate(
    workload: Workload,
    recipe: Recipe | Mapping[str, Any] | str | Path,
    machine: Machine | str | Path,
) -> Estimate:
    """Prices every operation of `workload` with the formats that `recipe` gives it.

    A matmul's formats are those of the first rule that matches its path; everything else runs in
    `workload.dtype`. A model that one chip cannot hold is priced on the fewest chips that hold
    it, split evenly at no cost (see `Chips`). LowprecError: a rule that matches no matmul, a type
    that the machine has no datapath for.
    """
    recipe = load_recipe(recipe)
    if not isinstance(machine, Machine):
        machine = load_machine(machine)
    dtype = load_format(workload.dtype, "workload: dtype")
    if not isinstance(dtype, Format):
        raise LowprecError(f"workload: dtype: {workload.dtype!r} is no scalar format")
    rules = _rules(workload, recipe)
    weights = _weight_bytes(workload, rules, dtype)
    cache = sum(nbytes(dtype, (op.kv_elements,)) for op in _attention(workload))
    count = max(1, math.ceil((weights + cache) / machine.memory.capacity.value))
    terms = _terms(workload, rules, Chips(machine, count), dtype)
    seconds = sum(term.seconds for term in terms)
    parts = [term.resources.parts() for term in terms]
    shares = {name: sum(part[name] for part in parts) / seconds for name in RESOURCES}
    return Estimate(
        machine=machine.name,
        recipe=recipe.name,
        model=workload.model,
        phase=workload.phase,
        calibration="spec only",
        seconds=seconds,
        tokens_per_second=workload.new_tokens / seconds,
        tokens_per_second_per_chip=workload.new_tokens / seconds / count,
        chips=count,
        fits=count == 1,
        weight_bytes=weights,
        cache_bytes=cache,
        bound=max(shares, key=shares.__getitem__),
        shares=shares,
        terms=terms,
        notes=_notes(machine, count, terms),
    )


def _rules(workload: Workload, recipe: Recipe) -> list[Rule | None]:
    """The rule of each operation."""
    rules = [_rule(op, recipe) for op in workload.ops]
    paths = [op.path for op in workload.ops if isinstance(op, Matmul | Attention)]
    modules = {p for path in paths for p in (path, path.rpartition(".")[0])}
    for rule in recipe.unused(sorted(modules)):
        seen = f"such as {paths[0]!r}" if paths else "which has none"
        raise LowprecError(
            f"recipe {recipe.name!r}: rule {rule.match!r} matches no matmul of "
            f"{workload.model!r}, {seen}"
        )
    return rules


def _rule(op: Op, recipe: Recipe) -> Rule | None:
    """The rule of a matmul with a weight; an expert's weight has a name behind its module's."""
    if not isinstance(op, Matmul) or not op.weight:
        return None
    if op.experts == 1:
        return recipe.rule_for(op.path)
    module, _, name = op.path.rpartition(".")
    return recipe.rule_for(module, parameter=name)


def _attention(workload: Workload) -> list[Attention]:
    return [op for op in workload.ops if isinstance(op, Attention)]


def _weight_bytes(workload: Workload, rules: list[Rule | None], dtype: Format) -> int:
    """Stored weights of all matmuls; a module that runs twice is stored once."""
    stored: dict[tuple[str, int, int], int] = {}
    for op, rule in zip(workload.ops, rules, strict=True):
        if isinstance(op, Matmul) and op.weight:
            _, weight = operands(op, rule, dtype)
            stored[op.path, op.n, op.k] = op.experts * nbytes(weight, (op.n, op.k))
    return sum(stored.values())


def _terms(
    workload: Workload, rules: list[Rule | None], chips: Chips, dtype: Format
) -> tuple[Term, ...]:
    """Groups operations that differ in layer numbers only, and prices each group once."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, (op, rule) in enumerate(zip(workload.ops, rules, strict=True)):
        shape = tuple(value for name, value in op if name != "path")
        groups.setdefault((_pattern(op.path), shape, id(rule)), []).append(i)
    terms = []
    for (pattern, *_), members in groups.items():
        op = workload.ops[members[0]]
        path = op.path if len(members) == 1 else pattern
        one = cost(op, rules[members[0]], chips, dtype)
        terms.append(_term(path, len(members), op.kind, one))
    return tuple(terms)


def _pattern(path: str) -> str:
    """`path` with ``*`` for every part that is a number."""
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


def _term(path: str, count: int, kind: str, one: Cost) -> Term:
    seconds = one.seconds.total
    compute = one.seconds.compute
    choice = one.choice
    return Term(
        path=path,
        kind=kind,
        count=count,
        flops=count * one.flops,
        bytes=count * one.bytes,
        seconds=count * seconds,
        resources=Seconds(**{name: count * getattr(one.seconds, name) for name in RESOURCES}),
        binding=one.seconds.binding,
        datapath=choice.datapath.name if choice else None,
        native=choice.native if choice else True,
        reason=choice.reason if choice else "bytes only, fused with its neighbours",
        utilisation=compute / seconds if seconds else 0.0,
    )


def _notes(machine: Machine, count: int, terms: tuple[Term, ...]) -> tuple[str, ...]:
    """What a reader has to know before quoting the figure."""
    notes = [
        "datasheet bound: full rate and full bandwidth; measured speed is lower",
        f"launch: {machine.launch.value * 1e6:g} us per kernel, {machine.launch.kind}",
        "memory needed: weights of the matmuls and KV cache; no activations, no embedding table",
    ]
    if count > 1:
        notes.append(
            f"does not fit one chip: priced as an ideal split over {count} chips, without "
            "communication"
        )
    if any(not term.native for term in terms):
        notes.append(
            "dequantize: 1 operation per element and 1 per block-scaled one on the vector units, "
            f"at {machine.vector.rate.value / 2:.3g}/s ({machine.vector.rate.kind}), not "
            "overlapped; an assumption"
        )
    used = {term.datapath for term in terms}
    notes += [
        f"{path.name}: {path.note}" for path in machine.datapaths if path.note and path.name in used
    ]
    return tuple(notes)
