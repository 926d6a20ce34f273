"""Section 1: the claim, on one page."""

from __future__ import annotations

from collections.abc import Iterator

from lowprec.perf.datapath_cost import StructuralCost
from lowprec.proposal.document import Absent, Block, Paragraph, Points, Section, Table
from lowprec.proposal.paired import difference
from lowprec.proposal.pricing import Pricing
from lowprec.proposal.sections import words
from lowprec.proposal.sections.accuracy import where
from lowprec.proposal.sections.datapath import Synthesised, cost_of, ratio_interval
from lowprec.proposal.sections.storage import bits_of
from lowprec.proposal.subject import Comparison, Proposal, kl, least


def claim(p: Proposal, pricing: Pricing, measured: Synthesised | None) -> Section:
    """Section 1."""
    blocks: list[Block] = [Paragraph(_sentence(p))]
    rows = list(_rows(p, pricing, measured))
    if rows:
        blocks.append(
            Table(
                "The claim, line by line, with its confidence and the section that carries it.",
                ("what", "result", "confidence", "§"),
                tuple(rows),
                "the sections named",
                wide=frozenset({1, 2}),
            )
        )
    blocks += [Paragraph(text) for text in _balance(p)]
    if p.baseline is None:
        blocks.append(Absent("No baseline was named: nothing here is a comparison."))
    blocks.append(Paragraph("**What is asked of a vendor:**"))
    blocks.append(Points(tuple(_asks(p)), numbered=True))
    return Section("Claim", tuple(blocks))


def _sentence(p: Proposal) -> str:
    text = (
        f"We propose `{p.name}`, {words.described(p.ours.format)}: {words.bits(p.ours.bits)} bits "
        "per element"
    )
    if p.baseline is not None:
        text += f", in place of `{p.baseline.name}` ({words.bits(p.baseline.bits)} bits)"
    return text + "."


def _rows(p: Proposal, pricing: Pricing, measured: Synthesised | None) -> Iterator[tuple[str, ...]]:
    base = p.baseline
    if base is not None:
        ratio = words.ratio(p.ours.bits / base.bits)
        yield ("bits per element", f"{p.ours.bits:g} against {base.bits:g}: {ratio}", "exact", "7")
    for c in p.comparisons:
        text = f"KL {words.with_interval(c.ours, 'kl')} nats per token"
        if c.theirs is not None and kl(c.theirs):
            text += f" against {words.with_interval(c.theirs, 'kl')}"
        how = (
            f"measured, 95 % intervals, {c.ours.record.details['tokens']:,} tokens; {where(c.ours)}"
        )
        yield (f"loss, {c.model}", text, how, "6")
    ours = cost_of(p.ours)
    theirs = cost_of(base) if base is not None else None
    if isinstance(ours, StructuralCost) and isinstance(theirs, StructuralCost):
        low, high = ratio_interval(ours, theirs)
        gates = ours.gates_per_lane / theirs.gates_per_lane
        how = f"modelled, 90 %: {low:.2f} to {high:.2f}"
        if measured is not None and measured.ratio is not None:
            how += f"; synthesised: {measured.ratio:.2f}"
        yield ("gates per lane", f"{gates:.2f} of the baseline's", how, "8")
    yield from _speeds(pricing)


def _speeds(pricing: Pricing) -> Iterator[tuple[str, ...]]:
    for job in pricing.jobs[:2]:
        quotes = [q for q in pricing.of(job) if q.gain is not None]
        if not quotes:
            continue
        gains = sorted(((q.gain or 0.0), q.machine.name) for q in quotes)
        low, high = gains[0], gains[-1]
        text = f"{low[0]:.2f}× ({low[1]}) to {high[0]:.2f}× ({high[1]})"
        if len(gains) == 1:
            text = f"{low[0]:.2f}× ({low[1]})"
        yield (f"tokens/s, {job.model}, {job.phase}", text,
               "modelled what-if: both formats native, at one rate, equally tuned",
               "9")  # fmt: skip


def _balance(p: Proposal) -> Iterator[str]:
    """What the accuracy comes to, on every model that was measured."""
    for c in p.comparisons:
        if p.baseline is not None and c.theirs is not None:
            found = difference(c.theirs.record, c.ours.record)
            if found is None or not found.is_clear:
                kept = f"no clear difference to `{p.baseline.name}` was found"
            elif found.value < 0:
                kept = f"it is more accurate than `{p.baseline.name}`"
            else:
                kept = (
                    f"it does **not** keep `{p.baseline.name}`'s accuracy: "
                    f"{kl(c.ours) / kl(c.theirs):.1f} times its KL, cast to directly"
                )
            yield f"On {c.model} {kept}{_rivals(p, c)}."


def _rivals(p: Proposal, c: Comparison) -> str:
    """The best measured format of no more bits."""
    smaller = [
        cell
        for cell in c.cells
        if bits_of(cell.quantizers[0]) <= p.ours.bits and not cell.only(p.ours.format)
    ]
    best = least(smaller)
    if best is None:
        return ""
    name, ratio = best.quantizers[0].format.name, kl(best) / kl(c.ours)
    if ratio < 1:
        return f"; `{name}` has fewer bits and less loss ({ratio:.2f} times its KL)"
    return (
        "; of the formats with at most its bits it loses least, and the next, "
        f"`{name}`, {ratio:.1f} times that"
    )


def _asks(p: Proposal) -> Iterator[str]:
    yield (
        f"A conversion and a multiply-accumulate for `{p.name}` as sections 2 to 5 define them; "
        "what differs (window, order, rounding of the sum) is declared."
    )
    yield "The vectors of section 13 pass, or the rows that do not are published."
    yield (
        "The measurements that section 14 says are missing, on the vendor's own models, before any "
        "decision on silicon."
    )
