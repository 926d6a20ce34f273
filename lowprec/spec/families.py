"""Families: scalar formats that a name alone defines, so that they need no file."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from math import ldexp, nan
from typing import NamedTuple

from lowprec.errors import LowprecError
from lowprec.spec.format import CodebookFormat, FloatFormat, Format, IntFormat
from lowprec.spec.load import build


class Family(NamedTuple):
    """`spelled` and `line` are for people, `make(match)` raises a LowprecError without a place."""

    pattern: re.Pattern[str]
    make: Callable[[re.Match[str]], Format]
    spelled: str
    line: str


def resolve(name: str, where: str = "") -> Format | None:
    """The format of this name if it has a family's form, else None.

    LowprecError where the form is a family's but its numbers are out of range.
    """
    try:
        return _made(name)
    except LowprecError as error:
        raise LowprecError(f"{where or name}: {error}") from None


def family_names() -> tuple[tuple[str, str], ...]:
    """Each family as (how its names are spelled, one line on what it is)."""
    return tuple((family.spelled, family.line) for family in _FAMILIES)


@cache
def _made(name: str) -> Format | None:
    for family in _FAMILIES:
        if match := family.pattern.fullmatch(name):
            return family.make(match)
    return None


def _p3109(match: re.Match[str]) -> Format:
    """IEEE P3109, interim report 4.0 (2026): one NaN, no -0; with infinities or finite."""
    k, p, signed = int(match["k"]), int(match["p"]), match["sign"] == "s"
    if not (3 <= k <= 16 and 1 <= p <= k - signed):
        raise LowprecError(
            f"P3109 has K = 3 to 16 and P = 1 to K-1 (signed) or K (unsigned); got K = {k}, P = {p}"
        )
    parameters = {
        "name": match[0],
        "kind": "float",
        "bits": k,
        "precision": p,
        "bias": 1 << (k - p - 1 if signed else k - p),
        "signed": signed,
        "infinity": match["domain"] == "e",
        "nan": "negative-zero" if signed else "all-ones",
    }
    return build(FloatFormat, parameters, match[0])


def _integer(match: re.Match[str]) -> Format:
    """Two's complement and unsigned integers; `_sym` leaves out the most negative code."""
    bits, signed = int(match["bits"]), not match["unsigned"]
    least = 2 if signed else 1
    if not least <= bits <= 16:
        raise LowprecError(f"expected N = {least} to 16 bits, got {bits}")
    if match["sym"] and not signed:
        raise LowprecError("an unsigned integer has no symmetric form")
    parameters = {
        "name": match[0],
        "kind": "int",
        "bits": bits,
        "signed": signed,
        "symmetric": bool(match["sym"]),
    }
    return build(IntFormat, parameters, match[0])


# Bits, precision and file of the Tesla formats whose exponent bias is a 6-bit register.
_CFLOATS = {"cfloat8_1_4_3": (8, 4), "cfloat8_1_5_2": (8, 3), "cfloat16_shp": (16, 11)}


def _cfloat(match: re.Match[str]) -> Format:
    """A Tesla Dojo CFloat of bias B: all codes finite (the file without `_bB` says more)."""
    bits, precision = _CFLOATS[match["cfloat"]]
    bias = int(match["bias"])
    if bias > 63:
        raise LowprecError(f"expected a bias B = 0 to 63, got {bias}")
    parameters = {
        "name": match[0],
        "kind": "float",
        "bits": bits,
        "precision": precision,
        "bias": bias,
    }
    return build(FloatFormat, parameters, match[0])


def _posit(match: re.Match[str]) -> Format:
    """Posits of N bits with ES exponent bits: the values of the Posit Standard (2022), which has
    ES = 2, and of the earlier posits, which have ES = 0, 1, 2, 3 for 8, 16, 32, 64 bits.

    NaR is NaN, 0 has no sign. A projection rounds to the nearest value, as to any codebook. The
    standard rounds the bit string instead: it never rounds a number to 0 nor beyond the largest
    posit, and where exponent bits are cut off, it rounds at the geometric mean of the neighbours.
    """
    bits, es = int(match["bits"]), int(match["es"])
    if not (3 <= bits <= 16 and es <= 3):
        raise LowprecError(f"posits have N = 3 to 16 and ES = 0 to 3, got N = {bits}, ES = {es}")
    return _twos_complement(match[0], bits, lambda code: _posit_value(code, bits, es))


def _posit_value(code: int, bits: int, es: int) -> float:
    """The posit of a positive code: regime run, its stop bit, exponent, fraction."""
    tail = f"{code:0{bits - 1}b}"
    run = len(tail) - len(tail.lstrip(tail[0]))
    regime = run - 1 if tail[0] == "1" else -run
    rest = tail[run + 1 :]
    # Bits cut off at the end of the word are zeros.
    exponent = int(rest[:es].ljust(es, "0") or "0", 2)
    return _scaled(rest[es:], (regime << es) + exponent)


def _takum(match: re.Match[str]) -> Format:
    """Linear takums (L. Hunhold, arXiv 2404.18603, definition 8; the logarithmic ones, base
    sqrt(e), have irrational values). NaR is NaN. Rounding differs from the takum's own as in
    `_posit`."""
    bits = int(match["bits"])
    if bits not in (8, 16):
        raise LowprecError(f"expected takum8 or takum16, got takum{bits}")
    return _twos_complement(match[0], bits, lambda code: _takum_value(code, bits))


def _takum_value(code: int, bits: int) -> float:
    """The linear takum of a positive code: direction, 3 regime bits, characteristic, fraction.

    Bits that a short word lacks are zeros.
    """
    tail = f"{code:0{bits - 1}b}"
    direction, regime = tail[0] == "1", int(tail[1:4], 2)
    width = regime if direction else 7 - regime
    field = int(tail[4 : 4 + width].ljust(width, "0") or "0", 2)
    characteristic = (1 << width) - 1 + field if direction else field + 1 - (2 << width)
    return _scaled(tail[4 + width :], characteristic)


def _scaled(fraction: str, exponent: int) -> float:
    """1.fraction * 2^exponent, exact: every family here stays within float64."""
    return ldexp(int("1" + fraction, 2), exponent - len(fraction))


def _twos_complement(name: str, bits: int, positive: Callable[[int], float]) -> Format:
    """A codebook in which negating the code negates the value, 0 is 0 and 10...0 is NaN."""
    above = [positive(code) for code in range(1, 1 << (bits - 1))]
    values = (0.0, *above, nan, *(-value for value in reversed(above)))
    parameters = {"name": name, "kind": "codebook", "bits": bits, "values": values}
    return build(CodebookFormat, parameters, name)


_N = r"(?P<bits>[1-9]\d?)"
_FAMILIES = (
    Family(
        re.compile(r"binary(?P<k>[1-9]\d?)p(?P<p>[1-9]\d?)(?P<sign>[su])(?P<domain>[ef])"),
        _p3109,
        "binary{K}p{P}{s|u}{e|f}",
        "IEEE P3109: K bits, precision P, signed or unsigned, extended or finite; K = 3 to 16",
    ),
    Family(
        re.compile(rf"(?P<unsigned>u?)int{_N}(?P<sym>_sym)?"),
        _integer,
        "int{N}, uint{N}, int{N}_sym",
        "integers of up to 16 bits; _sym leaves out the most negative",
    ),
    Family(
        re.compile(rf"(?P<cfloat>{'|'.join(_CFLOATS)})_b(?P<bias>0|[1-9]\d?)"),
        _cfloat,
        "{cfloat8_1_4_3|cfloat8_1_5_2|cfloat16_shp}_b{B}",
        "Tesla Dojo configurable floats of exponent bias B = 0 to 63",
    ),
    Family(
        re.compile(rf"posit{_N}_(?P<es>\d)"),
        _posit,
        "posit{N}_{ES}",
        "posits of N = 3 to 16 bits with ES = 0 to 3 exponent bits; the 2022 standard has ES = 2",
    ),
    Family(
        re.compile(rf"takum{_N}"),
        _takum,
        "takum8, takum16",
        "linear takums",
    ),
)
