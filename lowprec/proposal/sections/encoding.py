"""Sections 2 and 3: the encoding of every part, and the scales."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from lowprec.errors import LowprecError
from lowprec.exact import value, value_table
from lowprec.proposal.charts import bit_layout
from lowprec.proposal.document import Block, Figure, Paragraph, Points, Section, Table
from lowprec.proposal.sections import words
from lowprec.proposal.subject import Proposal, Side
from lowprec.spec import BlockFormat, CodebookFormat, FloatFormat, Format, IntFormat

EXACT = "computed from the format's file, in fractions"
# Value tables of up to this many code points are printed in full; the references hold them all.
TABLE_CODES = 256


def encoding(p: Proposal) -> Section:
    """Section 2."""
    parts = _parts(p.ours)
    own = {f.name: f for f in parts.values()}
    blocks: list[Block] = [
        Paragraph(
            f"`{p.name}` is {words.described(p.ours.format)}: "
            f"**{words.bits(p.ours.bits)} bits per element**. The file `formats/{p.name}.toml` is "
            "the definition; everything in this section follows from it."
        ),
        Figure(
            "layout",
            "Bit layout, the most significant bit first.",
            bit_layout([(f.name, _bits(f)) for f in own.values()]),
            "; ".join(f"{f.name}: {_layout(f)}" for f in own.values()),
            EXACT,
            min(1.0, 0.3 + max(f.bits for f in own.values()) / 40),
        ),
        _parameters(own),
        *_meaning(p.ours.element),
    ]
    for fmt in own.values():
        blocks += _values(fmt)
    return Section("Encoding", tuple(blocks))


def _parts(side: Side) -> dict[str, Format]:
    fmt = side.format
    return dict(fmt.parts) if isinstance(fmt, BlockFormat) else {"element": fmt}


def _bits(fmt: Format) -> list[tuple[str, str]]:
    match fmt:
        case FloatFormat():
            fields = [("sign", "S")] * fmt.signed + [("exponent", "E")] * fmt.exponent_bits
            found = fields + [("trailing", "M")] * (fmt.precision - 1)
        case IntFormat():
            found = [("sign", "S")] * fmt.signed + [("integer", "I")] * (fmt.bits - fmt.signed)
        case _:
            found = [("code", "C")] * fmt.bits
    # Wide standard parts are drawn as they are, without a letter in every box.
    return found if fmt.bits <= 16 else [(field, "") for field, _ in found]


def _layout(fmt: Format) -> str:
    match fmt:
        case FloatFormat():
            sign = "one sign bit, " if fmt.signed else "no sign bit, "
            trailing = f"{fmt.precision - 1} trailing significand bits"
            return f"{sign}{fmt.exponent_bits} exponent bits, {trailing}, bias {fmt.bias}"
        case IntFormat():
            return f"{fmt.bits} bits, " + ("two's complement" if fmt.signed else "unsigned")
    return f"{fmt.bits} bits, a table of {fmt.code_points} values"


def _parameters(own: dict[str, Format]) -> Table:
    rows: list[tuple[str, list[str]]] = [
        ("bits", [str(f.bits) for f in own.values()]),
        ("exponent bits", [_float(f, "exponent_bits") for f in own.values()]),
        ("trailing significand bits", [_float(f, "precision", -1) for f in own.values()]),
        ("bias", [_float(f, "bias") for f in own.values()]),
        ("largest value", [words.value(f.max_exact) for f in own.values()]),
        ("lowest value", [words.value(f.min_exact) for f in own.values()]),
        ("smallest positive normal", [_normal(f) for f in own.values()]),
        ("smallest positive", [words.power(f.min_positive_exact) for f in own.values()]),
        ("subnormals", [_yes(f, "subnormals") for f in own.values()]),
        ("infinities", ["yes" if f.has_infinity else "none" for f in own.values()]),
        ("NaN", [_nan(f) for f in own.values()]),
        ("negative zero", ["yes" if f.has_negative_zero else "none" for f in own.values()]),
        ("dynamic range, binades", [f"{_range(f):.1f}" for f in own.values()]),
        ("dynamic range, dB", [f"{_range(f) * 20 * math.log10(2):.1f}" for f in own.values()]),
    ]
    return Table(
        "Parameters of each part; dynamic range: the largest over the smallest positive value.",
        ("", *own),
        tuple((name, *cells) for name, cells in rows),
        EXACT,
        right=frozenset(range(1, len(own) + 1)),
    )


def _float(fmt: Format, name: str, add: int = 0) -> str:
    return str(getattr(fmt, name) + add) if isinstance(fmt, FloatFormat) else "–"


def _yes(fmt: Format, name: str) -> str:
    return ("yes" if getattr(fmt, name) else "none") if isinstance(fmt, FloatFormat) else "–"


def _normal(fmt: Format) -> str:
    return words.power(fmt.min_normal_exact) if isinstance(fmt, FloatFormat) else "–"


def _range(fmt: Format) -> float:
    ratio = Fraction(fmt.max_exact) / Fraction(fmt.min_positive_exact)
    return math.log2(ratio.numerator) - math.log2(ratio.denominator)


def _nan(fmt: Format) -> str:
    """The code points of NaN."""
    if not fmt.has_nan:
        return "none"
    if fmt.bits > 16:
        return "as IEEE 754" if fmt.has_infinity else "yes"
    found = [code for code in range(fmt.code_points) if math.isnan(value(code, fmt))]
    if len(found) > 4:
        return f"{len(found)} codes"
    return ", ".join(f"`0x{code:0{-(-fmt.bits // 4)}x}`" for code in found)


def _meaning(fmt: Format) -> Iterator[Block]:
    """What a code point of the element stands for."""
    if isinstance(fmt, FloatFormat):
        t = fmt.precision - 1
        yield Paragraph(
            f"With sign s, exponent field E and trailing significand T of {t} bits, an element of "
            "which no special value is coded stands for"
        )
        items = [f"(−1)^s · 2^(E − {fmt.bias}) · (1 + T / 2^{t}) for E > 0;"]
        if fmt.subnormals:
            items.append(
                f"(−1)^s · 2^(1 − {fmt.bias}) · T / 2^{t} for E = 0 (subnormal, and zero)."
            )
        else:
            items[0] = items[0].replace(" for E > 0;", " for every E.")
        yield Points(tuple(items))
        if not fmt.has_nan and not fmt.has_infinity:
            yield Paragraph(
                "Every code point is a number: the element has neither infinities nor NaN. What is "
                "not finite is said by the block's scale (section 4)."
            )
    elif isinstance(fmt, CodebookFormat):
        yield Paragraph("The value of a code point is its entry in the table below.")


def _values(fmt: Format) -> Iterator[Block]:
    if fmt.code_points > TABLE_CODES:
        if fmt.bits <= 16:
            yield Paragraph(
                f"`{fmt.name}` has {fmt.code_points:,} code points; `vectors/` holds every value."
            )
        return
    digits = -(-fmt.bits // 4)
    cells = [
        (f"`{code:0{digits}x}`", words.value(float(x))) for code, x in enumerate(value_table(fmt))
    ]
    # Few codes fill few columns; the sign's two halves stand side by side.
    columns = 4 if len(cells) <= 64 else 8
    height = -(-len(cells) // columns)
    rows = tuple(
        tuple(
            text
            for column in range(columns)
            for text in (
                cells[column * height + row] if column * height + row < len(cells) else ("", "")
            )
        )
        for row in range(height)
    )
    yield Table(
        f"Every code point of `{fmt.name}` (hexadecimal) and its value.",
        ("code", "value") * columns,
        rows,
        EXACT,
        right=frozenset(range(1, 2 * columns, 2)),
        dense=True,
    )


def scale(p: Proposal) -> Section:
    """Section 3."""
    fmt, quantizer = p.ours.format, p.ours.quantizer
    if not isinstance(fmt, BlockFormat):
        return Section(
            "Scale",
            (Paragraph(f"`{fmt.name}` is a scalar format: it has no scale of its own."),),
        )
    rows = [
        ("type", f"`{fmt.scale.name}` ({words.shape(fmt.scale)}, {fmt.scale.bits} bits)"),
        ("granularity", f"one {words.block(fmt.block)}, along the contraction axis K"),
        ("rule", f"`{quantizer.rule}`: {rule_text(p)}"),
        ("rounding of the scale", "to nearest, ties to even; saturating at the largest value"),
        (
            "range",
            f"{words.power(fmt.scale.min_positive_exact)} to {words.value(fmt.scale.max_exact)}",
        ),
    ]
    if fmt.outer is not None:
        outer = f"`{fmt.outer.scale.name}`, one {words.block(fmt.outer.block)}"
        rows.append(("second level", f"{outer}, multiplies every scale"))
    rows += [(f"inner level {i + 1}", f"`{level.scale.name}`, one {words.block(level.block)}")
             for i, level in enumerate(fmt.inner)]  # fmt: skip
    for name, part in (("zero point", fmt.zero_point), ("offset", fmt.offset)):
        if part is not None:
            rows.append((name, f"`{part.name}`, one per block"))
    rows.append(("bits per element", f"{words.bits(p.ours.bits)}, scales included"))
    blocks: list[Block] = [
        Table(
            "The scales.", ("property", "of this format"), tuple(rows), EXACT, wide=frozenset({1})
        ),
        _padding(fmt),
        Paragraph(
            "Elements are stored densely, the code of the first element in the lowest bits; a "
            "ragged last block is a short block with a scale of its own. Scales lie in an array of "
            "their own, one row per row of the tensor; a 128×4 tile, as block-scaled tensor cores "
            "of today read them, pads it as the table shows."
        ),
    ]
    return Section("Scale", tuple(blocks))


def rule_text(p: Proposal) -> str:
    """The scale rule in words."""
    fmt = p.ours.format
    assert isinstance(fmt, BlockFormat)
    m = words.value(fmt.elements_max)
    texts = {
        "amax": f"the block's largest magnitude over {m}, rounded to the scale's format",
        "rceil": f"the least power of two not below the block's largest magnitude over {m}",
        "floor": "the power of two below the block's largest magnitude, over the element's",
        "ceil": "the power of two above the block's largest magnitude, over the element's",
        "even": "floor, after rounding the largest magnitude to the element's precision",
        "floor2x": "twice the scale of the rule floor",
        "mse": "of the scales around amax the one of least squared error",
        "static": "given, from calibration",
        "fixed": "one given number",
        "minmax": "the block's range over the element's",
        "signed": "the signed value of largest magnitude over the element's lowest value",
        "four_over_six": "amax over 6 or over 4, whichever has less squared error",
    }
    return texts[p.ours.quantizer.rule]


def _padding(fmt: BlockFormat) -> Table:
    rows = []
    for n, k in ((1, 128), (16, 1024), (128, 128), (4096, 4096), (100, 1000)):
        try:
            rows.append(_padded(fmt, n, k))
        except LowprecError:
            continue
    return Table(
        "Bits per element of matrices with N rows of K elements, with the scales of an array of "
        "whole 128×4 tiles.",
        ("N", "K", "element bits", "with scales", "with padded scales"),
        tuple(rows),
        EXACT,
        right=frozenset(range(5)),
    )


def _padded(fmt: BlockFormat, n: int, k: int) -> tuple[str, ...]:
    high, wide = _tile(fmt, k)
    count_n, count_k = -(-n // high), -(-k // wide)
    padded = -(-count_n // 128) * 128 * -(-count_k // 4) * 4
    outer = fmt.per_outer_bits
    inner = sum(lv.scale.bits * n * -(-k // int(lv.block[-1])) for lv in fmt.inner)
    rest = n * k * fmt.element.bits + outer + inner
    bits = [rest + count * fmt.per_block_bits for count in (count_n * count_k, padded)]
    return (f"{n:,}", f"{k:,}", str(fmt.element.bits), *(f"{b / (n * k):.3f}" for b in bits))


def _tile(fmt: BlockFormat, k: int) -> tuple[int, int]:
    """Rows and columns of a block."""
    if isinstance(fmt.block, str):
        if fmt.block == "tensor":
            raise LowprecError("one scale per tensor needs no padding")
        return 1, k
    return (fmt.block[0] if len(fmt.block) == 2 else 1), fmt.block[-1]
