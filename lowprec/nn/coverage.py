"""Which share of a model's matmuls runs under its recipe, and why the rest does not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch import nn

from lowprec.nn.hf import ghost, record
from lowprec.nn.linear import Quantized
from lowprec.nn.wrap import REPLACEMENTS, recipe_of
from lowprec.spec import Attention, Matmul, Recipe

KEPT = "kept"


@dataclass(frozen=True)
class Entry:
    """One module with a matmul: its FLOP in the traced pass, the quantizers of its operands in
    full or "kept", and what a reader should know: why it is kept, or a shared weight."""

    path: str
    kind: str
    flops: int
    share: float
    weight: str
    activation: str
    reason: str

    @property
    def covered(self) -> bool:
        return (self.weight, self.activation) != (KEPT, KEPT)


@dataclass(frozen=True)
class Coverage:
    """Every module with a matmul, of `batch` sequences of `tokens` tokens without a cache, logits
    at every position, causal attention over the positions that its mask leaves.

    The matmuls of attention count, so the shares add up to 1 over all of the model's matmuls.
    """

    entries: tuple[Entry, ...]
    batch: int
    tokens: int

    @property
    def share(self) -> float:
        """Share of the FLOP of which at least one operand is quantized."""
        return sum(entry.share for entry in self.entries if entry.covered)

    def __str__(self) -> str:
        """A line for each row of `to_json`, and the total."""
        lines = [
            f"{row['share_of_flops']:8.3%}  {row['count']:4} x {row['modules']}  "
            f"W {row['weight']}  A {row['activation']}  {row['reason']}".rstrip()
            for row in self.to_json()
        ]
        return "\n".join([*lines, f"{self.share:8.3%}  of the FLOP of all matmuls is emulated"])

    def to_json(self) -> list[dict[str, Any]]:
        """A row for the modules that differ in layer numbers only and are treated alike."""
        rows: dict[tuple[str, ...], list[Entry]] = {}
        for entry in self.entries:
            pattern = ".".join("*" if p.isdecimal() else p for p in entry.path.split("."))
            row = (pattern, entry.kind, entry.weight, entry.activation, entry.reason)
            rows.setdefault(row, []).append(entry)
        return [
            {
                "modules": modules,
                "kind": kind,
                "count": len(entries),
                "share_of_flops": sum(entry.share for entry in entries),
                "weight": weight,
                "activation": activation,
                "reason": reason,
            }
            for (modules, kind, weight, activation, reason), entries in rows.items()
        ]


def coverage(model: nn.Module, batch: int = 1, tokens: int = 512) -> Coverage:
    """What `wrap` did and did not reach, by tracing a pass of `batch` x `tokens` tokens.

    LowprecError: not a transformers causal language model; an operation that cannot be recorded.
    """
    ops = record(ghost(model), batch, tokens, context=0, last_logits=False)
    flops: Counter[tuple[str, str]] = Counter()
    for op in ops:
        if isinstance(op, Attention):
            flops[op.path, "attention"] += op.flops
        elif isinstance(op, Matmul):
            flops[op.path, "matmul" if op.weight else "product of activations"] += op.flops
    modules = dict(model.named_modules())
    idle = {
        path: 0
        for path, module in modules.items()
        if isinstance(module, (Quantized, nn.Linear, *REPLACEMENTS)) and not flops[path, "matmul"]
    }
    flops += Counter()  # drops the zeros that looking up left
    total = sum(flops.values())
    shared = _shared(model)
    entries = [
        _entry(path, kind, count, count / total, modules, recipe_of(model), shared)
        for (path, kind), count in [*flops.items(), *(((p, "idle"), 0) for p in idle)]
    ]
    return Coverage(tuple(entries), batch, tokens)


def _entry(
    path: str,
    kind: str,
    flops: int,
    share: float,
    modules: dict[str, nn.Module],
    recipe: Recipe | None,
    shared: dict[str, str],
) -> Entry:
    module = modules.get(path)
    if kind in ("matmul", "idle") and isinstance(module, Quantized):
        rule = module.rule
        weight, activation = (q.spell() if q else KEPT for q in (rule.weight, rule.activation))
        reason = ""
        if path in shared and rule.weight:
            reason = f"weight shared with {shared[path]}; quantized for this module alone"
    else:
        weight = activation = KEPT
        reason = _reason(path, kind, module, recipe)
    if kind == "idle":
        kind, reason = "matmul", "; ".join(filter(None, [reason, "not run in the traced pass"]))
    return Entry(path, kind, flops, share, weight, activation, reason)


def _reason(path: str, kind: str, module: nn.Module | None, recipe: Recipe | None) -> str:
    if kind == "attention":
        return "attention: not emulated yet"
    if kind == "product of activations":
        return "a product of two activations: not emulated yet"
    if module is None or type(module) not in REPLACEMENTS:
        name = "experts" if module is None else type(module).__name__
        return f"{name}: not emulated yet, only nn.Linear and Conv1D are"
    if recipe is None:
        return "the model is not wrapped"
    rule = recipe.rule_for(path)
    return f"kept by rule {rule.match!r}" if rule else "no rule"


def _shared(model: nn.Module) -> dict[str, str]:
    """For modules with a weight that other modules have too: those, by path."""
    owners: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        weight = module._parameters.get("weight")
        if weight is not None:
            owners.setdefault(id(weight), []).append(path)
    return {
        path: ", ".join(other for other in paths if other != path)
        for paths in owners.values()
        for path in paths
        if len(paths) > 1
    }
