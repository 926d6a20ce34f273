"""Section 8: what the unit costs, as a difference to the baseline's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lowprec.errors import LowprecError
from lowprec.perf.datapath_cost import StructuralCost, constants, structural_cost
from lowprec.proposal.charts import ACCENT, SECOND, data, drawn
from lowprec.proposal.document import Absent, Block, Figure, Paragraph, Section, Table
from lowprec.proposal.subject import Proposal, Side
from lowprec.spec import Aligned, BlockFormat, Datapath
from lowprec.spec.default_datapath import default_datapath

SOURCE = "the structural model `lowprec.perf.datapath_cost`, gates are NAND2 equivalents"
WINDOWS = (10, 13, 16, 20, 25, 30, 35, 40)
BLOCKS = (8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Synthesised:
    """Gates per lane that a synthesis counted, by component: of the unit, and of the baseline's
    where that was built. tool: what counted them."""

    ours: dict[str, float]
    theirs: dict[str, float] | None
    tool: str

    @property
    def ratio(self) -> float | None:
        return sum(self.ours.values()) / sum(self.theirs.values()) if self.theirs else None


def datapath(p: Proposal, measured: Synthesised | None = None) -> Section:
    """Section 8."""
    cost = cost_of(p.ours)
    if isinstance(cost, str):
        return Section("Datapath cost", (Absent(f"No cost: {cost}."),))
    base = cost_of(p.baseline) if p.baseline is not None else None
    theirs = base if isinstance(base, StructuralCost) else None
    spread = constants().interval
    blocks: list[Block] = [
        Paragraph(
            "The cost of one lane (a product per cycle) of the unit of section 5, from its "
            f"structure: a model fitted to synthesised units, ±{spread:.0%} for 90 % of units that "
            "it was not fitted to. Logic alone: no pipeline registers, wires or operand delivery."
        ),
        _components(p, cost, theirs),
    ]
    if theirs is not None and p.baseline is not None:
        blocks.append(Paragraph(_delta(p, cost, theirs)))
    if measured is not None:
        blocks.append(_synthesis(p, measured))
    blocks += _sensitivity(p)
    blocks += [
        Absent(
            "Energy per operation: no record. `lowprec.rtl.energy` measures it from operand "
            "streams of a model; the study keeps none."
        ),
        Absent(
            "The increment over a unit that multiplies several formats with shared multipliers is "
            "not in the records; `lowprec.rtl.multi_unit` builds and costs such a unit."
        ),
    ]
    return Section("Datapath cost", tuple(blocks))


def cost_of(side: Side) -> StructuralCost | str:
    """The cost, or why there is none."""
    if side.unit is None:
        return side.no_unit
    try:
        return structural_cost(side.unit)
    except LowprecError as error:
        return str(error)


def _components(p: Proposal, ours: StructuralCost, theirs: StructuralCost | None) -> Table:
    costs = [cost for cost in (ours, theirs) if cost is not None]
    parts = [{k: v / cost.lanes for k, v in cost.components.items()} for cost in costs]
    caption = f"Gates per lane by component, modelled; {ours.lanes} lanes."
    return _compared(p, caption, parts, SOURCE, [_row("delay, FO4", [c.delay for c in costs])])


def _compared(
    p: Proposal,
    caption: str,
    parts: Sequence[dict[str, float]],
    source: str,
    more: Sequence[tuple[str, ...]] = (),
) -> Table:
    """Components of one unit or of two, their sums, and further rows."""
    names = list(dict.fromkeys(name for part in parts for name in part))
    rows = [_row(name, [part.get(name, 0.0) for part in parts]) for name in names]
    rows.append(_row("gates per lane", [sum(part.values()) for part in parts]))
    heads = ["component", f"`{p.name}`"]
    if len(parts) == 2 and p.baseline is not None:
        heads += [f"`{p.baseline.name}`", "difference", "ratio"]
    return Table(
        caption,
        tuple(heads),
        (*rows, *more),
        source,
        right=frozenset(range(1, len(heads))),
        strong=frozenset({len(rows) - 1}),
    )


def _row(name: str, values: Sequence[float]) -> tuple[str, ...]:
    """Ours and perhaps theirs, with difference and ratio."""
    texts = [f"{x:,.0f}" for x in values]
    if len(values) == 2:
        ours, theirs = values
        ratio = f"{ours / theirs:.2f}" if theirs else "–"
        texts += [f"{ours - theirs:+,.0f}".replace("-", "−"), ratio]
    return (name, *texts)


def _delta(p: Proposal, ours: StructuralCost, theirs: StructuralCost) -> str:
    assert p.baseline is not None
    ratio = ours.gates_per_lane / theirs.gates_per_lane
    low, high = ratio_interval(ours, theirs)
    area = ratio * p.ours.bits / p.baseline.bits
    return (
        f"A lane takes **{ratio:.2f} times the gates** of one of `{p.baseline.name}` "
        f"({low:.2f} to {high:.2f}), so that its area holds {1 / ratio:.2f} times as many lanes. "
        f"Area times bits per element, which weighs memory too, is {area:.2f} of the baseline's."
    )


def ratio_interval(ours: StructuralCost, theirs: StructuralCost) -> tuple[float, float]:
    """90 % of the ratio: the two errors are taken as independent."""
    ratio = ours.gates_per_lane / theirs.gates_per_lane
    spread = 1 + 2**0.5 * constants().interval
    return ratio / spread, ratio * spread


def _synthesis(p: Proposal, measured: Synthesised) -> Table:
    parts = [part for part in (measured.ours, measured.theirs) if part is not None]
    return _compared(
        p,
        "The same, synthesised: NAND2 equivalents of a small textbook cell library, no timing "
        "constraint, nothing optimised across parts.",
        parts,
        f"the Verilog of `rtl/` and the baseline's, {measured.tool}",
    )


def _sensitivity(p: Proposal) -> Iterator[Block]:
    """Gates by window, and by block."""
    rows = []
    for side in filter(None, (p.ours, p.baseline)):
        for bits in WINDOWS:
            gates = _gates(_with_window(side, bits))
            if gates is not None:
                rows.append({"format": side.name, "window": bits, "gates": gates})
    if rows:
        yield _window_figure(rows)
    blocks = [
        (size, gates) for size in BLOCKS if (gates := _gates(_with_block(p.ours, size))) is not None
    ]
    if len(blocks) > 1:
        element = p.ours.element.bits
        fmt = p.ours.format
        assert isinstance(fmt, BlockFormat)
        yield Table(
            "What the block length costs: gates per lane, and bits per element.",
            ("elements per scale", "gates per lane", "bits per element"),
            tuple(
                (str(size), f"{gates:,.0f}", f"{element + fmt.per_block_bits / size:g}")
                for size, gates in blocks
            ),
            SOURCE,
            right=frozenset({0, 1, 2}),
        )


def _gates(unit: Datapath | None) -> float | None:
    if unit is None:
        return None
    try:
        return structural_cost(unit).gates_per_lane
    except LowprecError:
        return None


def _with_window(side: Side, bits: int) -> Datapath | None:
    if side.unit is None or not isinstance(side.unit.addition, Aligned):
        return None
    if side.unit.addition.fraction_bits is None:
        return None
    addition = side.unit.addition.model_copy(update={"fraction_bits": bits})
    return side.unit.model_copy(update={"addition": addition})


def _with_block(side: Side, size: int) -> Datapath | None:
    fmt = side.format
    if not isinstance(fmt, BlockFormat) or isinstance(fmt.block, str) or len(fmt.block) != 1:
        return None
    if fmt.outer is not None and not isinstance(fmt.outer.block, str):
        return None
    try:
        return default_datapath(fmt.model_copy(update={"block": (size,)}))
    except LowprecError:
        return None


def _window_figure(rows: list[dict[str, Any]]) -> Figure:
    import altair as alt

    names = list(dict.fromkeys(row["format"] for row in rows))
    color = alt.Color("format:N", title=None, legend=alt.Legend(orient="top")).scale(
        domain=names, range=[ACCENT, SECOND][: len(names)]
    )
    chart = (
        alt.Chart(data(rows))
        .mark_line(point=alt.OverlayMarkDef(size=36), strokeWidth=1.8)
        .encode(
            x=alt.X("window:Q", title="fraction bits kept of aligned terms (window W)"),
            y=alt.Y("gates:Q", title="gates per lane"),
            color=color,
        )
    )
    return Figure(
        "window",
        "Gates per lane against the accumulation window, all else equal.",
        drawn(chart, width=520, height=230),
        "; ".join(f"{r['format']}, {r['window']} bits: {r['gates']:,.0f} gates" for r in rows),
        SOURCE,
        0.85,
    )
