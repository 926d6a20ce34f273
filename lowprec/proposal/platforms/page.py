"""The comparison as a document: the table, and what stands behind each of its columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lowprec.perf import Machine
from lowprec.proposal.document import Absent, Block, Document, Paragraph, Points, Section, Table
from lowprec.proposal.document.html import html
from lowprec.proposal.evidence import Evidence
from lowprec.proposal.platforms.accuracy import Accuracy
from lowprec.proposal.platforms.compare import Platform
from lowprec.report.text import engineering
from lowprec.spec import Workload

# Figures of a machine that a row rests on, by their paths.
FIGURES = ("memory.capacity", "memory.bandwidth", "power", "tco.per_hour", "tco.watts")


def page(workload: Workload, rows: Sequence[Platform], evidence: Evidence | None) -> str:
    """One HTML file that loads nothing."""
    return html(document(workload, rows, evidence))


def document(workload: Workload, rows: Sequence[Platform], evidence: Evidence | None) -> Document:
    machines = list({row.machine.name: row.machine for row in rows}.values())
    return Document(
        title=f"{workload.model} on {len(machines)} machines",
        subtitle="Accuracy, throughput, energy and cost by recipe",
        kind="Comparison of platforms",
        facts=(
            ("Pass", describe(workload)),
            ("Level", rows[0].found.level if rows and rows[0].found else "none"),
            ("Accuracy from", evidence.title if evidence else "no study"),
        ),
        sections=(
            Section("Comparison", tuple(_comparison(rows))),
            Section("Accuracy", tuple(_accuracy(rows))),
            Section("Throughput and what it rests on", tuple(_throughput(rows))),
            Section("Risks and what was not tested", tuple(_risks(rows))),
            Section("Sources of the machines' figures", (_sources(machines),)),
        ),
    )


def describe(workload: Workload) -> str:
    """The pass in words."""
    if workload.phase == "decode":
        return f"decode, batch {workload.batch}, {workload.context:,} tokens behind each"
    return f"{workload.phase}, batch {workload.batch}, {workload.tokens:,} new tokens each"


def cells(row: Platform) -> dict[str, str]:
    """The row of the table, as text."""
    shown = {"machine": row.machine.name, "recipe": row.recipe, "KL": _kl(row.accuracy)}
    shown["arithmetic"] = "; ".join(dict.fromkeys(each.words for each in row.accuracy))
    if row.found is None:
        return shown | {"plan": "none", "tokens/s": "none"}
    rate = row.found.tokens_per_second
    return shown | {
        "plan": row.found.parallel,
        "tokens/s": engineering(rate),
        "per chip": engineering(row.found.tokens_per_second_per_chip),
        "per joule": _or_unknown(row.power.tokens_per_joule.value if row.power else None),
        "per dollar": _or_unknown(row.tokens_per_dollar),
        "memory": f"{row.memory:.0%}",
        "converted": f"{sum(row.fallbacks.values()):.0%}",
    }


COLUMNS = (
    "machine", "recipe", "KL", "arithmetic", "plan", "tokens/s", "per chip", "per joule",
    "per dollar", "memory", "converted",
)  # fmt: skip


def _kl(found: Sequence[Accuracy]) -> str:
    shown = []
    for each in found:
        metric = each.cell.candidate.metric("kl") if each.cell else None
        if metric is None or each.cell is None:
            continue
        ends = each.cell.candidate.interval("kl")
        spread = f" ± {(ends[1] - ends[0]) / 2:.4f}" if ends else ""
        shown.append(f"{metric.value:.4f}{spread}")
    return "; ".join(shown) or "no record"


def _or_unknown(value: float | None) -> str:
    return "unknown" if value is None else engineering(value)


def _table(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[tuple[str, ...]],
    source: str,
    **more: object,
) -> Table:
    return Table(caption, tuple(columns), tuple(rows), source, **more)  # type: ignore[arg-type]


def _comparison(rows: Sequence[Platform]) -> Iterator[Block]:
    yield Paragraph(
        "KL is the mean divergence in nats per token from the unquantized model. Rates are "
        "modelled, of the whole layout; per joule at the wall, per dollar as rented. Converted is "
        "the share of the time spent on formats that no datapath of the machine multiplies."
    )
    shown = [cells(row) for row in rows]
    yield _table(
        "Every recipe on every machine.",
        COLUMNS,
        [tuple(row.get(name, "none") for name in COLUMNS) for row in shown],
        "estimates of `lowprec.perf`; accuracy from the study's records",
        right=frozenset({5, 6, 7, 8, 9, 10}),
        wide=frozenset({1, 3}),
    )
    refused = [f"{row.machine.name}, {row.recipe}: {row.refused}" for row in rows if row.refused]
    if refused:
        yield Paragraph("These could not be priced:")
        yield Points(tuple(dict.fromkeys(refused)))


def _accuracy(rows: Sequence[Platform]) -> Iterator[Block]:
    machines: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        for each in row.accuracy:
            if each.cell is not None:
                name = each.cell.file.stem[:16]
                record = (row.recipe, each.cell.model, _kl([each]), each.words, name)
                machines.setdefault(record, []).append(row.machine.name)
    measured = [(*record, ", ".join(names)) for record, names in machines.items()]
    if not measured:
        yield Absent("No record of a study speaks of any of these recipes.")
        return
    yield Paragraph(
        "The accuracy is that of the model that was evaluated, also where another one is priced. "
        "A record on a datapath has the machine's own sums, bit for bit; one without has the "
        "quantized operands with float32 sums."
    )
    yield _table(
        "Records, by the beginning of their digests.",
        ("recipe", "measured on", "KL", "arithmetic", "record", "speaks for"),
        measured, "the study's folder `cells`", wide=frozenset({0, 3, 5}),
    )  # fmt: skip


def _throughput(rows: Sequence[Platform]) -> Iterator[Block]:
    priced = [row for row in rows if row.found is not None]
    if not priced:
        yield Absent("No recipe could be priced on any of these machines.")
        return
    yield _table(
        "The time of one pass, with its 90 % interval.",
        ("machine", "recipe", "ms", "90 %", "bound by", "constants"),
        [
            (
                row.machine.name, row.recipe, f"{e.seconds * 1e3:.3g}",
                f"{e.low * 1e3:.3g} to {e.high * 1e3:.3g}" if e.level != "bound" else "none",
                e.bound, e.calibration,
            )
            for row in priced
            if (e := row.found) is not None
        ],
        "docs/validation.md says how far off such estimates are",
        right=frozenset({2}), wide=frozenset({1}),
    )  # fmt: skip
    converted = [
        (row.machine.name, row.recipe, reason, f"{share:.0%}")
        for row in priced
        for reason, share in row.fallbacks.items()
    ]
    if converted:
        yield _table(
            "Formats that fall back.", ("machine", "recipe", "what happens", "of the time"),
            converted, "the machine's datapaths", right=frozenset({3}), wide=frozenset({1, 2}),
        )  # fmt: skip
    notes = dict.fromkeys(
        f"{row.machine.name}: {note}"
        for row in priced
        for note in (*row.found.notes, *(row.power.notes if row.power else ()))  # type: ignore[union-attr]
    )
    if notes:
        yield Points(tuple(notes))


def _risks(rows: Sequence[Platform]) -> Iterator[Block]:
    yield _table(
        "What the figures of a row do not say.", ("machine", "recipe", "risk"),
        [(row.machine.name, row.recipe, risk) for row in rows for risk in row.risks],
        "calibration and interval of the estimates, and the records",
        wide=frozenset({1, 2}), dense=True,
    )  # fmt: skip


def _sources(machines: Sequence[Machine]) -> Table:
    found = [
        (machine.name, path, f"{figure.value:g}", figure.kind, figure.source)
        for machine in machines
        for path, figure in machine.parameters().items()
        if path in FIGURES or (path.startswith("datapaths.") and path.endswith(".rate"))
    ]
    return _table(
        "Figures, in SI base units.", ("machine", "figure", "value", "kind", "source"),
        found, "the machines' files", right=frozenset({2}), wide=frozenset({4}), dense=True,
    )  # fmt: skip
