"""Sections 9 and 10: kernels and systems, the Pareto front, and when the format pays."""

from __future__ import annotations

from collections.abc import Iterator

from lowprec.perf import Estimate
from lowprec.proposal.document import Absent, Block, Heading, Paragraph, Points, Section, Table
from lowprec.proposal.pricing import Job, Pricing, Quote, validated
from lowprec.proposal.sections import words
from lowprec.proposal.sections.datapath import cost_of, ratio_interval
from lowprec.proposal.sections.front import front
from lowprec.proposal.subject import Proposal

SOURCE = (
    "`lowprec.perf.estimate`, kernel level; machines and constants have their sources in lowprec"
)


def throughput(p: Proposal, pricing: Pricing) -> Section:
    """Section 9."""
    if p.baseline is None:
        text = "No baseline was named, so that no throughput is compared."
        return Section("Kernel and system throughput", (Absent(text),))
    if not pricing.quotes:
        text = "The study prices nothing ([throughput] is missing or no machine could be priced)."
        return Section("Kernel and system throughput", (Absent(text), *_refused(pricing)))
    blocks: list[Block] = [
        Paragraph(
            f"All modelled. **Today**: `{p.baseline.name}` and `{p.name}` on the machine as it is "
            "(ᶜ: no datapath takes the operands as stored, they are converted on the way). "
            "**What-if**: both on a machine like it that takes either format as stored, at the "
            "rate of the datapath that runs the baseline today, with kernels that are equally well "
            "tuned; the gain is the format's own. Tokens per second and chip; weights and "
            "activations of all linear layers but the head, under the smallest tensor-parallel "
            "plan that holds the baseline."
        )
    ]
    blocks += [_table(p, pricing, job) for job in pricing.jobs]
    blocks += _refused(pricing)
    blocks += [Heading("How far to trust these numbers"), _errors(), _trust(pricing)]
    blocks.append(
        Absent("A training step and expert routing with skew: no record of the study prices them.")
    )
    return Section("Kernel and system throughput", tuple(blocks))


def _refused(pricing: Pricing) -> Iterator[Block]:
    if pricing.refused:
        yield Heading("Could not be priced")
        yield Points(pricing.refused)


def _table(p: Proposal, pricing: Pricing, job: Job) -> Table:
    assert p.baseline is not None
    names = (p.baseline.name, p.name)
    return Table(
        f"{job.model}, {job.name}: tokens per second and chip, with the ends of 90 % intervals, "
        "and what binds the format under the what-if.",
        ("machine", *(f"`{n}`, today" for n in names), "ratio", *(f"`{n}`, what-if" for n in names),
         "gain", "bound by"),
        tuple(_row(quote) for quote in pricing.of(job)),
        SOURCE,
        right=frozenset({1, 2, 3, 4, 5, 6}),
        dense=True,
    )  # fmt: skip


def _row(q: Quote) -> tuple[str, ...]:
    plan = "" if q.plan == "tp=1" else f" ({q.plan})"
    today = (_today(q.theirs), _today(q.ours), words.ratio(q.gain_today))
    if q.what_if is None or q.gain is None:
        return (q.machine.name + plan, *today, "–", "–", "–", q.ours.bound)
    theirs, ours = q.what_if
    speeds = (_speed(theirs), _speed(ours), words.ratio(q.gain))
    return (q.machine.name + plan, *today, *speeds, ours.bound)


def _today(e: Estimate) -> str:
    return _speed(e) + ("" if all(t.native for t in e.terms) else " ᶜ")


def _speed(e: Estimate) -> str:
    x = e.tokens_per_second_per_chip
    low, high = x * e.seconds / e.high, x * e.seconds / e.low
    return f"{words.number(x)} [{words.number(low)}–{words.number(high)}]"


def _errors() -> Table:
    return Table(
        "The throughput model against published measurements that its constants were not fitted "
        "to (where the row says so): relative errors, and the share within the 90 % interval.",
        ("what", "points", "median", "90 % of them", "within"),
        tuple(
            (v.what, f"{v.points:,}", f"{v.median:.1%}", f"{v.p90:.1%}", f"{v.coverage:.0%}")
            for v in validated()
        ),
        "computed now from `benchmarks/validation` of lowprec (AIConfigurator, aiter)",
        right=frozenset({1, 2, 3, 4}),
        wide=frozenset({0}),
    )


def _trust(pricing: Pricing) -> Paragraph:
    levels = sorted({e.calibration for q in pricing.quotes for e in (q.theirs, q.ours)})
    return Paragraph(
        f"The estimates rest on constants that are {words.listed(levels)}; no datapath for the "
        "proposed format exists, so that the what-if can be validated only by formats that were "
        "left out, the rows above. A gain is a ratio of two estimates of one machine, in which "
        "common errors cancel; the row on speed-ups is the one to hold against it."
    )


def pareto(p: Proposal, pricing: Pricing) -> Section:
    """Section 10."""
    blocks: list[Block] = []
    figure = front(p)
    if figure is None:
        blocks.append(
            Absent("No study cell has both an accuracy and a throughput record of one recipe.")
        )
    else:
        blocks += figure
    if pricing.quotes and pricing.pricer and p.baseline is not None:
        blocks += _break_even(p, pricing)
    else:
        blocks.append(Absent("Break-even: needs a baseline and priced machines; there are none."))
    blocks.append(Absent("Tokens per joule and per dollar: the study's records hold neither."))
    return Section("Pareto front and break-even", tuple(blocks))


def _break_even(p: Proposal, pricing: Pricing) -> Iterator[Block]:
    assert p.baseline is not None
    pricer = pricing.pricer
    assert pricer is not None
    yield Heading("Break-even")
    yield Paragraph(
        "Under the what-if of section 9. **Peak ratio**: how fast the format's datapath must be, "
        f"over the one for `{p.baseline.name}`, for as many tokens per second as the baseline. "
        "**Bandwidth**: up to how many times the machine's memory bandwidth the format is faster "
        "by 1 % or more, at a peak ratio of 1." + _in_area(p)
    )
    rows = []
    for quote in pricing.quotes:
        rate = _factor(pricer.break_even_rate(quote), "any", "never")
        bandwidth = _factor(pricer.break_even_bandwidth(quote), "never", "always")
        where = (quote.job.model, quote.job.phase, quote.machine.name)
        rows.append((*where, words.si(quote.path.rate.value, "FLOP/s"), rate, bandwidth))
    yield Table(
        "What the format needs before it pays.",
        ("model", "pass", "machine", "rate today", "peak ratio", "bandwidth up to"),
        tuple(rows),
        SOURCE,
        right=frozenset({3, 4, 5}),
        dense=True,
    )


def _in_area(p: Proposal) -> str:
    """The ratio that the area of the baseline's unit gives."""
    ours = cost_of(p.ours)
    theirs = cost_of(p.baseline) if p.baseline else ""
    if isinstance(ours, str) or isinstance(theirs, str):
        return ""
    low, high = ratio_interval(ours, theirs)
    ratio = theirs.gates_per_lane / ours.gates_per_lane
    return (
        f" By section 8 the area of the baseline's unit holds {ratio:.2f} ({1 / high:.2f} to "
        f"{1 / low:.2f}) times as many lanes of the format: a peak ratio below that is paid for."
    )


def _factor(x: float | None, zero: str, never: str) -> str:
    if x is None:
        return never
    return zero if x == 0 else f"{x:.2f}×"
