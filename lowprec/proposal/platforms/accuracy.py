"""Which accuracy record of a study speaks for a recipe on a machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lowprec.perf import Machine, list_machines
from lowprec.perf import machine as load_machine
from lowprec.proposal.evidence import Cell, Evidence
from lowprec.spec import Recipe


@dataclass(frozen=True)
class Accuracy:
    """What was measured, or nothing. cell: the record. datapaths: the arithmetic of its matmuls;
    none: float32 sums of the quantized operands. own: whether that is the machine's."""

    cell: Cell | None
    datapaths: tuple[str, ...] = ()
    own: bool = False
    others: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What the record rests on, or why there is none."""
        if self.own:
            return f"on {', '.join(self.datapaths)}"
        if self.cell is not None:
            return "float32 sums, not the machine's"
        if self.others:
            return f"no record; there are records on {', '.join(self.others)}"
        return "no record"

    def to_json(self) -> dict[str, Any]:
        if self.cell is None:
            return {"measured": False, "arithmetic": self.words}
        metrics = {
            name: {"value": metric.value, "interval": self.cell.candidate.interval(name)}
            for name in ("kl", "dnll")
            if (metric := self.cell.candidate.metric(name)) is not None
        }
        return {
            "measured": True,
            "model": self.cell.model,
            "arithmetic": self.words,
            "own_arithmetic": self.own,
            **metrics,
            "record": self.cell.file.as_posix(),
        }


def accuracy_of(recipe: Recipe, machine: Machine, evidence: Evidence | None) -> list[Accuracy]:
    """One per model that the study measured the recipe on, the one with the machine's own
    arithmetic before the one without a datapath; one without a record where there is none."""
    cells = [c for c in evidence.accuracy if _same(c.recipe, recipe)] if evidence else []
    found = []
    for model in dict.fromkeys(cell.model for cell in cells):
        here = [cell for cell in cells if cell.model == model]
        own = next((c for c in here if _is_own(datapaths_of(c.recipe), machine)), None)
        plain = next((c for c in here if not datapaths_of(c.recipe)), None)
        if own is not None:
            found.append(Accuracy(own, datapaths_of(own.recipe), own=True))
        elif plain is not None:
            found.append(Accuracy(plain))
    others = dict.fromkeys(name for cell in cells for name in datapaths_of(cell.recipe))
    return found or [Accuracy(None, others=tuple(others))]


def datapaths_of(recipe: Recipe) -> tuple[str, ...]:
    return tuple(dict.fromkeys(r.datapath.name for r in recipe.rules if r.datapath is not None))


def _same(a: Recipe, b: Recipe) -> bool:
    """Whether two recipes differ in their datapaths at most."""
    return _bare(a) == _bare(b)


def _bare(recipe: Recipe) -> list[object]:
    return [rule.model_copy(update={"datapath": None}) for rule in recipe.rules]


def _is_own(datapaths: tuple[str, ...], machine: Machine) -> bool:
    """Datapaths are named after the family that computes so: blackwell_mxf8."""
    families = {m.family for m in map(load_machine, list_machines()) if m.family}
    return bool(datapaths) and all(_family(d, families) == machine.family for d in datapaths)


def _family(datapath: str, families: Iterable[str]) -> str | None:
    known = [family for family in families if datapath.startswith(f"{family}_")]
    return max(known, key=len, default=None)
