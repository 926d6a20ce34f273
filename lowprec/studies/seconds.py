"""What giving a layer some formats does to the time of a forward pass, by the throughput model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowprec.perf import estimate, machine
from lowprec.spec.quantizer import Quantizer
from lowprec.spec.recipe import Recipe, Rule
from lowprec.studies.plan import Budget


def pass_seconds(
    model: Any,
    paths: Sequence[str],
    combinations: Sequence[dict[str, int]],
    choices: Sequence[Quantizer],
    budget: Budget,
) -> np.ndarray:
    """Seconds [paths, combinations] whose sum over an assignment is the time of a pass.

    Layers of one name (``...q_proj``) are alike: each has an equal share of what the pass gains
    or loses when all of that name have a combination, and every layer an equal share of the pass
    in bfloat16.
    """
    from lowprec.nn import trace

    assert budget.machine is not None
    on = machine(budget.machine)
    work = trace(model, batch=budget.batch, tokens=budget.tokens, context=budget.context)
    keep = Rule(match="*", keep=True)
    plain = estimate(work, Recipe(name="plain", rules=(keep,)), on, level="bound").seconds
    kinds: dict[str, list[int]] = {}
    for number, path in enumerate(paths):
        kinds.setdefault(path.rpartition(".")[2], []).append(number)
    found = np.full((len(paths), len(combinations)), plain / len(paths))
    for members in kinds.values():
        for column, some in enumerate(combinations):
            given: dict[str, Any] = {o: choices[number] for o, number in some.items()}
            rules = (*(Rule(match=paths[number], **given) for number in members), keep)
            seconds = estimate(work, Recipe(name="one", rules=rules), on, level="bound").seconds
            found[members, column] += (seconds - plain) / len(members)
    return found
