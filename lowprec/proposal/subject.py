"""What a proposal is about: a format and its baseline, with their records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lowprec.errors import LowprecError
from lowprec.proposal.evidence import Cell, Evidence
from lowprec.spec import (
    BlockFormat,
    Datapath,
    Format,
    Projection,
    Quantizer,
    load_format,
    load_quantizer,
)
from lowprec.spec.default_datapath import default_datapath


@dataclass(frozen=True)
class Side:
    """A format with the rule that chooses its scales. unit: what today's tensor cores would be for
    it, or None, and `no_unit` says why. file: the TOML file that it was read from, if one was."""

    quantizer: Quantizer
    unit: Datapath | None
    no_unit: str = ""
    file: Path | None = None

    @property
    def format(self) -> Format | BlockFormat:
        return self.quantizer.format

    @property
    def name(self) -> str:
        return self.format.name

    @property
    def element(self) -> Format:
        return self.format.element if isinstance(self.format, BlockFormat) else self.format

    @property
    def bits(self) -> float:
        """Bits per element, scales included."""
        return _bits(self.format)


def _bits(fmt: Format | BlockFormat) -> float:
    return fmt.bits_per_element if isinstance(fmt, BlockFormat) else float(fmt.bits)


@dataclass(frozen=True)
class Comparison:
    """Recipes of one model and text that quantize the same operands with one format each.

    ours, theirs: of the proposed format and of the baseline, the one of least KL divergence.
    """

    model: str
    ours: Cell
    theirs: Cell | None
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Proposal:
    ours: Side
    baseline: Side | None
    evidence: Evidence

    @property
    def name(self) -> str:
        return self.ours.name

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """One per model that the format was measured on: of the places that its recipes quantize,
        those where most formats were measured, and of equals the most operands."""
        found = (self._compared(model) for model in self.evidence.models)
        return tuple(each for each in found if each is not None)

    def measured(self, model: str) -> list[Cell]:
        """The accuracy cells of the proposed format alone, on a model."""
        cells = self.evidence.accuracy
        return [cell for cell in cells if cell.model == model and cell.only(self.ours.format)]

    def _compared(self, model: str) -> Comparison | None:
        own = self.measured(model)
        if not own:
            return None
        best = max(own, key=lambda cell: (len(self._peers(cell)), len(cell.slots), -kl(cell)))
        cells = self._peers(best)
        theirs = None
        if self.baseline is not None:
            theirs = least([c for c in cells if c.only(self.baseline.format)])
        ours = least([c for c in cells if c.only(self.ours.format)])
        assert ours is not None
        return Comparison(model, ours, theirs, tuple(sorted(cells, key=kl)))

    def _peers(self, cell: Cell) -> list[Cell]:
        """The cells of the same tokens with the same operands quantized, each by one format."""
        return [
            other
            for other in self.evidence.accuracy
            if same_tokens(cell, other)
            and other.slots == cell.slots
            and len({q.format for q in other.quantizers}) == 1
        ]


def same_tokens(a: Cell, b: Cell) -> bool:
    """Whether two records scored the same windows of the same text with the same model."""
    return all(a.record.subject[key] == b.record.subject[key] for key in ("model", "windows"))


def kl(cell: Cell) -> float:
    return cell.record.metrics["kl"].value


def least(cells: Sequence[Cell]) -> Cell | None:
    return min(cells, key=kl, default=None)


def make_proposal(evidence: Evidence, fmt: str, baseline: str | None) -> Proposal:
    """The proposal of a format, by name, file or as a quantizer is spelled, over a baseline.

    LowprecError for an unknown format, and for a block format without a scale rule that no record
    of the study uses.
    """
    ours = _side(fmt, evidence, "--format")
    theirs = _side(baseline, evidence, "--baseline") if baseline else None
    if theirs is not None and theirs.format == ours.format:
        raise LowprecError(f"--baseline {baseline}: is the proposed format itself")
    return Proposal(ours, theirs, evidence)


def _side(text: str, evidence: Evidence, where: str) -> Side:
    name = text.partition(".toml/")[0] + ".toml" if ".toml/" in text else text
    file = Path(name) if name.endswith(".toml") else None
    quantizer = _quantizer(text, evidence, where)
    try:
        return Side(quantizer, default_datapath(quantizer.format), file=file)
    except LowprecError as error:
        return Side(quantizer, None, str(error), file)


def _quantizer(text: str, evidence: Evidence, where: str) -> Quantizer:
    if "/" in text.rpartition(".toml")[2]:
        return load_quantizer(text, where)
    fmt = load_format(text, where)
    cells = [c for c in evidence.accuracy if c.only(fmt) and len(c.quantizers) == 1]
    cell = least(cells)
    if cell is not None:
        return cell.quantizers[0]
    if not isinstance(fmt, BlockFormat):
        return Quantizer(format=fmt, rule="cast", projection=Projection())  # type: ignore[arg-type]
    names = ", ".join(sorted({q.format.name for c in evidence.accuracy for q in c.quantizers}))
    raise LowprecError(
        f"{where} {text}: no recipe of the study uses it alone, so that its scale rule is not "
        f"known; name one, as in {text}/amax. The study has {names or 'no accuracy records'}"
    )
