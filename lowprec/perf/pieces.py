"""What a dot-product unit is built of, counted from its datapath alone: no synthesis.

The count follows the structure of the units that `lowprec.rtl` generates; what a piece costs is
fitted once (`datapath_cost.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from lowprec.errors import LowprecError
from lowprec.spec import Aligned, Datapath, FloatFormat, Format, IntFormat, Tree, TwoStage
from lowprec.spec.format import CodebookFormat

# Kinds of pieces, each counted in bits; of a product in full adders.
PIECES = ("product", "add", "negate", "mux", "mask", "compare")
Pieces = Mapping[str, float]


@dataclass(frozen=True)
class Number:
    """A number inside the unit: t * 2^(e + low - fraction), t of `bits`, e up to `span`."""

    bits: int
    fraction: int
    low: int
    span: int

    @property
    def e_bits(self) -> int:
        return max(1, self.span.bit_length())

    def __mul__(self, other: Number) -> Number:
        one = min(self.bits, other.bits) == 1
        return Number(
            max(self.bits, other.bits) if one else self.bits + other.bits,
            self.fraction + other.fraction,
            self.low + other.low,
            self.span + other.span,
        )


def number(fmt: Format) -> Number:
    """Of a code point of `fmt`; of a codebook, as the float that holds its values."""
    match fmt:
        case FloatFormat():
            span = fmt.emax - fmt.emin
            return Number(fmt.precision, fmt.precision - 1, fmt.emin, span)
        case IntFormat():
            return Number(fmt.bits, -fmt.exponent, 0, 0)
    raise LowprecError(f"{fmt.name}: no structural cost of codebooks; ask for synthesis")


class Count:
    """Pieces of a unit by component."""

    def __init__(self) -> None:
        self.components: dict[str, dict[str, float]] = {}

    def put(
        self, component: str, times: int = 1, more: Pieces | None = None, **pieces: float
    ) -> None:
        found = self.components.setdefault(component, dict.fromkeys(PIECES, 0.0))
        for piece, n in {**(more or {}), **pieces}.items():
            found[piece] += times * n

    # ---- parts, named as those of lowprec.rtl ----

    def unpack(self, fmt: Format, times: int) -> Number:
        found = number(fmt)
        self.put("unpack", times, mask=2 * fmt.bits)
        return found

    def multiply(self, x: Number, y: Number, times: int) -> Number:
        found = x * y
        if min(x.bits, y.bits) > 1:
            self.put("multiply", times, array(x.bits, y.bits))
            self.put("multiply", times, mask=6)
        else:
            self.put("multiply", times, mask=found.bits + 6)
        self.put("align", times, add=found.e_bits if min(x.span, y.span) else 0)
        return found

    def align(self, x: Number, fraction_bits: int, rounding: str, e_bits: int, times: int) -> int:
        """Of terms to a multiple of 2^(E - F); gives their width."""
        up, down = max(fraction_bits - x.fraction, 0), max(x.fraction - fraction_bits, 0)
        size = x.bits + up - down + 1
        wide = x.bits + up + 1
        double = rounding != "toward-zero"
        self.put(
            "align", times, shifter(x.bits, wide * (1 + double), e_bits), add=e_bits, negate=size
        )
        if double:
            self.put("align", times, add=size, mask=wide)
        return size + 1

    def align_fixed(self, x: Number, times: int) -> int:
        width = x.bits + x.span
        self.put("align", times, shifter(x.bits, width, x.e_bits), negate=width)
        return width + 1

    def align_max(self, n: int, bits: int) -> None:
        self.put("align", compare=(n - 1) * bits, mask=n * bits)

    def add(self, n: int, width: int) -> int:
        total = width
        while n > 1:
            self.put("add", add=(n // 2) * (total + 1))
            n, total = -(-n // 2), total + 1
        return total

    def add_pair(self, x: Number, y: Number, precision: int) -> int:
        window = max(x.bits, y.bits, precision) + 3
        e_bits = max(x.e_bits, y.e_bits) + 1
        self.put("add", add=window + 5 * e_bits, negate=2 * window, mux=2 * window + 2 * e_bits)
        self.put("add", 1, shifter(window, 2 * window, e_bits))
        self.put("add", mask=2 * window)
        return window + 2

    def normalise(self, width: int, e_bits: int, precision: int, component: str) -> None:
        wide = max(width, precision + 2)
        stages = (wide - 1).bit_length()
        self.put(component, negate=width, mux=wide * stages)
        self.put(component, add=3 * e_bits, compare=e_bits, mask=wide)

    def round(self, fmt: FloatFormat, rounding: str, e_bits: int) -> None:
        up = fmt.precision if rounding != "toward-zero" else 0
        self.put("accumulate", add=e_bits + up, compare=fmt.bits, mask=3 * fmt.bits)


def array(x: int, y: int) -> dict[str, float]:
    """An array multiplier: x (y - 2) full adders, x half ones, and an AND per pair of bits."""
    x, y = min(x, y), max(x, y)
    return {"product": x * (y - 2) + x / 2, "mask": x * y}


def shifter(bits: int, width: int, stages: int) -> dict[str, float]:
    """A right shift of `bits` bits within `width`. A stage chooses between two bits only where
    both the shifted and the plain number reach; elsewhere it masks one."""
    mux = mask = 0
    for i in range(stages):
        by, spans = 1 << i, min(width, bits + (1 << i) - 1)
        if by >= width:
            return {"mux": mux, "mask": mask + width}
        both = max(0, spans - by)
        mux, mask = mux + both, mask + min(width, spans + by) - both
    return {"mux": mux, "mask": mask}


def pieces(
    path: Datapath, a: Format, b: Format, lanes: int, scale: Format | None
) -> Mapping[str, Pieces]:
    """Pieces of the unit by component, as `lowprec.rtl.dot_unit` takes the arguments.

    LowprecError for formats without a formula.
    """
    for fmt in (a, b):
        if isinstance(fmt, CodebookFormat):
            number(fmt)
    count = Count()
    if isinstance(a, IntFormat) and isinstance(b, IntFormat):
        _integers(count, path, a, b, lanes)
        return count.components
    x, y = count.unpack(a, lanes), count.unpack(b, lanes)
    products = count.multiply(x, y, lanes)
    match path.addition:
        case Tree():
            _tree(count, path, products, lanes)
        case TwoStage() as addition:
            _two_stage(count, path, addition, products, lanes)
        case Aligned():
            _aligned(count, path, products, lanes, scale)
    if path.promotion is not None:
        _promotion(count, path, scale)
    return count.components


def _integers(count: Count, path: Datapath, a: IntFormat, b: IntFormat, lanes: int) -> None:
    # Signs cost about another AND per pair of bits.
    count.put("multiply", lanes, array(a.bits, b.bits), mask=2 * a.bits * b.bits)
    width = count.add(lanes, a.bits + b.bits)
    fmt = path.accumulator
    if isinstance(fmt, IntFormat):
        count.put("accumulate", add=fmt.bits)
        if path.overflow == "saturate":
            count.put("accumulate", compare=2 * fmt.bits, mux=2 * fmt.bits)
        return
    assert isinstance(fmt, FloatFormat)
    _exact_float(count, path, fmt, Number(width, 0, 0, 0))


def _aligned(
    count: Count, path: Datapath, products: Number, lanes: int, scale: Format | None
) -> None:
    terms, n = products, lanes
    scaling = path.scaling
    inside = scaling is not None and scaling.position == "inside"
    exact = isinstance(path.addition, Aligned) and path.addition.fraction_bits is None
    if inside and scaling is not None and scale is not None:
        run = scaling.group or gcd(scaling.block, path.step or lanes)
        groups = -(-lanes // run)
        s = count.unpack(scale, 2 * groups)
        both = count.multiply(s, s, groups)
        if scaling.group or exact:
            terms, n = _groups(count, products, both, lanes, groups), groups
        else:
            terms = count.multiply(products, both, lanes)
    count.put("add", mask=3 * (n + 1))
    accumulator = path.accumulator
    if exact:
        width = count.align_fixed(terms, n)
        total = Number(count.add(n, width), 0, 0, 0)
        if isinstance(accumulator, FloatFormat):
            _exact_float(count, path, accumulator, total)
        else:
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


def _exact_float(count: Count, path: Datapath, fmt: FloatFormat, total: Number) -> None:
    """An exact sum and a float accumulator."""
    c = count.unpack(fmt, 1)
    stages = (total.bits - 1).bit_length()
    count.put("accumulate", negate=total.bits)
    count.put("add", mux=total.bits * stages, add=stages)
    spread = Number(total.bits, 0, 0, total.bits - 1 + total.span)
    wide = (path.result or fmt).precision
    e_bits = max(c.e_bits, spread.e_bits) + 1
    _finish(count, path, count.add_pair(c, spread, wide), e_bits)


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


def float_add(count: Count, fmt: FloatFormat) -> None:
    """The IEEE 754 sum of two codes."""
    x = count.unpack(fmt, 2)
    width = count.add_pair(x, x, fmt.precision)
    count.normalise(width, x.e_bits + 1, fmt.precision, "accumulate")
    count.round(fmt, "nearest-even", x.e_bits + 1)


def _promotion(count: Count, path: Datapath, scale: Format | None) -> None:
    fmt = path.output
    assert isinstance(fmt, FloatFormat)
    if path.scaling is None or path.scaling.position == "inside" or scale is None:
        float_add(count, fmt)
        return
    s = count.unpack(scale, 2)
    both = count.multiply(s, s, 1)
    count.normalise(both.bits, both.e_bits + 1, fmt.precision, "accumulate")
    count.round(fmt, "nearest-even", both.e_bits + 1)
    x = count.unpack(fmt, 2)
    product = count.multiply(x, x, 1)
    width = count.add_pair(x, product, fmt.precision)
    count.normalise(width, product.e_bits + 1, fmt.precision, "accumulate")
    count.round(fmt, "nearest-even", product.e_bits + 1)
