"""Numbers worth asking about: boundaries of a format and hard blocks, as code points of a source
format (float32, or float64 for formats that float32 does not hold).

Which questions are asked decides no answer: those come from `lowprec.exact`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from random import Random

from lowprec.exact import FLOAT32, FLOAT64, TABLE_BITS, code_of, project, value, value_table
from lowprec.spec import CodebookFormat, FloatFormat, Format, IntFormat, Projection
from lowprec.spec.format import floor_log2, pow2

DOWN = Projection(rounding="down", saturation="OvfInf")
Question = tuple[str, int]


def source_of(fmt: Format) -> FloatFormat:
    """The IEEE format that a converter to `fmt` reads: float32 if it holds the values and is
    finer, else float64."""
    largest = max(fmt.max_exact, abs(fmt.min_exact))
    within = largest <= FLOAT32.format.max_exact and fmt.min_positive_exact >= pow2(-149)
    return FLOAT32.format if within and fmt.bits < 32 else FLOAT64.format


def near(x: Fraction, source: FloatFormat) -> list[tuple[str, int]]:
    """The code points of `source` at `x` and on either side: (below, at, above)."""
    low = project(x, source, DOWN)
    code = code_of(low, source)
    if low == x:
        return [("below", step(code, -1, source)), ("at", code), ("above", step(code, 1, source))]
    return [("below", code), ("above", step(code, 1, source))]


def step(code: int, by: int, source: FloatFormat) -> int:
    """The code point of the neighbour of a finite number; of 0 the smallest number of that sign."""
    sign = 1 << (source.bits - 1)
    place = -(code ^ sign) if code & sign else code
    place += by
    assert source.infinity_code is not None
    place = max(min(place, source.infinity_code), -source.infinity_code)
    return place if place >= 0 else sign | -place


LISTED = 1 << 10


def _is_listed(fmt: Format, limit: int) -> bool:
    """Whether all values are looked at: of few, of as many as are asked for, and of codebooks,
    which are in no order."""
    few = fmt.code_points <= max(limit, LISTED) and fmt.bits <= TABLE_BITS
    return few or isinstance(fmt, CodebookFormat)


def finite_pairs(fmt: Format, limit: int) -> list[tuple[Fraction, Fraction]]:
    """Neighbouring finite values, rising; of a format of many values `limit` pairs of them."""
    if _is_listed(fmt, limit):
        values = sorted({Fraction(v) for v in value_table(fmt) if math.isfinite(v)})
        pairs = list(pairwise(values))
        if len(pairs) <= limit:
            return pairs
        # The ends and both sides of zero always, the others evenly.
        middle = next((i for i, (low, _) in enumerate(pairs) if low >= 0), 0)
        always = {0, 1, middle - 1, middle, middle + 1, len(pairs) - 2, len(pairs) - 1}
        even = {len(pairs) * k // limit for k in range(limit)}
        return [pairs[i] for i in sorted((always | even) & set(range(len(pairs))))]
    codes = [c for c in sampled_codes(fmt, limit) if c + 1 < fmt.code_points]
    pairs = [(Fraction(a), Fraction(b)) for c in codes for a, b in [_pair(c, fmt)] if a < b]
    return sorted({*pairs, *((-b, -a) for a, b in pairs if fmt.min_exact < 0)})


def _pair(code: int, fmt: Format) -> tuple[Fraction, Fraction]:
    low, high = value(code, fmt), value(code + 1, fmt)
    zero = Fraction(0)
    finite = math.isfinite(low) and math.isfinite(high)
    return (Fraction(low), Fraction(high)) if finite else (zero, zero)


def sampled_codes(fmt: Format, limit: int) -> list[int]:
    """Code points: all, or the ends of every run of bits and `limit` evenly spread ones."""
    if fmt.code_points <= limit:
        return list(range(fmt.code_points))
    edges = {0, 1, 2, fmt.code_points - 1, fmt.code_points - 2}
    if isinstance(fmt, FloatFormat):
        tops = {fmt.max_code, 1 << (fmt.precision - 1), *(c for c in (fmt.infinity_code,) if c)}
        tops |= {c for c in (fmt.nan_code,) if c is not None}
        edges |= {top + by for top in tops for by in (-1, 0, 1)}
        edges |= {(1 << (fmt.bits - 1)) | edge for edge in edges} if fmt.signed else set()
    # A stride coprime to every power of two visits all trailing bits.
    stride = (fmt.code_points // limit) | 1
    even = {stride * k % fmt.code_points for k in range(limit)}
    return sorted(c for c in edges | even if 0 <= c < fmt.code_points)


def boundaries(fmt: Format, limit: int) -> Iterator[Question]:
    """Where the answer of an encoder changes, or could: (why, code point of the source)."""
    source = source_of(fmt)
    pairs = finite_pairs(fmt, limit)
    for low, high in pairs:
        yield from (("value", code) for where, code in near(low, source) if where == "at")
        middle = (low + high) / 2
        for where, code in near(middle, source):
            yield ("tie" if where == "at" else f"{where}-tie"), code
        yield from (("below-value", code) for where, code in near(high, source)[:1])
    yield from _overflows(fmt, source)
    yield from _specials(fmt, source)


def _overflows(fmt: Format, source: FloatFormat) -> Iterator[Question]:
    """The ends of the range: the last value, half a gap and a whole gap beyond it, and far."""
    for end, inner in _ends(fmt):
        gap = end - inner
        for share in (Fraction(0), Fraction(1, 2), Fraction(1)):
            for where, code in near(end + share * gap, source):
                yield ("overflow" if where == "at" else f"{where}-overflow"), code
        for k in (1, 2, 8, 60):
            far = project(end * pow2(k), source, DOWN)
            yield "far-overflow", code_of(far, source)


def _ends(fmt: Format) -> Iterator[tuple[Fraction, Fraction]]:
    """The largest and the least value, each with its neighbour."""
    for end in {fmt.max_exact, fmt.min_exact} - {Fraction(0)}:
        if _is_listed(fmt, LISTED):
            values = {Fraction(v) for v in value_table(fmt) if math.isfinite(v)} | {Fraction(0)}
            yield end, min(values - {end}, key=lambda v: abs(v - end))
        else:
            code = code_of(end, fmt)
            # One code nearer to zero: of a negative two's complement integer that is one above.
            nearer = 1 if end < 0 and isinstance(fmt, IntFormat) else -1
            yield end, Fraction(value(code + nearer if code else 1, fmt))


def _specials(fmt: Format, source: FloatFormat) -> Iterator[Question]:
    sign = 1 << (source.bits - 1)
    assert source.infinity_code is not None
    assert source.nan_code is not None
    for minus in (0, sign):
        yield "zero", minus
        yield "tiny", minus | 1
        yield "tiny", minus | 1 << (source.precision - 1)
        yield "largest-source", minus | source.max_code
        yield "infinity", minus | source.infinity_code
        if fmt.has_nan:
            yield "nan", minus | source.nan_code
            yield "nan", minus | source.infinity_code + 1


def scattered(fmt: Format, count: int, seed: int) -> Iterator[Question]:
    """`count` numbers all over the range of a format and a little beyond."""
    source, random = source_of(fmt), Random(seed)
    low, high = floor_log2(fmt.min_positive_exact) - 2, floor_log2(fmt.max_exact) + 2
    for _ in range(count):
        magnitude = Fraction((1 << 52) + random.getrandbits(52)) * pow2(
            random.randint(low, high) - 52
        )
        x = -magnitude if random.getrandbits(1) else magnitude
        yield "scattered", code_of(project(x, source, DOWN), source)
