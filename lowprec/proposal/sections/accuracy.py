"""Section 6: what the format costs in accuracy, as the study measured it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from lowprec.proposal.charts import ACCENT, DECADES, GREY, SECOND, data, drawn
from lowprec.proposal.document import Absent, Block, Figure, Heading, Paragraph, Section, Table
from lowprec.proposal.evidence import Cell
from lowprec.proposal.paired import difference
from lowprec.proposal.sections import words
from lowprec.proposal.subject import Comparison, Proposal, kl, same_tokens
from lowprec.report.tables import covered

KINDS = {
    "training": "Training: no run with this format is among the records.",
    "tasks": "Tasks (zero-shot accuracy): no run with this format is among the records.",
    "generation": "Generated text: no run with this format is among the records.",
}


def accuracy(p: Proposal) -> Section:
    """Section 6."""
    if not p.comparisons:
        text = f"No accuracy record of the study quantizes with `{p.name}` alone."
        return Section("Accuracy", (Absent(text),))
    blocks: list[Block] = [_protocol(p)]
    for each in p.comparisons:
        blocks += _model(p, each)
    blocks += _search(p)
    blocks.append(Absent(" ".join(missing(p))))
    return Section("Accuracy", tuple(blocks))


def _protocol(p: Proposal) -> Paragraph:
    record = p.comparisons[0].ours.record
    tokens, clusters = record.details["tokens"], record.details["clusters"]
    return Paragraph(
        "Every figure is a paired difference to the same model in float32 on the same tokens "
        f"({tokens:,} scored tokens of {record.subject['text']['name']} in {clusters} documents); "
        "ΔNLL and KL in nats per token, ± half of the 95 % interval, clustered by document. No "
        "calibration, rotation or fine-tuning unless a recipe says so: the formats are cast to "
        "directly, which is the hardest case and the same for all."
    )


def _model(p: Proposal, c: Comparison) -> Iterator[Block]:
    yield Heading(f"{c.model}: {where(c.ours)}")
    yield Table(
        f"{c.model}, {where(c.ours)}: one format everywhere, {covered(c.ours.candidate):.0%} of "
        "the matmuls' FLOP; least loss first. Paired: KL over that of the proposed format, on the "
        "same tokens.",
        ("format and rule", "bits", "KL", "ΔNLL", "same top-1", "paired"),
        tuple((*_row(cell), _paired(c, cell)) for cell in c.cells),
        _source(c),
        right=frozenset({1, 2, 3, 4, 5}),
        strong=frozenset(i for i, cell in enumerate(c.cells) if cell is c.ours),
    )
    yield _chart(p, c)
    if c.theirs is not None:
        yield Paragraph(_verdict(p, c))
    others = _other_places(p, c)
    if others:
        yield Table(
            f"{c.model}, `{p.name}` on other operands.",
            ("recipe", "operands", "KL", "ΔNLL", "same top-1", "of the FLOP"),
            tuple(
                (*_row(cell, by_recipe=True), f"{covered(cell.candidate):.0%}") for cell in others
            ),
            _source(c),
            right=frozenset({2, 3, 4, 5}),
            wide=frozenset({0}),
        )
    yield from _classes(p, c)


def where(cell: Cell) -> str:
    """What a recipe quantizes, in words."""
    names = {"weight": "weights", "activation": "activations", "query": "queries", "key": "keys",
             "probability": "probabilities", "value": "values", "key_cache": "key cache",
             "value_cache": "value cache"}  # fmt: skip
    operands = words.listed([names.get(o, f"{o}s") for o in cell.operands])
    kept = [rule.match for rule in cell.recipe.rules if rule.keep]
    return operands + (f", {words.listed([f'`{k}`' for k in kept])} kept" if kept else "")


def _row(cell: Cell, by_recipe: bool = False) -> tuple[str, ...]:
    quantizer = cell.quantizers[0]
    fmt = quantizer.format
    bits = getattr(fmt, "bits_per_element", None) or float(fmt.bits)  # type: ignore[union-attr]
    top1 = cell.candidate.metric("top1")
    first = (cell.candidate.name, ", ".join(cell.operands))
    name = f"`{fmt.name}`" + ("" if quantizer.rule == "cast" else f" {quantizer.rule}")
    return (
        *(first if by_recipe else (name, words.bits(bits))),
        words.with_interval(cell, "kl"),
        words.with_interval(cell, "dnll", plus=True),
        f"{top1.value:.3f}" if top1 else "–",
    )


def _paired(c: Comparison, cell: Cell) -> str:
    """The KL of a recipe over that of the proposed format's."""
    if cell is c.ours:
        return ""
    found = difference(c.ours.record, cell.record)
    return f"{words.signed(found.value)} ± {words.loss(found.half)}" if found else "–"


def _source(c: Comparison) -> str:
    subject = c.ours.record.subject
    return (
        f"accuracy records in `records/`, text {subject['text']['name']}, windows "
        f"`{subject['windows'][:12]}`"
    )


def _chart(p: Proposal, c: Comparison) -> Figure:
    import altair as alt

    rows = [_point(p, cell) for cell in c.cells if kl(cell) > 0]
    order = [row["name"] for row in rows]
    y = alt.Y("name:N", sort=order, title=None, axis=alt.Axis(grid=True, labelLimit=220))
    x = alt.X("kl:Q", title="KL divergence to the unquantized model, nats per token (log)")
    x = x.scale(type="log").axis(values=DECADES, format="~g")
    color = alt.Color("kind:N", legend=None).scale(
        domain=["proposed", "baseline", "other"], range=[ACCENT, SECOND, GREY]
    )
    base = alt.Chart(data(rows)).encode(y=y, color=color)
    bars = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q"), x2="high:Q")
    dots = base.mark_point(filled=True, size=70, opacity=1).encode(x=x)
    return Figure(
        f"loss-{_file(c.model)}",
        f"{c.model}: loss by format, with 95 % intervals; the proposed format in blue, the "
        "baseline in orange.",
        drawn(bars + dots, width=520, height=24 * len(rows) + 10),
        "; ".join(f"{row['name']}: KL {row['kl']:.3g}" for row in rows),
        _source(c),
        0.92,
    )


def _file(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def _point(p: Proposal, cell: Cell) -> dict[str, Any]:
    quantizer = cell.quantizers[0]
    baseline = p.baseline is not None and quantizer.format == p.baseline.format
    kind = "proposed" if quantizer.format == p.ours.format else "baseline" if baseline else "other"
    low, high = cell.candidate.interval("kl") or (kl(cell), kl(cell))
    rule = "" if quantizer.rule == "cast" else f" {quantizer.rule}"
    return {
        "name": f"{quantizer.format.name}{rule}",
        "kl": kl(cell),
        "low": max(low, kl(cell) / 100),
        "high": high,
        "kind": kind,
    }


def _verdict(p: Proposal, c: Comparison) -> str:
    assert c.theirs is not None
    assert p.baseline is not None
    ratio = kl(c.ours) / kl(c.theirs) if kl(c.theirs) else float("inf")
    text = (
        f"On {c.model} `{p.name}` loses {ratio:.2f} times the KL of `{p.baseline.name}` at "
        f"{p.ours.bits / p.baseline.bits:.2f} times its bits"
    )
    found = difference(c.theirs.record, c.ours.record)
    if found is None:
        return f"{text}. The records do not hold what a paired test needs."
    clear = "" if found.is_clear else "not "
    return (
        f"{text}. Paired on the same tokens the difference is {words.signed(found.value)} ± "
        f"{words.loss(found.half)} nats per token (95 %, clustered by document), {clear}clear of "
        "zero."
    )


def _other_places(p: Proposal, c: Comparison) -> list[Cell]:
    """The format's cells on the same tokens with other operands quantized."""
    return [
        cell
        for cell in p.measured(c.model)
        if cell.slots != c.ours.slots and same_tokens(cell, c.ours)
    ]


def _classes(p: Proposal, c: Comparison) -> Iterator[Block]:
    """SQNR by class of layers, where the record has it."""
    sides = [(p.ours.name, c.ours)]
    if p.baseline is not None and c.theirs is not None:
        sides.append((p.baseline.name, c.theirs))
    found = {name: _by_class(cell) for name, cell in sides}
    kinds = list(dict.fromkeys(kind for table in found.values() for kind in table))
    if not kinds:
        return
    heads = [f"{name}, {what}" for name in found for what in ("weights", "activations")]
    rows = [
        (kind, *(text for name in found for text in _decibels(found[name].get(kind, []))))
        for kind in kinds
    ]
    yield Table(
        f"{c.model}: signal-to-quantization-noise ratio in dB by class of layers: median over the "
        "layers (and the worst).",
        ("class", *heads),
        tuple(rows),
        _source(c),
        right=frozenset(range(1, len(heads) + 1)),
    )


def _by_class(cell: Cell) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for layer in cell.record.details.get("layers", []):
        found.setdefault(layer["path"].rpartition(".")[2], []).append(layer)
    return found


def _decibels(layers: Sequence[dict[str, Any]]) -> Iterator[str]:
    for key in ("weight_db", "activation_db"):
        known = [layer[key] for layer in layers if layer.get(key) is not None]
        yield f"{statistics.median(known):.1f} ({min(known):.1f})" if known else "–"


def _search(p: Proposal) -> Iterator[Block]:
    """What a search that was kept beside the study found."""
    rows = sorted(p.evidence.searched, key=lambda each: each["predicted_kl"])
    if not rows:
        return
    yield Heading("The search that led here")
    yield Table(
        "Candidates of the search, by the KL that its proxy predicts; measured on tokens that it "
        "did not see, where they were.",
        ("candidate", "bits W / A", "predicted KL", "KL", "ΔNLL"),
        tuple(_searched(each) for each in rows),
        "`records/search.json`",
        right=frozenset({1, 2, 3, 4}),
    )


def _searched(each: dict[str, Any]) -> tuple[str, ...]:
    def pm(name: str, form: str) -> str:
        metric = each.get("metrics", {}).get(name)
        if metric is None:
            return "–"
        low, high = metric["interval"]
        text = f"{metric['value']:{form}} ± {(high - low) / 2:{form.removeprefix('+')}}"
        return text.replace("-", "−")

    name = each["name"].removesuffix("-nearest-even-SatFinite")
    bits = " / ".join(f"{b:.3g}" for b in each["bits"].values())
    return (f"`{name}`", bits, f"{each['predicted_kl']:.3f}", pm("kl", ".3f"), pm("dnll", "+.3f"))


def missing(p: Proposal) -> list[str]:
    """What the section would need records for."""
    operands = {o for c in p.comparisons for cell in p.measured(c.model) for o in cell.operands}
    found = []
    if not operands & {"key_cache", "value_cache"}:
        found.append("KV cache: no recipe of the study stores it in this format.")
    if not operands & {"query", "key", "probability", "value"}:
        found.append("Attention products: no recipe of the study quantizes them to this format.")
    kinds = {cell.record.kind for cell in p.evidence.cells if cell.only(p.ours.format)}
    found += [text for kind, text in KINDS.items() if kind not in kinds]
    return found
