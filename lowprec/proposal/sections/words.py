"""Numbers and names as a proposal prints them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from lowprec.proposal.evidence import Cell
from lowprec.spec import BlockFormat, FloatFormat, Format, IntFormat
from lowprec.spec.block import Block

COMMON = ("float16", "bfloat16", "float32", "float64")
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def count(n: int, what: str) -> str:
    """One model, two models, 12 models."""
    number = COUNTS[n] if n < len(COUNTS) else f"{n:,}"
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{number} {what if n == 1 else plural}"


def listed(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def value(x: float | Fraction) -> str:
    """A format's value: exact where it is short, else to six digits."""
    y = float(x)
    if y != y:
        return "NaN"
    if math.isinf(y):
        return "∞" if y > 0 else "−∞"
    if y == 0:
        return "−0" if math.copysign(1, y) < 0 else "0"
    exact = f"{y:.12g}"
    text = exact if len(exact) <= 9 and float(exact) == y else f"{y:.6g}"
    return text.replace("-", "−") if not text.startswith("-") else "−" + text[1:].replace("-", "−")


def power(x: Fraction) -> str:
    """2^-6 for powers of two, else the value."""
    top, below = abs(x.numerator), x.denominator
    if top & (top - 1) or below & (below - 1):
        return value(x)
    return f"2^{top.bit_length() - below.bit_length()}".replace("-", "−")


def signed(x: float, digits: int = 3) -> str:
    return f"{x:+.{digits}f}".replace("-", "−")


def loss(x: float) -> str:
    """Nats per token: three decimals, more where it is small."""
    return f"{x:.3f}" if abs(x) >= 0.0095 else f"{x:.4f}"


def with_interval(cell: Cell, metric: str, plus: bool = False) -> str:
    """A metric ± half of its 95 % interval."""
    found = cell.candidate.metric(metric)
    if found is None:
        return "–"
    text = loss(found.value)
    if plus and found.value >= 0:
        text = f"+{text}"
    ends = cell.candidate.interval(metric)
    if ends is not None:
        text += f" ± {loss((ends[1] - ends[0]) / 2)}"
    return text.replace("-", "−")


def block(size: Block) -> str:
    """A granularity: per 16 elements, per 128×128 elements, per channel."""
    if isinstance(size, str):
        return f"per {size}"
    return f"per {'×'.join(map(str, size))} elements"


def bits(x: float) -> str:
    return f"{x:g}"


def ratio(x: float) -> str:
    return f"{x:.2f}×"


def si(x: float, unit: str) -> str:
    """Three significant digits with a decimal prefix."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= factor:
            return f"{x / factor:.3g} {prefix}{unit}"
    return f"{x:.3g} {unit}"


def number(x: float) -> str:
    """Three significant digits: 23.4, 1,230, 12.3k."""
    if x >= 1e4:
        return f"{x / 1e3:.3g}k"
    return f"{float(f'{x:.3g}'):,.10g}"


def shape(fmt: Format) -> str:
    """E4M3 and the like, or the name that everybody knows."""
    match fmt:
        case FloatFormat() if fmt.name in COMMON:
            return fmt.name
        case FloatFormat():
            sign = "" if fmt.signed else "U"
            return f"{sign}E{fmt.exponent_bits}M{fmt.precision - 1}"
        case IntFormat():
            return f"{'' if fmt.signed else 'U'}INT{fmt.bits}"
    return f"{fmt.bits}-bit codebook"


def described(fmt: Format | BlockFormat) -> str:
    """The format in one sentence part."""
    if not isinstance(fmt, BlockFormat):
        return f"{shape(fmt)}, {fmt.bits} bits"
    scale = _with_article(shape(fmt.scale))
    text = f"{shape(fmt.element)} elements with {scale} scale {block(fmt.block)}"
    if fmt.outer is not None:
        outer = _with_article(shape(fmt.outer.scale))
        text += f" under {outer} scale {block(fmt.outer.block)}"
    return text


def _with_article(name: str) -> str:
    """an E4M3, a UE5M3, a float32."""
    return f"{'an' if name[0] in 'EI' else 'a'} {name}"
