"""Constants and short descriptions as the references print them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lowprec.spec import BlockFormat, FloatFormat, Format, IntFormat, Quantizer
from lowprec.spec.block import Block

WIDTH = 96


def layout(fmt: Format) -> str:
    """The bits of a float or an integer, highest first."""
    if isinstance(fmt, FloatFormat):
        sign = "sign bit, " if fmt.signed else ""
        fields = f"{sign}{fmt.exponent_bits} exponent bits, {fmt.precision - 1} trailing bits"
        return f"{fields}, bias {fmt.bias}"
    assert isinstance(fmt, IntFormat)
    kind = "two's complement" if fmt.signed else "unsigned"
    factor = f" times 2**{fmt.exponent}" if fmt.exponent else ""
    return f"{fmt.bits} bits, {kind}{factor}"


def summary(quantizer: Quantizer) -> list[str]:
    """Lines for the top of a file."""
    fmt = quantizer.format
    if not isinstance(fmt, BlockFormat):
        return [f"A scalar format of {fmt.bits} bits, from {float(fmt.min)} to {float(fmt.max)}."]
    lines = [
        f"Elements in {fmt.element.name} share a scale in {fmt.scale.name} ({_show(fmt.block)}):",
        f"{fmt.bits_per_element:g} bits per element.",
    ]
    if fmt.outer is not None:
        outer = f"{fmt.outer.scale.name} ({_show(fmt.outer.block)})"
        lines.append(f"An outer scale in {outer} multiplies it.")
    return lines


def _show(block: Block) -> str:
    """A granularity in words."""
    if isinstance(block, str):
        return f"one per {block}"
    return f"one per {'x'.join(map(str, block))} numbers"


def number_c(x: float) -> str:
    """A double constant of C, exact: hexadecimal where decimals are long."""
    if math.isnan(x):
        return "(double)NAN"
    if math.isinf(x):
        return "(double)INFINITY" if x > 0 else "(double)-INFINITY"
    return repr(x) if len(repr(x)) <= 8 and "e" not in repr(x) else x.hex()


def listed_c(values: Sequence[float]) -> str:
    return "{" + _wrapped([number_c(x) if isinstance(x, float) else str(x) for x in values]) + "}"


def listed_py(values: Sequence[float]) -> str:
    return "[" + _wrapped([_plain(x) for x in values]) + "]"


def _plain(x: float) -> str:
    if isinstance(x, int) or math.isfinite(x):
        return repr(x)
    return "math.nan" if x != x else "math.inf" if x > 0 else "-math.inf"


def _wrapped(words: list[str]) -> str:
    """Words with commas, over as many lines as they need."""
    lines, line = [], ""
    for word in words:
        if len(line) + len(word) + 2 > WIDTH - 4:
            lines.append(line.rstrip())
            line = ""
        line += f"{word}, "
    lines.append(line.rstrip().rstrip(","))
    return lines[0] if len(lines) == 1 else "\n    " + "\n    ".join(lines) + "\n"
