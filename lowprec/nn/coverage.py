"""Which share of a model's matmuls runs under its recipe, and why the rest does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lowprec.nn.audit import Audit
from lowprec.nn.emulation import Emulated, sites_of
from lowprec.nn.hf import ghost, token_ids
from lowprec.nn.operations.whole import is_vector
from lowprec.nn.site import Site
from lowprec.nn.wrap import recipe_of
from lowprec.spec import Recipe, Rule

KEPT = "kept"


@dataclass(frozen=True)
class Entry:
    """One operation of one module: its FLOP in the watched pass, the quantizers of its operands in
    full, its datapath, and what a reader should know: why it is kept, or a shared weight.

    hole: no rule decides about it, or the one that does could not be followed.
    """

    path: str
    kind: str
    flops: int
    share: float
    operands: tuple[tuple[str, str], ...]
    datapath: str
    reason: str
    hole: bool

    @property
    def covered(self) -> bool:
        return bool(self.operands or self.datapath)

    @property
    def weight(self) -> str:
        return dict(self.operands).get("weight", KEPT)

    @property
    def activation(self) -> str:
        return dict(self.operands).get("activation", KEPT)

    @property
    def spelled(self) -> str:
        """``operand=quantizer`` of each, and the datapath; or "kept"."""
        words = [f"{name}={text}" for name, text in self.operands]
        if self.datapath:
            words.append(f"datapath={self.datapath}")
        return " ".join(words) or KEPT


@dataclass(frozen=True)
class VectorEntry:
    """A norm, softmax, elementwise operation, add or embedding of one module that ran emulated:
    how often in the watched pass, and its operands and approximations as the rule spells them."""

    path: str
    kind: str
    calls: int
    operands: str


@dataclass(frozen=True)
class Coverage:
    """Every matmul, convolution and attention of one pass; the shares of FLOP add up to 1.
    Beside them the vector operations that a rule has reached; of others there is no list.

    FLOP are those of the dense product: positions that an attention's mask leaves out count.
    """

    entries: tuple[Entry, ...]
    vector: tuple[VectorEntry, ...] = ()

    @property
    def share(self) -> float:
        """Share of the FLOP of which at least one operand is quantized, or under a datapath."""
        return sum(entry.share for entry in self.entries if entry.covered)

    @property
    def holes(self) -> tuple[Entry, ...]:
        """What strict mode would refuse."""
        return tuple(entry for entry in self.entries if entry.hole)

    def __str__(self) -> str:
        """A line for each row of `to_json`, and the total."""
        lines = [
            f"{row['share_of_flops']:8.3%}  {row['count']:4} x {row['modules']}  {row['kind']}  "
            f"{row['operands']}  {row['reason']}".rstrip()
            for row in self.to_json()
        ]
        kinds: dict[tuple[str, str, str], int] = {}
        for entry in self.vector:
            row = (_pattern(entry.path), entry.kind, entry.operands)
            kinds[row] = kinds.get(row, 0) + 1
        lines += [f"{'':8}  {n:4} x {'  '.join(row)}" for row, n in kinds.items()]
        return "\n".join([*lines, f"{self.share:8.3%}  of the FLOP of all matmuls is emulated"])

    def to_json(self) -> list[dict[str, Any]]:
        """A row for the modules that differ in layer numbers only and are treated alike."""
        rows: dict[tuple[str, ...], list[Entry]] = {}
        for entry in self.entries:
            rows.setdefault(
                (_pattern(entry.path), entry.kind, entry.spelled, entry.reason), []
            ).append(entry)
        return [
            {
                "modules": modules,
                "kind": kind,
                "count": len(entries),
                "share_of_flops": sum(entry.share for entry in entries),
                "weight": entries[0].weight,
                "activation": entries[0].activation,
                "operands": spelled,
                "reason": reason,
            }
            for (modules, kind, spelled, reason), entries in rows.items()
        ]


def coverage(
    model: nn.Module, *inputs: Any, batch: int = 1, tokens: int = 512, **named: Any
) -> Coverage:
    """What a recipe did and did not reach, by watching every operation of one pass.

    The pass is ``model(*inputs, **named)``; without any, `batch` x `tokens` token ids of a
    transformers text model, on the meta device, so that its size does not matter.
    LowprecError: no inputs for a model that takes no token ids.
    """
    watched = model
    if not inputs and not named:
        watched = ghost(model)
        named = token_ids(watched, batch, tokens)
    with torch.no_grad():
        return coverage_of(watched, lambda: watched(*inputs, **named))[1]


def coverage_of(model: nn.Module, run: Callable[[], Any]) -> tuple[Any, Coverage]:
    """The answer of `run`, and what it made `model` do, as `coverage` has it."""
    recipe = recipe_of(model)
    audit = Audit(model, recipe)
    with audit.watching():
        answer = run()
    flops = Counter(audit.flops)
    ran = {path for path, *_ in audit.flops}
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear) and path not in ran:
            site = sites_of(module).get("linear") if isinstance(module, Emulated) else None
            flops[path, "linear", site] = 0
    total = sum(flops.values()) or 1
    shared = _shared(model)
    return answer, Coverage(
        tuple(
            _entry(key, count, count / total, recipe, shared, key in audit.flops)
            for key, count in flops.items()
        ),
        tuple(
            VectorEntry(site.path, site.operation, calls, site.spelled)
            for site, calls in audit.calls.items()
            if is_vector(site.operation) or site.operation == "embedding"
        ),
    )


def _pattern(path: str) -> str:
    """A path without its layers' numbers."""
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


def _entry(
    key: tuple[str, str, Site | None],
    flops: int,
    share: float,
    recipe: Recipe | None,
    shared: dict[str, str],
    ran: bool,
) -> Entry:
    path, kind, site = key
    reasons = [] if ran else ["not run in the watched pass"]
    rule = site.rule if site else recipe.rule_for(path, kind) if recipe else None
    operands: tuple[tuple[str, str], ...] = ()
    datapath = ""
    if site:
        operands = tuple((name, q.spell()) for name, q in site.quantizers())
        datapath = site.rule.datapath.name if site.rule.datapath else ""
        if path in shared and site.rule.weight:
            reasons.insert(0, f"weight shared with {shared[path]}; quantized for this module alone")
    else:
        reasons.insert(0, _why_kept(rule, recipe))
    hole = site is None and ran and not (rule and rule.keep)
    return Entry(path, kind, flops, share, operands, datapath, "; ".join(reasons), hole)


def _why_kept(rule: Rule | None, recipe: Recipe | None) -> str:
    if recipe is None:
        return "the model is not wrapped"
    if rule is None:
        return "no rule"
    return f"kept by rule {rule.match!r}" if rule.keep else "not emulated: its rule cannot reach it"


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
