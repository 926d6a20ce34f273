"""Which sets a format, a quantizer or a datapath has."""

from __future__ import annotations

from collections.abc import Iterator

from lowprec.errors import LowprecError, unknown
from lowprec.proposal.vectors.block import quantize_set
from lowprec.proposal.vectors.dots import dot_sets
from lowprec.proposal.vectors.model import LEVELS, Level, Target, VectorSet
from lowprec.proposal.vectors.scalar import convert_set, decode_set, encode_set, stochastic_set
from lowprec.spec import BlockFormat, Datapath, Format, Projection, Quantizer


def generate(target: Target, level: Level = "smoke") -> tuple[VectorSet, ...]:
    """All sets of a format, quantizer or datapath, in a fixed order.

    level: "smoke" is about 1,000 rows, "standard" some thousands, "full" every code point and
    boundary of formats of up to 16 bits. The same call gives the same sets. LowprecError for a
    block format alone, whose scale rule is not known.
    """
    if level not in LEVELS:
        raise unknown("level", str(level), LEVELS)
    match target:
        case Datapath():
            return tuple(dot_sets(target, level))
        case BlockFormat():
            raise LowprecError(f"{target.name}: vectors need a scale rule, as in a quantizer")
        case Format():
            return tuple(_scalar(Quantizer(format=target, rule="cast"), level))  # type: ignore[arg-type]
    if isinstance(target.format, BlockFormat):
        return tuple(_block(target, level))
    return tuple(_scalar(target, level))


def _scalar(quantizer: Quantizer, level: Level) -> Iterator[VectorSet]:
    fmt, projection, target = quantizer.format, quantizer.projection, quantizer.spell()
    assert isinstance(fmt, Format)
    yield decode_set(fmt, target, "element", level)
    if projection.bits is None:
        yield encode_set(fmt, projection, target, "element", level)
        yield convert_set(fmt, projection, target, "element", level)
    yield stochastic_set(fmt, projection, target, "element", level)


def _block(quantizer: Quantizer, level: Level) -> Iterator[VectorSet]:
    fmt, target = quantizer.format, quantizer.spell()
    assert isinstance(fmt, BlockFormat)
    seen: set[str] = set()
    for key, part in fmt.parts.items():
        if part.name in seen:
            continue
        seen.add(part.name)
        name = key.replace(".", "-")
        yield decode_set(part, target, name, level)
        projection = quantizer.projection if "element" in key else Projection()
        if projection.bits is None and not name.startswith("inner"):
            yield encode_set(part, projection, target, name, level)
    yield stochastic_set(fmt.element, quantizer.projection, target, "element", level)
    yield quantize_set(quantizer, target, level)
