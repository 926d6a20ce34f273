"""Sections 4 and 5: how numbers become codes, and how codes are multiplied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from lowprec.proposal.document import Absent, Block, Paragraph, Points, Section, Table
from lowprec.proposal.sections import words
from lowprec.proposal.sections.encoding import rule_text
from lowprec.proposal.sections.sums import measured_error
from lowprec.proposal.subject import Proposal
from lowprec.proposal.vectors import VectorSet
from lowprec.proposal.vectors.dots import unit_of
from lowprec.spec import (
    Aligned,
    BlockFormat,
    Datapath,
    FloatFormat,
    Quantizer,
    list_datapaths,
    load_datapath,
    load_datapath_facts,
)
from lowprec.spec.quantizer import GIVEN_RULES, POWER_OF_TWO_RULES

ROUNDINGS = {
    "nearest-even": "to the nearest value, ties to the even code",
    "nearest-away": "to the nearest value, ties away from zero",
    "toward-zero": "toward zero",
    "up": "up",
    "down": "down",
    "to-odd": "to odd",
    "stochastic": "up or down by random bits that are given with each number",
}


def conversion(p: Proposal) -> Section:
    """Section 4."""
    quantizer = p.ours.quantizer
    how = ROUNDINGS.get(quantizer.projection.rounding, quantizer.projection.spell())
    blocks: list[Block] = [
        Paragraph(
            f"The conversion is `{quantizer.spell()}`. Its input is float32; bfloat16 and float16 "
            "widen exactly first. Every step is rounded to float32, to nearest with ties to even, "
            "so that two implementations can agree to the last bit."
        ),
        Points(tuple(_steps(p, how)), numbered=True),
        Table(
            "The ends.",
            ("input", "answer"),
            tuple(_ends(quantizer)),
            "the contract of `lowprec.spec.Quantizer`, answered by `lowprec.exact`",
            wide=frozenset({1}),
        ),
        Paragraph(
            "**Stochastic rounding** is the same with n random bits r per element: with f the "
            "fraction of the gap by which the magnitude lies above its lower neighbour, it is "
            "rounded up if floor(f · 2^n) + r ≥ 2^n (IEEE P3109's StochasticA). "
            "`vectors/stochastic-*` gives the bits with every question, so that converters with "
            "any generator can be checked."
        ),
        Paragraph(
            f"`reference/{p.name}.py` is this algorithm without any library, and "
            f"`reference/{p.name}.h` the same in C99."
        ),
        _cost(p),
    ]
    return Section("Conversion", tuple(blocks))


def _steps(p: Proposal, how: str) -> Iterator[str]:
    fmt = p.ours.format
    if not isinstance(fmt, BlockFormat):
        yield f"Round the number {how}; beyond the largest value: {_overflow(p)}."
        return
    if fmt.outer is not None:
        factor = Fraction(fmt.elements_max) * fmt.scale.max_exact
        yield (
            f"Take the largest magnitude over the {fmt.outer.block} and divide it by "
            f"{words.value(factor)}; rounded to `{fmt.outer.scale.name}` that is the second-level "
            "scale t."
        )
    yield f"Take the largest magnitude of the block (a scale {words.block(fmt.block)})."
    over = ", divided by t" if fmt.outer is not None else ""
    yield f"The scale s is {rule_text(p)}{over}."
    if fmt.inner:
        yield "Take the inner scales, coarse to fine, from the largest magnitude of their parts."
    whole = "s · t, rounded to float32" if fmt.outer is not None else "s"
    yield f"Divide every number by S = {whole}; a division, not a product with a reciprocal."
    yield f"Round the quotient to the element {how}; beyond its largest value: {_overflow(p)}."
    yield "Decoding is exact up to its last step: element · S, rounded to float32."


def _overflow(p: Proposal) -> str:
    kinds = {
        "SatFinite": "the largest finite value of its sign",
        "SatPropagate": "the largest finite value, infinities stay",
        "OvfInf": "infinity where the rounding goes outward, NaN in a format without it",
    }
    saturation = p.ours.quantizer.projection.saturation
    return kinds.get(saturation, f"`{saturation}`")


def _ends(quantizer: Quantizer) -> Iterator[tuple[str, str]]:
    fmt = quantizer.format
    if not isinstance(fmt, BlockFormat):
        yield ("NaN", "NaN" if fmt.has_nan else "no code; 0 by convention")
        yield ("zero", "zero; its sign is kept" if fmt.has_negative_zero else "zero")
        return
    powers = quantizer.rule in POWER_OF_TWO_RULES
    zero = not powers and (not isinstance(fmt.scale, FloatFormat) or fmt.scale.zero)
    least = "zero" if zero else "the smallest positive scale"
    yield ("a block of zeros", f"scale: {least}; elements: zero")
    yield ("NaN or infinity in a block", _not_finite(quantizer, fmt))
    below = "the nearest scale, zero included" if zero else "the smallest positive scale"
    yield ("a scale below its format's range", below)
    yield ("a scale above it", "the largest scale")
    if fmt.element.has_negative_zero:
        yield ("negative zero", "keeps its sign; so does what is rounded to zero")
    yield ("subnormal inputs", "are numbers like others: nothing is flushed to zero")


def _not_finite(quantizer: Quantizer, fmt: BlockFormat) -> str:
    if quantizer.rule in GIVEN_RULES and fmt.outer is None:
        return "is each element's own: the scale is given and knows nothing of the data"
    if fmt.outer is not None and fmt.outer.scale.has_nan:
        return "the outer scale is NaN and with it every value under it"
    if fmt.scale.has_nan:
        return "the scale is NaN and with it every value of the block"
    return "every value of the block is NaN; the codes, all zero, cannot say so"


def _cost(p: Proposal) -> Block:
    """Operations per element, counted over the steps above."""
    fmt = p.ours.format
    if not isinstance(fmt, BlockFormat):
        return Paragraph("Per number: one rounding (a shift, an add, a clamp).")
    size = 1 if isinstance(fmt.block, str) else fmt.block[-1]
    rows = [
        ("magnitude and maximum", "1", "over the block, in log2 steps where lanes share a block"),
        ("division by the scale", "1", "a multiplication where scales are powers of two"),
        (
            "rounding and clamping to the element",
            "1",
            "one conversion instruction, if there is one",
        ),
        (
            "the scale itself",
            f"1/{size}" if size > 1 else "once a row",
            "a division and a rounding",
        ),
        ("packing", f"{fmt.element.bits}/32", "words written per element"),
    ]
    if fmt.outer is not None:
        rows.insert(0, ("maximum of the outer block", "1", "a pass of its own, or a delayed scale"))
    return Table(
        "Operations per element of the conversion.",
        ("step", "operations", "note"),
        tuple(rows),
        "counted from the steps above; no instruction set has been assumed",
        wide=frozenset({2}),
    )


def arithmetic(p: Proposal, sets: Sequence[VectorSet]) -> Section:
    """Section 5."""
    unit = p.ours.unit
    if unit is None:
        return Section("Arithmetic", (Absent(f"No datapath is proposed. {p.ours.no_unit}."),))
    blocks: list[Block] = [
        Paragraph(
            f"`datapath/{unit.name}.toml` defines the unit down to the last bit; "
            f"`rtl/` holds it in Verilog. It is what today's tensor cores would be for the format; "
            "no number format asks for one accumulator rather than another, so that everything in "
            "this table is a choice that a vendor may declare otherwise."
        ),
        _unit_table(unit),
        Points(tuple(_order(unit)), numbered=True),
        *_error(unit),
        *measured_error(p, sets),
        _shipped(),
    ]
    return Section("Arithmetic", tuple(blocks))


def _unit_table(unit: Datapath) -> Table:
    addition = unit.addition
    cut = f"terms are cut {addition.rounding}" if isinstance(addition, Aligned) else addition.kind
    rows = [
        ("products", f"{_product_bits(unit)} bits, exact"),
        ("products summed at once", f"{unit_of(unit)}"),
        ("window W", _window(unit)),
        ("alignment", cut),
        ("accumulator", f"`{unit.accumulator.name}`, rounded {unit.rounding}"),
        ("result", f"`{unit.output.name}`"),
        ("overflow", unit.overflow),
    ]
    if unit.scaling:
        group = f"; sums of {unit.scaling.group} products are exact" if unit.scaling.group else ""
        names = words.listed([f.name for f in unit.scaling.formats])
        where = f"per {unit.scaling.block}, applied {unit.scaling.position} the sum"
        rows.insert(3, ("scales", f"`{names}` {where}{group}"))
    if unit.promotion:
        rows.append(
            ("promotion", f"to `{unit.promotion.format.name}` every {unit.promotion.interval}")
        )
    return Table(
        f"The unit `{unit.name}`.",
        ("property", "value"),
        tuple(rows),
        f"`datapath/{unit.name}.toml`, built by `lowprec.spec.default_datapath`",
        wide=frozenset({1}),
    )


def _window(unit: Datapath) -> str:
    bits = getattr(unit.addition, "fraction_bits", None)
    return f"{bits} fraction bits below the largest exponent" if bits else "exact sum"


def _product_bits(unit: Datapath) -> int:
    fmt = unit.inputs[0]
    return 2 * (fmt.precision if isinstance(fmt, FloatFormat) else fmt.bits)


def _order(unit: Datapath) -> Iterator[str]:
    group = unit.scaling.group if unit.scaling and unit.scaling.position == "inside" else None
    yield f"Multiply {unit.step or 'all'} pairs of elements exactly."
    if group:
        yield (
            f"Sum each {group} products exactly in fixed point and multiply the sum by the two "
            "scales, exactly."
        )
    if isinstance(unit.addition, Aligned) and unit.addition.fraction_bits:
        yield (
            "Align all terms and the accumulator to the largest exponent among them and cut each "
            f"at {unit.addition.fraction_bits} fraction bits, {unit.addition.rounding}."
        )
    yield f"Sum them; round {unit.rounding} to `{unit.accumulator.name}`."


def _error(unit: Datapath) -> Iterator[Block]:
    """A bound that follows from the window alone."""
    if not isinstance(unit.addition, Aligned):
        return
    bits = unit.addition.fraction_bits
    if bits is None:
        yield Paragraph("The sum of a step is exact; the only error is the accumulator's rounding.")
        return
    biased = " and so biased" if unit.addition.rounding != "nearest-even" else ""
    group = (unit.scaling.group if unit.scaling else None) or 1
    terms = -(-unit_of(unit) // group) + 1
    yield Paragraph(
        f"**Worst case.** A step sums {terms} aligned terms, the accumulator among them. Each is "
        f"cut by less than 2^(e − {bits}), with 2^e the power of two of the largest: a step's sum "
        f"is off by less than {terms} · 2^(e − {bits}) before it is rounded to the accumulator. "
        f"The cut is {unit.addition.rounding}{biased}; errors on a model's own operands are no "
        "part of the records."
    )


def _shipped() -> Table:
    """What units of today keep, from the catalogue."""
    rows = []
    for name in list_datapaths():
        path = load_datapath(name)
        bits = getattr(path.addition, "fraction_bits", None)
        if not isinstance(path.addition, Aligned) or bits is None or path.inputs[0].bits > 8:
            continue
        facts = load_datapath_facts(name)
        scaled = f"per {path.scaling.block}" if path.scaling else "none"
        rows.append(
            (f"`{name}`", str(path.step or "–"), str(bits), scaled, path.rounding, facts.evidence)
        )
    return Table(
        "For comparison: units of today for formats of up to 8 bits that align terms to a window.",
        ("datapath", "step", "fraction bits", "scales", "rounding", "evidence"),
        tuple(rows),
        "`formats/datapath/*.toml`, most from MMA-Sim (arXiv 2511.10909)",
        right=frozenset({1, 2}),
        dense=True,
    )
