"""Vectors of dot products: operands, the start, every intermediate sum, the result.

The sums are those of whole steps: `c` plus the first steps' products is the next `c`, since a
datapath's accumulator is all that it keeps. Under promotion they are the promoted sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from random import Random

from lowprec.exact import code_of, dot, value
from lowprec.exact.values import Value
from lowprec.proposal.vectors.model import Head, Level, VectorSet, Words, table
from lowprec.spec import Datapath, Format

# Rows by level, of each pair of input formats.
ROWS = {"smoke": 24, "standard": 256, "full": 4096}
SPECIAL = ("normal", "cancels", "specials", "steep", "ties", "short", "zeros")
LARGEST_STEP = 64


def dot_sets(path: Datapath, level: Level) -> Iterator[VectorSet]:
    """One set per input format with itself, and one of the first with the last."""
    names = [(fmt, fmt) for fmt in path.inputs]
    if len(path.inputs) > 1:
        names.append((path.inputs[0], path.inputs[-1]))
    for a, b in names:
        yield _dot_set(path, (a, b), level)


def unit_of(path: Datapath) -> int:
    """Products between two intermediate sums: whole steps, orders, scales and promotions."""
    unit = len(path.order) or path.step or LARGEST_STEP
    if path.promotion:
        unit = path.promotion.interval
    if path.scaling and unit % path.scaling.block and path.scaling.block % unit:
        unit = math.lcm(unit, path.scaling.block)
    return unit


def _dot_set(path: Datapath, formats: tuple[Format, Format], level: Level) -> VectorSet:
    a, b = formats
    random = Random(7)
    heads: list[Head] = [
        ("a", "in", a.bits, a.name, True),
        ("b", "in", b.bits, b.name, True),
    ]
    if path.scaling:
        scale = path.scaling.formats[0]
        heads += [(f"scale_{x}", "in", scale.bits, scale.name, True) for x in "ab"]
    out = path.output
    heads += [
        ("c", "in", out.bits, out.name, False),
        ("sums", "step", out.bits, out.name, True),
        ("d", "out", out.bits, out.name, False),
    ]
    rows = [
        (why, _row(path, formats, _operands(why, path, formats, random)))
        for why in (SPECIAL[i % len(SPECIAL)] for i in range(ROWS[level]))
    ]
    part = f"{a.name}.{b.name}"
    return table("dot", path.name, part, level, path.to_json(), heads, rows)


Operands = tuple[Words, Words, Words, Words, Value]


def _row(
    path: Datapath, formats: tuple[Format, Format], operands: Operands
) -> tuple[int | Words, ...]:
    a, b, scale_a, scale_b, c = operands
    sums = running_sums(path, formats, operands)
    scales = (scale_a, scale_b) if path.scaling else ()
    codes = tuple(code_of(total, path.output) for total in sums)
    return (a, b, *scales, code_of(c, path.output), codes, codes[-1])


def running_sums(path: Datapath, formats: tuple[Format, Format], operands: Operands) -> list[Value]:
    """The accumulator after every `unit_of` products, the last one the result."""
    a, b, scale_a, scale_b, total = operands
    unit, sums = unit_of(path), []
    x = [value(code, formats[0]) for code in a]
    y = [value(code, formats[1]) for code in b]
    for start in range(0, len(a), unit):
        part, scales = slice(start, start + unit), None
        if path.scaling:
            block, fmt = path.scaling.block, path.scaling.formats[0]
            ends = slice(start // block, -(-min(start + unit, len(a)) // block))
            scales = (
                [value(code, fmt) for code in scale_a[ends]],
                [value(code, fmt) for code in scale_b[ends]],
            )
        total = dot(x[part], y[part], total, path, formats, scales)
        sums.append(total)
    return sums


def _operands(why: str, path: Datapath, formats: tuple[Format, Format], random: Random) -> Operands:
    unit = unit_of(path)
    length = 2 * unit if unit > 64 else max(2 * unit, min(4 * unit, 64))
    if why == "short":
        length = max(length - unit // 2 - 1, 1)
    a = _codes(why, formats[0], length, random)
    b = _codes(why, formats[1], length, random)
    if why == "cancels":
        # Pairs of products of opposite sign, far apart, so that what is left is small.
        half = length // 2
        a = a[:half] + [_negated(code, formats[0]) for code in a[:half]] + a[2 * half :]
        b = b[:half] + b[:half] + b[2 * half :]
    scales: list[Words] = [(), ()]
    if path.scaling:
        count = -(-length // path.scaling.block)
        fmt = path.scaling.formats[0]
        scales = [tuple(_scale(fmt, random) for _ in range(count)) for _ in "ab"]
    c = _start(why, path.output, random)
    return tuple(a), tuple(b), scales[0], scales[1], c


def _codes(why: str, fmt: Format, length: int, random: Random) -> list[int]:
    size = fmt.code_points
    finite = [_finite(fmt, random) for _ in range(length)]
    match why:
        case "zeros":
            return [code if random.random() < 0.1 else 0 for code in finite]
        case "specials":
            return [random.randrange(size) if random.random() < 0.05 else c for c in finite]
        case "steep":
            return [c if random.random() < 0.5 else _small(c, fmt) for c in finite]
        case "ties":
            # A few values over and over: sums that lie between two neighbours.
            few = finite[:3]
            return [few[random.randrange(len(few))] for _ in range(length)]
    return finite


def _finite(fmt: Format, random: Random) -> int:
    while True:
        code = random.getrandbits(fmt.bits)
        if code < fmt.code_points and math.isfinite(value(code, fmt)):
            return code


def _small(code: int, fmt: Format) -> int:
    """The code with the upper half of its magnitude's bits cleared."""
    sign = code & (1 << (fmt.bits - 1))
    return sign | code & ((1 << (fmt.bits // 2)) - 1)


def _negated(code: int, fmt: Format) -> int:
    x = value(code, fmt)
    negative = -Fraction(x) if x else x
    within = fmt.min_exact <= negative <= fmt.max_exact
    return code_of(negative, fmt) if within else code


def _scale(fmt: Format, random: Random) -> int:
    """A scale in the middle of its format's range: positive, and no product overflows for it."""
    middle = code_of(Fraction(1), fmt)
    spread = 1 << max(fmt.bits - 4, 1) if fmt.bits <= 8 else 1 << (fmt.bits - 6)
    return max(middle + random.randrange(-spread, spread), 0)


def _start(why: str, fmt: Format, random: Random) -> Value:
    if why in ("zeros", "cancels"):
        return Fraction(0)
    one = code_of(Fraction(1), fmt)
    spread = 1 << max(fmt.bits - 4, 1)
    code = max(one + random.randrange(-spread // 4, spread // 4), 0)
    x = value(code, fmt)
    return -Fraction(x) if random.getrandbits(1) and fmt.min_exact < 0 and x else x
