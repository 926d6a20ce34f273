"""What could be wrong with a dot product, each computed with `lowprec.exact`."""

from __future__ import annotations

from collections.abc import Iterator

from lowprec.exact import code_of, value
from lowprec.proposal.vectors import VectorSet
from lowprec.proposal.vectors.dots import running_sums
from lowprec.proposal.verify.compare import Cells
from lowprec.proposal.verify.scalars import ROUNDINGS, Hypothesis
from lowprec.spec import Aligned, Datapath, Format


def dots(asked: VectorSet, path: Datapath) -> Iterator[Hypothesis]:
    """Other windows, roundings, steps and orders."""
    formats = {fmt.name: fmt for fmt in path.inputs}
    a, b = formats[asked.column("a").format], formats[asked.column("b").format]

    def of(sentence: str, other: Datapath, backwards: bool = False) -> Hypothesis:
        return Hypothesis(sentence, lambda row: _answer(other, (a, b), row, backwards))

    add = path.addition
    if isinstance(add, Aligned) and add.fraction_bits is not None:
        for bits in range(add.fraction_bits + 4, 0, -1):
            if bits == add.fraction_bits:
                continue
            size = "small" if bits < add.fraction_bits else "large"
            yield of(
                f"the accumulation window is too {size}: {bits} fraction bits instead of "
                f"{add.fraction_bits}",
                _with(path, fraction_bits=bits),
            )
        yield of("adds products exactly, without a window", _with(path, fraction_bits=None))
        for rounding in ("toward-zero", "down", "nearest-even"):
            if rounding != add.rounding:
                yield of(f"aligned products: {ROUNDINGS[rounding]}", _with(path, rounding=rounding))
    for rounding, sentence in ROUNDINGS.items():
        if rounding != path.rounding:
            yield of(f"the sum: {sentence}", path.model_copy(update={"rounding": rounding}))
    if path.step is not None and not path.order and path.scaling is None:
        yield of("accumulates in another order: from the last product", path, True)
        for step in (1, 2, 4, 8, 16, 32, 64):
            fits = path.promotion is None or path.promotion.interval % step == 0
            if step != path.step and fits:
                yield of(
                    f"accumulates in another order: {step} products at a time instead of "
                    f"{path.step}",
                    path.model_copy(update={"step": step}),
                )


def _with(path: Datapath, **changes: object) -> Datapath:
    return path.model_copy(update={"addition": path.addition.model_copy(update=changes)})


def _answer(path: Datapath, formats: tuple[Format, Format], row: Cells, backwards: bool) -> Cells:
    turn = -1 if backwards else 1
    operands = (
        row["a"][::turn], row["b"][::turn], row.get("scale_a", ()), row.get("scale_b", ()),
        value(row["c"][0], path.output),
    )  # fmt: skip
    return {"d": (code_of(running_sums(path, formats, operands)[-1], path.output),)}
