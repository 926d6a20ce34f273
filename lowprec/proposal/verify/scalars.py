"""What could be wrong with a decoder or an encoder, each computed with `lowprec.exact`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from lowprec.exact import Value, code_of, encode, value
from lowprec.proposal.verify.compare import Cells
from lowprec.spec import FloatFormat, Format, Projection


@dataclass(frozen=True)
class Hypothesis:
    """A way to be wrong: what people call it, and the answers that it gives to a row's inputs.
    double: two mistakes at once, thought of only where none alone explains the answers."""

    sentence: str
    answer: Callable[[Cells], Cells]
    double: bool = False


ROUNDINGS = {
    "nearest-even": "rounds ties to even",
    "nearest-away": "rounds ties away from zero",
    "toward-zero": "truncates",
    "up": "rounds up",
    "down": "rounds down",
    "to-odd": "rounds to odd",
}
SATURATIONS = {
    "SatFinite": "saturates where it should overflow",
    "SatPropagate": "saturates finite numbers and keeps Inf",
    "OvfInf": "overflows where it should saturate",
}


def projections(projection: Projection) -> Iterator[tuple[str, Projection]]:
    """The other projections, each with its sentence."""
    for saturation, sentence in SATURATIONS.items():
        if saturation != projection.saturation:
            yield sentence, projection.model_copy(update={"saturation": saturation})
    for rounding, sentence in ROUNDINGS.items():
        if rounding != projection.rounding:
            yield sentence, projection.model_copy(update={"rounding": rounding, "bits": None})


def biases(fmt: Format) -> Iterator[tuple[str, Format]]:
    """The format with the exponent bias of its relatives (FNUZ is one above OCP)."""
    if isinstance(fmt, FloatFormat):
        for by in (1, -1):
            other = fmt.bias + by
            sentence = f"uses the exponent bias {other} instead of {fmt.bias} (FNUZ against OCP?)"
            yield sentence, fmt.model_copy(update={"bias": other})


def relatives(fmt: Format) -> Iterator[tuple[str, Format]]:
    """The format with another bias, and as the FNUZ or the OCP format of the same bits."""
    yield from biases(fmt)
    if not isinstance(fmt, FloatFormat) or not fmt.signed or fmt.precision < 2:
        return
    if fmt.nan == "negative-zero":
        nan = "all-ones" if fmt.precision > 3 else "ieee"
        changes = {"bias": fmt.bias - 1, "nan": nan, "infinity": nan == "ieee"}
        yield "takes it for the OCP format of these bits", fmt.model_copy(update=changes)
    else:
        changes = {"bias": fmt.bias + 1, "nan": "negative-zero", "infinity": False}
        yield "takes it for the FNUZ format of these bits", fmt.model_copy(update=changes)


Code = Callable[[Value, int | None], int]
# A mistake: what people call it, and an encoder with it from a format and a projection's.
Mistake = tuple[str, Callable[[Code], Code]]


def encoder(fmt: Format, projection: Projection) -> Code:
    """As the contract has it, with 0 for NaN in a format without one."""

    def code(x: Value, random: int | None) -> int:
        if x != x and not fmt.has_nan:
            return 0
        return encode(x, fmt, projection, None if projection.bits is None else random)

    return code


def encoders(
    fmt: Format, projection: Projection, source: Format, given_nan: int | None
) -> Iterator[Hypothesis]:
    """Every mistake alone, then every two of different kinds.

    given_nan: the code point that was given for NaN.
    """

    def hypothesis(sentence: str, code: Code, double: bool = False) -> Hypothesis:
        def answer(row: Cells) -> Cells:
            random = row["random"][0] if "random" in row else None
            return {"code": (code(value(row["x"][0], source), random),)}

        return Hypothesis(sentence, answer, double)

    plain = encoder(fmt, projection)
    roots = [(sentence, encoder(fmt, other)) for sentence, other in projections(projection)]
    roots += [(sentence, encoder(twin, projection)) for sentence, twin in relatives(fmt)]
    slips = list(_slips(fmt, source, given_nan))
    yield from (hypothesis(*root) for root in roots)
    yield from (hypothesis(sentence, change(plain)) for sentence, change in slips)
    for sentence, other in both(projection):
        yield hypothesis(sentence, encoder(fmt, other), double=True)
    for first, code in roots:
        for second, change in slips:
            yield hypothesis(f"{first}, and {second}", change(code), double=True)
    for (first, inner), (second, outer) in combinations(slips, 2):
        yield hypothesis(f"{first}, and {second}", outer(inner(plain)), double=True)


def both(projection: Projection) -> Iterator[tuple[str, Projection]]:
    """Projections with another rounding and another saturation."""
    for sentence, other in projections(projection):
        if other.rounding == projection.rounding:
            for second, twice in projections(other):
                if twice.rounding != other.rounding:
                    yield f"{second}, and {sentence}", twice


def _slips(fmt: Format, source: Format, given_nan: int | None) -> Iterator[Mistake]:
    """What an encoder does beside rounding and saturating."""
    if isinstance(fmt, FloatFormat) and fmt.subnormals:
        yield "flushes subnormal results to zero", lambda code: _flushed(fmt, code)
    if isinstance(source, FloatFormat):
        yield (
            "flushes subnormal inputs to zero",
            lambda code: lambda x, r: code(_without_subnormals(x, source), r),
        )
    if fmt.has_negative_zero:
        yield "loses the sign of zero", lambda code: _unsigned_zero(fmt, code)
    if given_nan is not None:
        name = ""
        if given_nan < fmt.code_points:
            name = f", which is {float(value(given_nan, fmt))}"
        yield (
            f"encodes NaN as {given_nan:#x}{name}",
            lambda code: lambda x, r: given_nan if x != x else code(x, r),
        )


def _flushed(fmt: FloatFormat, plain: Code) -> Code:
    def code(x: Value, random: int | None) -> int:
        found = plain(x, random)
        y = value(found, fmt)
        return code_of(z, fmt) if (z := _without_subnormals(y, fmt)) is not y else found

    return code


def _unsigned_zero(fmt: Format, plain: Code) -> Code:
    def code(x: Value, random: int | None) -> int:
        found = plain(x, random)
        return code_of(Fraction(0), fmt) if value(found, fmt) == 0 else found

    return code


def _without_subnormals(x: Value, source: FloatFormat) -> Value:
    """`x`, or the zero of its sign if the source has it as a subnormal."""
    if not x or not math.isfinite(x) or abs(Fraction(x)) >= source.min_normal_exact:
        return x
    return -0.0 if x < 0 and source.has_negative_zero else Fraction(0)


def decoders(fmt: Format, wide: Format) -> Iterator[Hypothesis]:
    """wide: the format of the values."""

    def of(sentence: str, twin: Format) -> Hypothesis:
        return Hypothesis(sentence, lambda row: _value(value(row["code"][0], twin)))

    def _value(x: Value) -> Cells:
        return {"value": (code_of(x, wide),)}

    for sentence, twin in relatives(fmt):
        yield of(sentence, twin)
    if not isinstance(fmt, FloatFormat):
        return
    if fmt.subnormals:
        yield Hypothesis(
            "flushes subnormal values to zero",
            lambda row: _value(_without_subnormals(value(row["code"][0], fmt), fmt)),
        )
    yield Hypothesis(
        "loses the sign of zero",
        lambda row: _value(value(row["code"][0], fmt) or Fraction(0)),
    )
    if fmt.has_nan or fmt.infinity:
        finite = fmt.model_copy(update={"nan": "none", "infinity": False})
        nan = fmt.nan_code
        number = "" if nan is None else f": NaN {nan:#x} becomes {float(value(nan, finite))}"
        yield of(f"decodes NaN and Inf as numbers{number}", finite)
    for kind, name in SPECIALS.items():
        possible = fmt.signed and (kind != "ieee" or fmt.precision > 1)
        if kind != fmt.nan and possible:
            changes = {"nan": kind, "infinity": kind == "ieee"}
            yield of(f"has {name} NaN and Inf", fmt.model_copy(update=changes))


SPECIALS = {"ieee": "IEEE 754's", "all-ones": "OCP E4M3's", "negative-zero": "FNUZ's"}
