"""What a dot-product unit is built of, counted from its datapath alone: no synthesis.

The count follows the structure of the units that `lowprec.rtl` generates, part by part.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from lowprec.perf.pieces import SIGNED, Count, Number, Pieces, array, float_add, number, shifter
from lowprec.spec import (
    Aligned,
    BlockFormat,
    Datapath,
    FloatFormat,
    Format,
    IntFormat,
    Tree,
    TwoStage,
)
from lowprec.spec.default_datapath import has_two_levels, less_zero


def pieces(
    path: Datapath,
    a: Format,
    b: Format,
    lanes: int,
    scale: Format | None,
    shared: BlockFormat | None = None,
) -> Mapping[str, Pieces]:
    """Pieces of the unit by component, as `lowprec.rtl.Unit` has the arguments."""
    count, exact = Count(), isinstance(path.addition, Aligned) and not path.addition.fraction_bits
    if exact and isinstance(a, IntFormat) and isinstance(b, IntFormat):
        a, b = (_less_zero(count, x, lanes, shared) for x in (a, b))
        _integers(count, path, a, b, lanes)
        return count.components
    if shared is None:
        x, y = count.unpack(a, lanes, path.inputs[0]), count.unpack(b, lanes, path.inputs[0])
    else:
        x = y = _elements(count, shared, lanes, path.inputs[0])
    products = count.multiply(x, y, lanes)
    match path.addition:
        case Tree():
            _tree(count, path, products, lanes)
        case TwoStage() as addition:
            _two_stage(count, path, addition, products, lanes)
        case Aligned():
            _aligned(count, path, products, lanes, scale, shared)
    if path.promotion is not None:
        _promotion(count, path, scale, shared)
    return count.components


# ---- block formats whose elements share more than a scale ----


def _less_zero(count: Count, fmt: IntFormat, lanes: int, shared: BlockFormat | None) -> IntFormat:
    if shared is None or shared.zero_point is None:
        return fmt
    found = less_zero(fmt, shared.zero_point)
    count.put("unpack", lanes, add=found.bits)
    return found


def _elements(count: Count, fmt: BlockFormat, lanes: int, of: Format) -> Number:
    """Of both operands: what an element is before its scale."""
    element = fmt.element
    if isinstance(element, IntFormat):
        element = _less_zero(count, element, 2 * lanes, fmt)
    found = count.unpack(element, 2 * lanes, of)
    if fmt.outlier is not None:
        found = found.either(count.unpack(fmt.outlier.element, 2 * lanes, of))
        count.put("unpack", 2 * lanes, mask=3 * (found.bits + found.e_bits))
    if fmt.offset is not None:
        count.put("unpack", 2 * lanes, mask=element.bits)
    for level in fmt.inner:
        by = number(level.scale)
        found = Number(found.bits, found.fraction, found.low + by.low, found.span + by.span)
        count.put("align", 2 * lanes, add=found.e_bits)
    return found


def _scales(
    count: Count, scale: Format, times: int, of: Format, shared: BlockFormat | None
) -> Number:
    """The scale of each run: of two levels their product, normalised."""
    s = count.unpack(scale, times, of)
    if shared is None or shared.outer is None or not has_two_levels(shared):
        return s
    both = count.multiply(s, count.unpack(shared.outer.scale, times, of), times)
    for _ in range(times):
        count.normalise(both.bits, both.e_bits, both.bits, "add")
    return Number(both.bits, both.fraction, both.low, both.span + both.bits)


def _integers(count: Count, path: Datapath, a: IntFormat, b: IntFormat, lanes: int) -> None:
    signs = SIGNED if a.signed or b.signed else 1.0
    count.put("multiply", lanes, product=signs * array(a.bits, b.bits)["product"])
    fmt = path.accumulator
    if isinstance(fmt, IntFormat):
        count.add(lanes, a.bits + b.bits)
        count.put("accumulate", add=fmt.bits)
        if path.overflow == "saturate":
            count.put("accumulate", compare=2 * fmt.bits, mux=2 * fmt.bits)
        return
    assert isinstance(fmt, FloatFormat)
    _exact_float(count, path, fmt, lanes, a.bits + b.bits, a.exponent + b.exponent)


def _aligned(
    count: Count,
    path: Datapath,
    products: Number,
    lanes: int,
    scale: Format | None,
    shared: BlockFormat | None,
) -> None:
    terms, n = products, lanes
    scaling = path.scaling
    inside = scaling is not None and scaling.position == "inside"
    exact = isinstance(path.addition, Aligned) and path.addition.fraction_bits is None
    if inside and scaling is not None and scale is not None:
        run = scaling.group or gcd(scaling.block, path.step or lanes)
        groups = -(-lanes // run)
        s = _scales(count, scale, 2 * groups, scaling.formats[0], shared)
        both = count.multiply(s, s, groups)
        if scaling.group or exact:
            terms, n = _groups(count, products, both, lanes, groups), groups
        else:
            terms = count.multiply(products, both, lanes)
    count.put("add", mask=3 * (n + 1))
    accumulator = path.accumulator
    if exact:
        width = count.align_fixed(terms, n)
        if isinstance(accumulator, FloatFormat):
            _exact_float(count, path, accumulator, n, width, terms.low - terms.fraction)
        else:
            count.add(n, width)
            count.put("accumulate", add=accumulator.bits)
        return
    assert isinstance(accumulator, FloatFormat)
    assert isinstance(path.addition, Aligned)
    assert path.addition.fraction_bits is not None
    f, how = path.addition.fraction_bits, path.addition.rounding
    c = count.unpack(accumulator, 1)
    count.align_max(n, terms.e_bits)
    e_bits = _common_bits(terms, c)
    count.put("align", add=2 * e_bits, compare=e_bits)
    width = max(count.align(terms, f, how, e_bits, n), count.align(c, f, how, e_bits, 1))
    total_width = count.add(n + 1, width)
    _finish(count, path, total_width, e_bits)


def _groups(count: Count, products: Number, both: Number, lanes: int, groups: int) -> Number:
    """Exact sums of groups of products, times their scales."""
    width = count.align_fixed(products, lanes)
    run = -(-lanes // groups)
    total = width
    for _ in range(groups):
        total = count.add(run, width)
    count.put("scale", groups, negate=total, mask=total)
    if both.bits > 1:
        count.put("scale", groups, array(total, both.bits))
    bits = total + (both.bits if both.bits > 1 else 0)
    unit = products.low - products.fraction
    return Number(bits, both.fraction - unit, both.low, both.span)


def _common_bits(terms: Number, c: Number) -> int:
    """Bits of the largest exponent of terms and accumulator."""
    low = min(terms.low, c.low)
    return (max(terms.low + terms.span, c.low + c.span) - low).bit_length()


def _exact_float(
    count: Count, path: Datapath, fmt: FloatFormat, n: int, width: int, unit: int
) -> None:
    """An exact sum of n terms of `width` bits in units of 2^unit, and a float accumulator: in one
    fixed-point sum if that is at most twice as wide as the terms, else normalised before."""
    c = count.unpack(fmt, 1)
    last = c.low - c.fraction
    lowest = min(unit, last)
    highest = max(unit + width, last + c.bits + c.span)
    if highest - lowest <= 2 * width:
        start = count.align_fixed(c, 1) + last - lowest
        _finish(count, path, count.add(n + 1, max(start, width + unit - lowest)), 1)
        return
    total = count.add(n, width)
    stages = (total - 1).bit_length()
    count.put("accumulate", negate=total)
    count.put("add", mux=total * stages, add=stages)
    spread = Number(total, 0, 0, total - 1)
    e_bits = max(c.e_bits, spread.e_bits) + 1
    _finish(count, path, count.add_pair(c, spread, (path.result or fmt).precision), e_bits)


def _finish(count: Count, path: Datapath, width: int, e_bits: int) -> None:
    """A sum to the code that the accumulator keeps."""
    fmt = path.result or path.accumulator
    assert isinstance(fmt, FloatFormat)
    count.normalise(width, e_bits, fmt.precision, "accumulate")
    count.round(fmt, path.rounding, e_bits)


def _two_stage(
    count: Count, path: Datapath, addition: TwoStage, products: Number, lanes: int
) -> None:
    accumulator = path.accumulator
    assert isinstance(accumulator, FloatFormat)
    c = count.unpack(accumulator, 1)
    e_bits = _common_bits(products, c)
    groups = addition.groups
    width = count.align(products, addition.term_bits, "toward-zero", products.e_bits, lanes)
    for _ in range(groups):
        count.align_max(-(-lanes // groups), products.e_bits)
        total = count.add(-(-lanes // groups), width)
    if groups == 2:
        count.align_max(2, products.e_bits)
        count.put("align", 2, shifter(total, total, products.e_bits), add=products.e_bits)
        total = count.add(2, total)
    more = addition.dot_bits - addition.term_bits
    count.put("align", add=2 * e_bits, compare=e_bits)
    count.put("align", 1, shifter(total, total + more, e_bits), add=e_bits)
    kept = count.align(c, addition.term_bits, "down", e_bits, 1)
    total = count.add(2, max(total, kept) + more)
    count.put("accumulate", negate=total, compare=total * 3, mask=total)
    count.put("add", mask=3 * (lanes + 1))
    _finish(count, path, total, e_bits)


def _tree(count: Count, path: Datapath, products: Number, lanes: int) -> None:
    fmt = path.accumulator
    assert isinstance(fmt, FloatFormat)
    for _ in range(lanes):
        count.normalise(products.bits, products.e_bits + 1, fmt.precision, "accumulate")
        count.round(fmt, "nearest-even", products.e_bits + 1)
        float_add(count, fmt)


def _promotion(
    count: Count, path: Datapath, scale: Format | None, shared: BlockFormat | None
) -> None:
    fmt = path.output
    assert isinstance(fmt, FloatFormat)
    if path.scaling is None or path.scaling.position == "inside" or scale is None:
        float_add(count, fmt)
        return
    s = _scales(count, scale, 2, path.scaling.formats[0], shared)
    both = count.multiply(s, s, 1)
    count.normalise(both.bits, both.e_bits + 1, fmt.precision, "accumulate")
    count.round(fmt, "nearest-even", both.e_bits + 1)
    x = count.unpack(fmt, 2)
    product = count.multiply(x, x, 1)
    width = count.add_pair(x, product, fmt.precision)
    count.normalise(width, product.e_bits + 1, fmt.precision, "accumulate")
    count.round(fmt, "nearest-even", product.e_bits + 1)
