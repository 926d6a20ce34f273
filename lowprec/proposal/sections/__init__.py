"""The fourteen sections of a proposal, from its records and models.

Each says what it has no record of; none is padded.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowprec.proposal.document import Document
from lowprec.proposal.pricing import Pricing
from lowprec.proposal.sections import words
from lowprec.proposal.sections.accuracy import accuracy
from lowprec.proposal.sections.arithmetic import arithmetic, conversion
from lowprec.proposal.sections.claim import claim
from lowprec.proposal.sections.conformance import conformance, risks
from lowprec.proposal.sections.datapath import Synthesised, datapath
from lowprec.proposal.sections.encoding import encoding, scale
from lowprec.proposal.sections.storage import storage
from lowprec.proposal.sections.system import hierarchy, software
from lowprec.proposal.sections.throughput import pareto, throughput
from lowprec.proposal.subject import Proposal
from lowprec.proposal.vectors import VectorSet


def document(
    p: Proposal,
    pricing: Pricing,
    sets: Sequence[VectorSet],
    measured: Synthesised | None = None,
) -> Document:
    """The whole document. measured: gates of the units, where they were synthesised."""
    from lowprec import __version__

    facts = [("Format", f"`{p.ours.quantizer.spell()}`")]
    if p.baseline is not None:
        facts.append(("Baseline", f"`{p.baseline.quantizer.spell()}`"))
    facts += [
        ("Evidence", p.evidence.title),
        (
            "Definition",
            f"`formats/{p.name}.toml`, SHA-256 of its parameters `{p.ours.format.digest[:16]}`",
        ),
        ("Made by", f"lowprec {__version__}, from records, formats and models alone"),
    ]
    return Document(
        p.name,
        words.sentence(words.described(p.ours.format)),
        tuple(facts),
        (
            claim(p, pricing, measured),
            encoding(p),
            scale(p),
            conversion(p),
            arithmetic(p, sets),
            accuracy(p),
            storage(p),
            datapath(p, measured),
            throughput(p, pricing),
            pareto(p, pricing),
            hierarchy(p, pricing),
            software(p),
            conformance(p, sets, pricing),
            risks(p, pricing),
        ),
    )
