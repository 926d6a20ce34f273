"""The formats of a search space, built from their parameters."""

from __future__ import annotations

from itertools import product

from lowprec.errors import LowprecError
from lowprec.spec.block import BlockFormat, Level
from lowprec.spec.catalogue import load_format
from lowprec.spec.format import FloatFormat, Format, IntFormat
from lowprec.spec.load import build
from lowprec.spec.quantizer import Quantizer
from lowprec.studies.plan import FormatSpace


def enumerate_formats(space: FormatSpace) -> list[Quantizer]:
    """Every quantizer of the space of at most its bits per element; LowprecError where none is.

    One exponent bit gives evenly spaced values, those of the integer with one more significand bit:
    where the space has that one too, it stands for both.
    """
    found = []
    elements = product(space.exponent, space.significand, space.bias or (None,))
    for (e, m, bias), block, scale in product(elements, space.block, space.scales):
        if not element_fits(e, m, bias):
            continue
        if e == 1 and 0 in space.exponent and m + 1 in space.significand:
            continue
        quantizer = _quantizer(_element(e, m, bias), block, scale)
        if bits_of(quantizer) <= space.bits:
            found.append(quantizer)
    if not found:
        raise LowprecError(f"formats: none of the space has {space.bits:g} bits or less")
    return found


def bits_of(quantizer: Quantizer) -> float:
    """Bits per element, scales included."""
    fmt = quantizer.format
    return fmt.bits_per_element if isinstance(fmt, BlockFormat) else float(fmt.bits)


def element_fits(e: int, m: int, bias: int | None) -> bool:
    """Whether there is such an element: two bits at least, and an integer has no bias."""
    return e + m >= 1 and not (e == 0 and (bias is not None or m < 1))


def _element(e: int, m: int, bias: int | None) -> Format:
    if e == 0:
        return build(IntFormat, {"name": f"int{m + 1}_sym", "kind": "int", "bits": m + 1,
                                 "signed": True, "symmetric": True}, "formats")  # fmt: skip
    usual = (1 << (e - 1)) - 1
    bias = usual if bias is None else bias
    name = f"float{1 + e + m}_e{e}m{m}" + (f"_b{bias}" if bias != usual else "")
    data = {"name": name, "kind": "float", "bits": 1 + e + m, "precision": m + 1, "bias": bias}
    return build(FloatFormat, data, f"formats: {name}")


def _quantizer(element: Format, block: int, scale: str) -> Quantizer:
    names, slash, rule = scale.partition("/")
    inner, plus, outer = names.partition("+")
    if not slash:
        raise LowprecError(f"formats: scales: {scale!r}: expected 'scale format/rule'")
    data = {
        "name": f"{element.name}-{block}-{names.replace('+', '-')}",
        "element": element,
        "scale": load_format(inner, "formats: scales"),
        "block": (block,),
    }
    if plus:
        scale_of = {"scale": load_format(outer, "formats: scales"), "block": "tensor"}
        data["outer"] = build(Level, scale_of, "formats: scales")
    fmt = build(BlockFormat, data, "formats")
    return build(Quantizer, {"format": fmt, "rule": rule}, f"formats: scales: {scale}")
