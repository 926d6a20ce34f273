"""The parts of units in pieces: full adders, multiplexers and so on, as `lowprec.rtl` builds them.

What a piece costs is fitted once (`datapath_cost.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite

from lowprec.errors import LowprecError
from lowprec.spec import CodebookFormat, FloatFormat, Format, IntFormat
from lowprec.spec.format import floor_log2, pow2

# Kinds of pieces, each counted in bits; of a product in full adders.
PIECES = ("product", "add", "negate", "mux", "mask", "compare", "table")
Pieces = Mapping[str, float]
# A multiplier of two's complement numbers is so much larger than one of magnitudes.
SIGNED = 1.17


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

    def either(self, other: Number) -> Number:
        """What holds both."""
        low, fraction = min(self.low, other.low), max(self.fraction, other.fraction)
        bits = max(x.bits - x.fraction for x in (self, other)) + fraction
        return Number(bits, fraction, low, max(x.low + x.span for x in (self, other)) - low)


def number(fmt: Format, of: Format | None = None) -> Number:
    """Of a code point of `fmt`. of: the format whose value a codebook's code is looked up as."""
    match fmt:
        case FloatFormat():
            span = fmt.emax - fmt.emin
            return Number(fmt.precision, fmt.precision - 1, fmt.emin, span)
        case IntFormat():
            return Number(fmt.bits, -fmt.exponent, 0, 0)
        case CodebookFormat() if of is not None:
            return _looked_up(fmt, of)
    raise LowprecError(f"{fmt.name}: a codebook is a number only as a value of another format")


def _looked_up(fmt: CodebookFormat, of: Format) -> Number:
    """Of a code point that a table gives as a value of `of`: as wide as its values need."""
    sizes = [abs(Fraction(x)) for x in fmt.values if isfinite(x) and x]
    lowest = of.emin if isinstance(of, FloatFormat) else 0
    exponents = [max(floor_log2(x), lowest) for x in sizes]
    low = min(exponents)
    # Bits behind the point of each significand, in [1, 2) but for subnormals.
    fraction = max((x / pow2(e)).denominator for x, e in zip(sizes, exponents, strict=True))
    bits = fraction.bit_length()
    return Number(bits, bits - 1, low, max(exponents) - low)


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

    def unpack(self, fmt: Format, times: int, of: Format | None = None) -> Number:
        """of: as `number` has it."""
        found = number(fmt, of)
        if isinstance(fmt, CodebookFormat):
            # A function of n bits takes about 2^n / n gates (Shannon); the sign is a bit, too.
            word = found.bits + (found.e_bits if found.span else 0) + 1
            self.put("unpack", times, table=word * fmt.code_points / fmt.bits)
            return found
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
        double = rounding != "toward-zero"
        # Minus a power of two is all ones above it: no chain of carries.
        negated = size / 2 if x.bits == 1 else size
        # What a shift to the right drops for good needs no shifter.
        bits = x.bits if double else max(1, x.bits - down)
        wide = bits + up + 1
        self.put(
            "align", times, shifter(bits, wide * (1 + double), e_bits), add=e_bits, negate=negated
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
        # A number that is narrower than the result has zeros behind it, which need no multiplexers.
        stages = (width - 1).bit_length()
        self.put(component, negate=width, mux=width * stages)
        self.put(component, add=3 * e_bits, compare=e_bits, mask=wide)

    def round(self, fmt: FloatFormat, rounding: str, e_bits: int) -> None:
        # Half adders.
        up = fmt.precision / 2 if rounding != "toward-zero" else 0
        self.put("accumulate", add=e_bits + up, compare=fmt.bits, mask=3 * fmt.bits)


def array(x: int, y: int) -> dict[str, float]:
    """An array multiplier: x (y - 2) full adders, x half ones, each with the AND before it."""
    x, y = min(x, y), max(x, y)
    return {"product": x * (y - 2) + x / 2}


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


def float_add(count: Count, fmt: FloatFormat) -> None:
    """The IEEE 754 sum of two codes."""
    x = count.unpack(fmt, 2)
    width = count.add_pair(x, x, fmt.precision)
    count.normalise(width, x.e_bits + 1, fmt.precision, "accumulate")
    count.round(fmt, "nearest-even", x.e_bits + 1)
