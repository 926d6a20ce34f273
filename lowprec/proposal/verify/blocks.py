"""What could be wrong with a block quantizer, each computed with `lowprec.exact`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pydantic import ValidationError

from lowprec.exact import value
from lowprec.proposal.vectors import VectorSet
from lowprec.proposal.vectors.block import F32, answer
from lowprec.proposal.vectors.model import Words
from lowprec.proposal.verify.compare import Cells
from lowprec.proposal.verify.scalars import Hypothesis, biases, projections
from lowprec.spec import BlockFormat, Quantizer
from lowprec.spec.quantizer import POWER_OF_TWO_RULES


def quantizers(asked: VectorSet, quantizer: Quantizer) -> Iterator[Hypothesis]:
    """Other rules and projections, and right answers in the wrong places."""
    fmt = quantizer.format
    assert isinstance(fmt, BlockFormat)

    def computed(other: Quantizer) -> Callable[[Cells], Cells]:
        return lambda row: _answer(asked, other, row)

    for rule, other in _rules(quantizer):
        scale = f"computes the scale by {rule} instead of {quantizer.rule}"
        yield Hypothesis(scale, computed(other))
        for sentence, projection in projections(quantizer.projection):
            both = other.model_copy(update={"projection": projection})
            yield Hypothesis(f"{scale}, and elements: {sentence}", computed(both), double=True)
    for sentence, projection in projections(quantizer.projection):
        yield Hypothesis(
            f"elements: {sentence}",
            computed(quantizer.model_copy(update={"projection": projection})),
        )
    for sentence, twin_scale in biases(fmt.scale):
        twin = fmt.model_copy(update={"scale": twin_scale})
        yield Hypothesis(
            f"scale: {sentence}", computed(quantizer.model_copy(update={"format": twin}))
        )
    right = computed(quantizer)
    yield Hypothesis(
        "swaps neighbouring elements (the nibbles of a byte)",
        lambda row: _with(right(row), "code", _swapped),
    )
    yield Hypothesis(
        "lays out the scales transposed (column by column)",
        lambda row: _with(right(row), "scale", lambda words: _transposed(words, row, fmt)),
    )


def _rules(quantizer: Quantizer) -> Iterator[tuple[str, Quantizer]]:
    """The same quantizer under the other rules that its format takes."""
    for rule in (*POWER_OF_TWO_RULES, "amax"):
        if rule != quantizer.rule:
            try:
                yield rule, Quantizer.model_validate(dict(quantizer) | {"rule": rule})
            except ValidationError:
                continue


def _answer(asked: VectorSet, quantizer: Quantizer, row: Cells) -> Cells:
    names = [column.name for column in asked.columns if column.role == "out"]
    rows, columns = row["shape"]
    given = float(value(row["given"][0], F32)) if "given" in row else None
    random = row.get("random") if quantizer.projection.bits is not None else None
    cells = answer(quantizer, (rows, columns), row["x"], random, given)
    return {
        name: (cell,) if isinstance(cell, int) else cell
        for name, cell in zip(names, cells, strict=True)
    }


def _with(cells: Cells, name: str, change: Callable[[Words], Words]) -> Cells:
    return {**cells, name: change(cells[name])}


def _swapped(words: Words) -> Words:
    pairs = (words[i : i + 2][::-1] for i in range(0, len(words), 2))
    return tuple(word for pair in pairs for word in pair)


def _transposed(words: Words, row: Cells, fmt: BlockFormat) -> Words:
    shape = fmt.scale_shape((row["shape"][0], row["shape"][1]))
    if shape[0] * shape[1] != len(words):
        return words
    return tuple(words[r * shape[1] + c] for c in range(shape[1]) for r in range(shape[0]))
