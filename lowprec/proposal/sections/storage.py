"""Section 7: bytes of weights, caches, activations and exchanges."""

from __future__ import annotations

from lowprec.errors import LowprecError
from lowprec.perf import load_workload
from lowprec.perf.grouping import grouped, kv_bytes, weight_bytes
from lowprec.proposal.document import Absent, Block, Paragraph, Section, Table
from lowprec.proposal.pricing import study_jobs, uniform
from lowprec.proposal.sections import words
from lowprec.proposal.subject import Proposal
from lowprec.spec import (
    Embedding,
    Format,
    Quantizer,
    Recipe,
    Rule,
    Workload,
    load_format,
    load_quantizer,
)

SOURCE = "computed from the formats' bits and the models' recorded workloads"
CONTEXT = 2048
REFERENCES = ("bfloat16/cast", "float8_e4m3fn/amax:channel", "nvfp4/amax")


def storage(p: Proposal) -> Section:
    """Section 7."""
    names = list(dict.fromkeys(job.model for job in study_jobs(p.evidence)))
    blocks: list[Block] = [Paragraph(_sentence(p))]
    if names:
        blocks += [_weights(p, names), _per_token(p, names)]
    else:
        blocks.append(Absent("The study prices no model, so that no model's bytes are given."))
    blocks.append(
        Absent("Compressed checkpoints and optimizer states: no record; the ratio above is that of "
               "the codes themselves.")
    )  # fmt: skip
    return Section("Storage and traffic", tuple(blocks))


def _sentence(p: Proposal) -> str:
    text = f"An element takes {words.bits(p.ours.bits)} bits, {p.ours.bits / 16:.2f} of bfloat16's"
    if p.baseline is not None:
        text += f" and {p.ours.bits / p.baseline.bits:.2f} of `{p.baseline.name}`'s"
    return text + ", scales included."


def _sides(p: Proposal) -> dict[str, Quantizer]:
    found = {p.name: p.ours.quantizer}
    if p.baseline is not None:
        found[p.baseline.name] = p.baseline.quantizer
    for spelled in REFERENCES:
        quantizer = load_quantizer(spelled)
        found.setdefault(quantizer.format.name, quantizer)
    return found


def _weights(p: Proposal, names: list[str]) -> Table:
    sides = _sides(p)
    rows = []
    for name in names:
        cells = [words.si(_bytes(name, q), "B") for q in sides.values()]
        rows.append((name, *cells))
    return Table(
        "Weights of the matmuls, all linear layers but the head in the format and the rest in the "
        "model's own type.",
        ("model", *(f"`{name}`" for name in sides)),
        tuple(rows),
        SOURCE,
        right=frozenset(range(1, len(sides) + 1)),
    )


def _bytes(name: str, quantizer: Quantizer) -> int:
    work = load_workload(name)
    return weight_bytes(grouped(work, fitted(work, uniform(quantizer))), _dtype(work))


def fitted(work: Workload, recipe: Recipe) -> Recipe:
    """Without the rule for a head that the model does not have."""
    try:
        grouped(work, recipe)
    except LowprecError:
        return Recipe(name=recipe.name, rules=recipe.rules[1:])
    return recipe


def _dtype(work: Workload) -> Format:
    fmt = load_format(work.dtype)
    assert isinstance(fmt, Format)
    return fmt


def _per_token(p: Proposal, names: list[str]) -> Table:
    sides = _sides(p)
    rows = []
    for name in names:
        work = load_workload(name).at(1, 1, CONTEXT)
        dtype = _dtype(work)
        kept = Recipe(name="kept", rules=(Rule(match="*", keep=True),))
        width = next((op.width for op in work.ops if isinstance(op, Embedding)), 0)
        for what, size in (
            ("KV cache", kv_bytes(grouped(work, kept), dtype)),
            ("residual", width * dtype.bits / 8),
        ):
            if size:
                cells = [words.si(size * bits_of(q) / dtype.bits, "B") for q in sides.values()]
                rows.append((name, what, *cells))
    return Table(
        f"If the format stored them: the KV cache of {CONTEXT:,} tokens, and the residual stream "
        "of one token, which tensor and pipeline parallel exchanges carry per token and layer.",
        ("model", "", *(f"`{name}`" for name in sides)),
        tuple(rows),
        SOURCE,
        right=frozenset(range(2, len(sides) + 2)),
    )


def bits_of(quantizer: Quantizer) -> float:
    fmt = quantizer.format
    return getattr(fmt, "bits_per_element", None) or float(fmt.bits)  # type: ignore[union-attr]
