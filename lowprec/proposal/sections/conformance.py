"""Sections 13 and 14: how to check an implementation, where the numbers come from, the risks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lowprec.errors import LowprecError
from lowprec.perf import load_workload
from lowprec.proposal.document import Block, Heading, Listing, Paragraph, Points, Section, Table
from lowprec.proposal.pricing import Pricing
from lowprec.proposal.sections import words
from lowprec.proposal.sections.accuracy import missing
from lowprec.proposal.subject import Proposal
from lowprec.proposal.vectors import VectorSet
from lowprec.spec import BlockFormat, data_dir, read_toml
from lowprec.spec.format import FloatFormat

ASKS = {
    "decode": "the value of every code point",
    "encode": "the code of a number: every value, tie and boundary",
    "convert": "the same from bfloat16",
    "stochastic": "the code, with the random bits given",
    "quantize": "scales, codes and values of tensors, the hard cases of blocks among them",
    "dot": "inner products with every intermediate sum",
}
LARGE = 7e9
SILICON = "Silicon: no implementation exists; the Verilog has no timing closure, layout or power."
OTHERS = "Other texts, languages and context lengths than those of section 6."


def conformance(p: Proposal, sets: Sequence[VectorSet], pricing: Pricing) -> Section:
    """Section 13."""
    rows = [(f"`{s.name}`", f"{s.rows:,}", ASKS[s.kind], f"`{s.digest[:12]}`") for s in sets]
    blocks: list[Block] = [
        Paragraph(
            "An implementation conforms if it gives every answer in `vectors/`, or declares which "
            "it does not. Each set is there as hexadecimal text, JSON and npz with the same "
            "content; any NaN answers for NaN, −0 and +0 differ."
        ),
        Table(
            "Vector sets.",
            ("set", "rows", "asks for", "digest of the spec"),
            tuple(rows),
            "`vectors/index.json`, answered by `lowprec.exact`",
            right=frozenset({1}),
            wide=frozenset({2}),
        ),
        Paragraph("With Python alone, from the folder of the package:"),
        Listing(
            "python3 check.py reference/"
            f"{p.name}.py      # the reference itself\n"
            "python3 check.py my_converter.py    # yours, with functions of the same names"
        ),
        Paragraph(
            "Answers of hardware go into CSV files named like the sets; `lowprec verify . results` "
            "then says in words what a wrong implementation does otherwise. `README.md` has the "
            "steps."
        ),
        Heading("Where the numbers come from"),
        _origins(p, pricing),
        Heading("Kinds of numbers"),
        Points(
            (
                "**Exact**: sections 2 to 5, 7, 11 (bits) and 13; in fractions or by counting.",
                "**Measured**: section 6; by emulation that is bit for bit that of the vectors.",
                "**Modelled**: sections 8 to 10 and the exchanges of 11; with intervals or errors.",
            )
        ),
    ]
    return Section("Conformance and reproducibility", tuple(blocks))


def _origins(p: Proposal, pricing: Pricing) -> Table:
    rows: list[tuple[str, str]] = [("study", p.evidence.title)]
    rows.append((f"format {p.name}", f"`{p.ours.format.digest}`"))
    if p.baseline is not None:
        rows.append((f"format {p.baseline.name}", f"`{p.baseline.format.digest}`"))
    for c in p.comparisons:
        subject = c.ours.record.subject
        rows += [
            (f"model {c.model}", f"`{subject['model']['digest']}`"),
            (f"text {subject['text']['name']}", f"`{subject['text']['digest']}`"),
            (f"windows, {c.model}", f"`{subject['windows']}`"),
            (f"seed, {c.model}", str(subject["seed"])),
            (f"code, {c.model}", f"`{subject['code']}`"),
            (f"record, {c.model}", f"`{c.ours.record.name}`"),
        ]
        rows += [
            (f"environment, {c.model}", ", ".join(f"{k} {v}" for k, v in
                                                 sorted(c.ours.record.environment.items())))
        ]  # fmt: skip
    machines = dict.fromkeys(q.machine for q in pricing.quotes)
    rows += [(f"machine {m.name}", f"`{m.digest}`") for m in machines]
    return Table(
        "Digests (SHA-256) of all that the numbers rest on.",
        ("what", "digest or value"),
        tuple(dict.fromkeys(rows)),
        "the records' subjects",
        wide=frozenset({1}),
        dense=True,
    )


def risks(p: Proposal, pricing: Pricing) -> Section:
    """Section 14."""
    blocks: list[Block] = [
        Paragraph("What a reader should hold against this proposal, from its own records:"),
        Points(tuple(_evidence(p))),
        Heading("What the format risks"),
        Points(tuple(_format(p, pricing))),
        Heading("Not tested"),
        Points((*missing(p), SILICON, OTHERS)),
    ]
    return Section("Risks, and what was not tested", tuple(blocks))


def _evidence(p: Proposal) -> Iterator[str]:
    if not p.comparisons:
        yield "**Accuracy**: nothing was measured with this format."
        return
    models = [c.model for c in p.comparisons]
    number = words.count(len(models), "model")
    yield f"**Models**: {number} ({words.listed(models)}){_sizes(models)}."
    for name in models:
        for note in _notes(name):
            yield f"**{name}**: {note}"
    tokens = [c.ours.record.details["tokens"] for c in p.comparisons]
    yield f"**Text**: {min(tokens):,} scored tokens per model; rare failures would not show."
    if p.ours.quantizer.projection.bits is None:
        yield "**Seeds**: one; the rounding is deterministic and has no noise of its own."
    if p.evidence.unnamed:
        yield (
            f"**Other records**: {p.evidence.unnamed} in the study's folder are of recipes that "
            "the study does not name, and are not shown."
        )


def _sizes(models: Sequence[str]) -> str:
    sizes = []
    for name in models:
        try:
            sizes.append(load_workload(name).parameters)
        except LowprecError:
            continue
    if not sizes or max(sizes) >= LARGE:
        return ""
    return (
        f"; the largest whose size is known has {words.si(max(sizes), '').strip()} parameters, and "
        "what larger ones lose was not measured"
    )


def _notes(model: str) -> list[str]:
    """What the model's own file warns of, where it ships with lowprec."""
    path = data_dir("evals/models") / f"{model}.toml"
    return list(read_toml(path).get("notes", [])) if path.is_file() else []


def _format(p: Proposal, pricing: Pricing) -> Iterator[str]:
    fmt = p.ours.format
    if isinstance(fmt, BlockFormat):
        yield from _scales(fmt)
    bits = p.ours.element.bits
    if bits & (bits - 1):
        yield (
            f"**Width**: {bits} bits fit no byte. Where a memory system or an instruction set "
            "stores them in wider containers, what section 7 saves is lost there."
        )
    gains = [q.gain for q in pricing.quotes if q.gain]
    if gains:
        yield (
            f"**Gain**: between {min(gains):.2f} and {max(gains):.2f} times the baseline's tokens "
            "per second in section 9; where it is near 1 other things than the format bind."
        )
    without = [q for q in pricing.quotes if q.gain_today < 1]
    if without:
        yield (
            f"**Without hardware**: on {len(without)} of {len(pricing.quotes)} machines and passes "
            "the format is slower today than the baseline, since it is converted on the way."
        )


def _scales(fmt: BlockFormat) -> Iterator[str]:
    narrow = isinstance(fmt.scale, FloatFormat) and fmt.scale.precision > 1
    if narrow and fmt.outer is None:
        yield (
            "**Scale range**: a scale with a significand has few binades. arXiv 2601.19026 shows "
            "that a finer block can hurt when small blocks fall below the scale's range; a reply "
            "(arXiv 2605.08565) shows that a second-level scale removes the effect. This format "
            "has no second level."
        )
    elif narrow:
        yield (
            "**Scale range**: arXiv 2601.19026 shows that finer blocks can hurt through the "
            "scale's range, and a reply (arXiv 2605.08565) that a second-level scale, which this "
            "format has, removes the effect. It costs a pass over the tensor, or a delayed scale."
        )
    else:
        yield (
            "**Scale steps**: powers of two leave up to a factor of two of the element's range "
            "unused, and which rule chooses them changes the loss (floor lets maxima saturate)."
        )
