"""Which wrong implementation gives exactly the answers that were given, in words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from lowprec.errors import LowprecError
from lowprec.proposal.vectors import VectorSet
from lowprec.proposal.verify.blocks import quantizers
from lowprec.proposal.verify.compare import Mismatch, equal, ieee_formats
from lowprec.proposal.verify.dots import dots
from lowprec.proposal.verify.results import Results
from lowprec.proposal.verify.scalars import Hypothesis, decoders, encoders
from lowprec.spec import Datapath, Format, Projection, Quantizer
from lowprec.spec.format import AnyFormat

T = TypeVar("T")
# Rows that a hypothesis has to explain; of more, evenly spread ones.
TRIED = 60
# Sentences that are said of one set.
MOST = 4


def formats_of(asked: VectorSet) -> dict[str, Format]:
    """The formats of a set's columns, by name."""
    spec = spec_of(asked)
    known = ieee_formats()
    match spec:
        case Datapath():
            of = [*spec.inputs, spec.output, *(spec.scaling.formats if spec.scaling else ())]
        case Quantizer():
            parts = spec.format.parts.values() if not isinstance(spec.format, Format) else ()
            of = list(parts)
        case (fmt, _):
            of = [fmt]
    return known | {fmt.name: fmt for fmt in of}


def spec_of(asked: VectorSet) -> Datapath | Quantizer | tuple[Format, Projection]:
    """What a set is of; LowprecError for a spec that does not belong to its kind."""
    text = json.dumps(asked.spec)
    try:
        if asked.kind == "dot":
            return Datapath.model_validate_json(text)
        if asked.kind == "quantize":
            return Quantizer.model_validate_json(text)
        adapter: TypeAdapter[Format] = TypeAdapter(AnyFormat)
        if asked.kind == "decode":
            return adapter.validate_json(text), Projection()
        fmt = adapter.validate_json(json.dumps(asked.spec.get("format")))
        return fmt, Projection.model_validate_json(json.dumps(asked.spec.get("projection")))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise LowprecError(f"vectors {asked.name}: spec: {first['msg']}") from None


def diagnose(asked: VectorSet, results: Results, wrong: Sequence[Mismatch]) -> list[str]:
    """The sentences of the hypotheses that give every answer given, on wrong rows and right ones.

    Two mistakes at once are tried where none alone does. Empty where nothing does.
    """
    formats = formats_of(asked)
    bad = {mismatch.row for mismatch in wrong}
    # Wrong rows first: most hypotheses fail at one of these.
    tried = _spread(sorted(bad)) + _spread([i for i in range(asked.rows) if i not in bad])
    known = list(hypotheses(asked, wrong))
    for double in (False, True):
        found = [
            each.sentence
            for each in known
            if each.double == double
            and all(_explains(each, asked, results, i, formats) for i in tried)
        ]
        if found:
            return found[:MOST]
    return []


def hypotheses(asked: VectorSet, wrong: Sequence[Mismatch]) -> Iterator[Hypothesis]:
    """All ways to be wrong that a set's kind knows, the likely ones first."""
    spec = spec_of(asked)
    match spec:
        case Datapath():
            yield from dots(asked, spec)
        case Quantizer():
            yield from quantizers(asked, spec)
        case (fmt, projection):
            if asked.kind == "decode":
                yield from decoders(fmt, ieee_formats()[asked.column("value").format])
                return
            source = ieee_formats()[asked.column("x").format]
            yield from encoders(fmt, projection, source, _given_nan(wrong))


def _given_nan(wrong: Sequence[Mismatch]) -> int | None:
    """The one code point that was given for NaN, where it is wrong."""
    given = {m.given["code"][0] for m in wrong if m.why == "nan" and "code" in m.given}
    return given.pop() if len(given) == 1 else None


def _explains(
    hypothesis: Hypothesis, asked: VectorSet, results: Results, i: int, formats: dict[str, Format]
) -> bool:
    row = {c.name: c.words[i] for c in asked.columns if c.role == "in"}
    given = {name: words[i] for name, words in results.columns.items()}
    try:
        return equal(asked, hypothesis.answer(row), given, formats)
    except LowprecError:
        return False  # it has no answer to this row


def _spread(rows: list[T]) -> list[T]:
    step = max(-(-len(rows) // TRIED), 1)
    return rows[::step]
