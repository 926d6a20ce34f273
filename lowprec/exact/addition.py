"""One step of a datapath: the terms added to the accumulator, as `lowprec.spec.Datapath` says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from lowprec.exact.arith import Arithmetic
from lowprec.exact.round import project
from lowprec.exact.values import Value, finite, negative
from lowprec.spec.datapath import Aligned, Datapath, Tree, TwoStage
from lowprec.spec.format import FloatFormat, Format, IntFormat, floor_log2, pow2
from lowprec.spec.projection import Projection

Factors = tuple[Value, ...]


@dataclass(frozen=True)
class Term:
    """An exact sum of products, given by their factors, and the exponent it is aligned by."""

    products: tuple[Factors, ...]
    exponent: int

    @property
    def value(self) -> Fraction:
        return sum(map(_product, self.products), Fraction(0))

    @property
    def counts(self) -> bool:
        """Whether the exponent does: not if all the products are zero."""
        return any(map(_product, self.products))


def add(
    terms: Sequence[Term], accumulator: Value, path: Datapath, formats: tuple[Format, Format]
) -> Value:
    """The accumulator after a step. formats: of the first two factors of each product."""
    match path.addition:
        case Aligned() as addition:
            return _aligned(terms, accumulator, path, addition)
        case TwoStage() as addition:
            return _two_stage(terms, accumulator, path, addition)
        case Tree() as addition:
            return _tree(terms, accumulator, path, addition, formats)


def exponent_of(x: Value, fmt: Format) -> int:
    """floor(log2 |x|), at least emin; 0 where there is none: of zero, Inf, NaN and integers."""
    if not isinstance(fmt, FloatFormat) or x == 0 or not finite(x):
        return 0
    return max(floor_log2(abs(Fraction(x))), fmt.emin)


def special(products: Sequence[Factors], accumulator: Value) -> Value | None:
    """NaN or Inf where the sum is one whatever its roundings, else None."""
    infinities: set[float] = set() if finite(accumulator) else {float(accumulator)}
    for factors in products:
        if any(x != x for x in factors):
            return math.nan
        if all(map(finite, factors)):
            continue
        if any(x == 0 for x in factors):
            return math.nan
        infinities.add(-math.inf if sum(map(negative, factors)) % 2 else math.inf)
    if len(infinities) > 1 or any(x != x for x in infinities):
        return math.nan
    return infinities.pop() if infinities else None


def _product(factors: Factors) -> Fraction:
    return math.prod((Fraction(x) for x in factors), start=Fraction(1))


def _aligned(terms: Sequence[Term], accumulator: Value, path: Datapath, addition: Aligned) -> Value:
    answer = special([p for term in terms for p in term.products], accumulator)
    if answer is not None:
        return answer
    terms = [*terms, Term(((accumulator,),), exponent_of(accumulator, path.accumulator))]
    if addition.fraction_bits is None:
        return _rounded(sum((t.value for t in terms), Fraction(0)), path)
    exponents = [t.exponent for t in terms if t.counts]
    if not exponents:
        return Fraction(0)
    largest = max(exponents)
    if addition.min_exponent is not None:
        largest = max(largest, addition.min_exponent)
    unit = pow2(largest - addition.fraction_bits)
    return _rounded(_cut_sum(terms, unit, addition.rounding), path)


def _two_stage(
    terms: Sequence[Term], accumulator: Value, path: Datapath, addition: TwoStage
) -> Value:
    answer = special([_overflowed(p) for term in terms for p in term.products], accumulator)
    if answer is not None:
        return answer
    groups = [terms[i :: addition.groups] for i in range(addition.groups)]
    sums = [_group(group, addition.term_bits) for group in groups]
    start = Fraction(accumulator)
    low = path.accumulator.emin if isinstance(path.accumulator, FloatFormat) else 0
    start_exponent = exponent_of(start, path.accumulator) if start else low
    tops = [top for _, top in sums if top is not None]
    largest = max([*tops, start_exponent])
    total = Fraction(0)
    if tops:
        unit = pow2(max(tops) - addition.term_bits)
        total = sum((_cut(value, unit, "down") for value, _ in sums), Fraction(0))
        total = _cut(total, pow2(largest - addition.dot_bits), "down")
    if addition.groups == 1 or start_exponent >= largest - addition.term_bits - 1:
        total += _cut(start, pow2(largest - addition.term_bits), "down")
    if not total:
        return Fraction(0)
    unit = pow2(max(floor_log2(abs(total)), low) - addition.sum_bits)
    return _rounded(_cut(total, unit, "down"), path)


def _overflowed(factors: Factors) -> Factors:
    """CDNA3's products live in float32's range: one beyond it is Inf, of the right sign."""
    if not all(map(finite, factors)) or abs(_product(factors)) < pow2(128):
        return factors
    return (math.inf if _product(factors) > 0 else -math.inf,)


def _group(terms: Sequence[Term], bits: int) -> tuple[Fraction, int | None]:
    """Products cut toward zero at `bits` below their largest exponent and added; with that."""
    exponents = [t.exponent for t in terms if t.counts]
    if not exponents:
        return Fraction(0), None
    return _cut_sum(terms, pow2(max(exponents) - bits), "toward-zero"), max(exponents)


def _tree(
    terms: Sequence[Term],
    accumulator: Value,
    path: Datapath,
    addition: Tree,
    formats: tuple[Format, Format],
) -> Value:
    fmt = path.accumulator
    if not isinstance(fmt, FloatFormat):
        raise TypeError("a tree adds floats")
    arithmetic = Arithmetic(fmt)

    def flushed(x: Value, of: Format, signed: bool = True) -> Value:
        if not addition.flush or not isinstance(of, FloatFormat) or not finite(x):
            return x
        if abs(Fraction(x)) >= of.min_normal_exact:
            return x
        return -0.0 if signed and negative(x) else Fraction(0)

    def multiply(a: Value, b: Value) -> Value:
        a, b = flushed(a, formats[0], signed=False), flushed(b, formats[1], signed=False)
        return flushed(arithmetic.multiply(a, b), fmt)

    sums = [multiply(*factors) for term in terms for factors in term.products]
    while len(sums) > 1:
        pairs = [sums[i : i + 2] for i in range(0, len(sums), 2)]
        sums = [flushed(arithmetic.add(*p), fmt) if len(p) == 2 else p[0] for p in pairs]
    return flushed(arithmetic.add(flushed(accumulator, fmt, signed=False), sums[0]), fmt)


def _cut(x: Fraction, unit: Fraction, rounding: str) -> Fraction:
    """`x` as a multiple of `unit`."""
    steps = x / unit
    match rounding:
        case "toward-zero":
            return math.trunc(steps) * unit
        case "down":
            return math.floor(steps) * unit
    return round(steps) * unit


def _cut_sum(terms: Sequence[Term], unit: Fraction, rounding: str) -> Fraction:
    return sum((_cut(t.value, unit, rounding) for t in terms), Fraction(0))


def _rounded(total: Fraction, path: Datapath) -> Value:
    """A step's sum as the accumulator keeps it."""
    if isinstance(path.accumulator, IntFormat):
        return _integer(total, path.accumulator, path)
    fmt = path.result or path.accumulator
    # A twin with one exponent bit more and the same values below stands for "unbounded".
    wide = fmt.model_copy(update={"bits": fmt.bits + 1})
    y = project(total, wide, Projection(rounding=path.rounding))
    if abs(Fraction(y)) > fmt.max_exact:
        return math.inf if y > 0 else -math.inf
    return y if y or path.signed_zero else Fraction(0)


def _integer(total: Fraction, fmt: IntFormat, path: Datapath) -> Value:
    if path.overflow == "saturate":
        return min(max(total, fmt.min_exact), fmt.max_exact)
    span = (1 << fmt.bits) * pow2(fmt.exponent)
    return (total - fmt.min_exact) % span + fmt.min_exact
