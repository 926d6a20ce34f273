"""A datapath for a format alone, where nobody says what the unit should be."""

from __future__ import annotations

from fractions import Fraction
from math import isfinite

from lowprec.errors import LowprecError
from lowprec.spec.block import BlockFormat
from lowprec.spec.catalogue import load_format
from lowprec.spec.datapath import Aligned, Datapath, Promotion, Scaling
from lowprec.spec.format import CodebookFormat, FloatFormat, Format, IntFormat, floor_log2, pow2
from lowprec.spec.load import build

LANES = 16
# What Blackwell keeps: 25 fraction bits of products, 35 of sums of groups (microsoft/MMA-Sim).
FRACTION_BITS, GROUP_FRACTION_BITS = 25, 35
# Products that need no more bits than this in fixed point are summed exactly within a scale's
# group: E2M1, E2M3 and integers up to 8 bits are.
GROUP_BITS = 16
# Scales of more significant bits multiply the float32 sum of their block, as DeepSeek-V3 does it.
NARROW = 8
# What codebooks are looked up as: the first of these that holds their values.
CARRIERS = (
    "float4_e2m1fn", "float6_e2m3fn", "float8_e4m3fn", "float8_e5m2", "bfloat16", "float16",
    "float32", "float64",
)  # fmt: skip


def default_datapath(
    fmt: Format | BlockFormat,
    fraction_bits: int | None = None,
    lanes: int = LANES,
) -> Datapath:
    """A unit as today's tensor cores would take the format, accumulating in float32.

    Products of floats are aligned and cut toward zero at `fraction_bits` [25]; plain integers are
    summed exactly in int32. A step has `lanes` products, or fewer where so many are neither whole
    blocks nor a part of one. Scales that change along K are applied inside, to exact sums of groups
    where products are narrow or have inner scales [35 fraction bits], those of more than 8
    significant bits outside. Codebooks are looked up as floats, and integers that have scales are
    floats of one exponent. A scale of two levels along K is their exact product. Inputs are what
    the elements become: times their inner scales, less their zero point, in a format that holds
    outliers, too; an offset is a block of ones scaled by minus the offset. LowprecError for what
    no float holds.
    """
    element = fmt.element if isinstance(fmt, BlockFormat) else fmt
    name = f"for_{fmt.name.lower()}".replace(".", "_").replace("-", "_")[:60]
    scaling = None
    if isinstance(fmt, BlockFormat):
        element, lanes = _operand(fmt), _lanes(fmt, lanes)
        scaling = _scaling(fmt, element, lanes)
    if isinstance(element, IntFormat) and scaling is None:
        return Datapath(
            name=name,
            inputs=(element,),
            accumulator=_int32(2 * element.exponent, fmt.name),
            addition=Aligned(kind="aligned"),
            step=lanes,
            overflow="wrap",
        )
    float32 = load_format("float32")
    assert isinstance(float32, FloatFormat)
    outside = scaling is not None and scaling.position == "outside"
    default = GROUP_FRACTION_BITS if scaling and scaling.group else FRACTION_BITS
    return Datapath(
        name=name,
        inputs=(_carrier(element),),
        accumulator=float32,
        addition=Aligned(kind="aligned", fraction_bits=fraction_bits or default),
        step=lanes,
        rounding="toward-zero",
        scaling=scaling,
        promotion=Promotion(interval=scaling.block, format=float32)
        if scaling and outside
        else None,
    )


def _int32(exponent: int, where: str) -> IntFormat:
    data = {"name": "int32", "kind": "int", "bits": 32, "exponent": exponent}
    return build(IntFormat, data, f"{where}: accumulator")


def _operand(fmt: BlockFormat) -> Format:
    """A format of what a block's elements are before its scale."""
    if fmt.zero_point is not None:
        return less_zero(fmt.element, fmt.zero_point)
    if fmt.outlier is not None:
        return _carrier(fmt.element, fmt.outlier.element)
    return _with_inner(fmt) if fmt.inner else fmt.element


def less_zero(element: Format, zero_point: Format) -> IntFormat:
    """Of every difference of these two integers."""
    low = element.min_exact - zero_point.max_exact
    high = element.max_exact - zero_point.min_exact
    bits = 1 + max(int(-low - 1).bit_length(), int(high).bit_length())
    return IntFormat(name=_name(element, "less_zero"), kind="int", bits=bits)


def _name(fmt: Format, what: str) -> str:
    """No longer than names may be."""
    return f"{fmt.name[: 79 - len(what)]}_{what}"


def _lanes(fmt: BlockFormat, most: int) -> int:
    """Products of a step: whole blocks, or such a part of one that it is whole parts with an inner
    scale each, or parts of them; where there is none of half as many, and no inner scales, as many
    as there may be."""
    if isinstance(fmt.block, str):
        return most
    size = fmt.block[-1]
    if size <= most:
        return most // size * size
    inner = [int(level.block[-1]) for level in fmt.inner]
    part = max(
        n
        for n in range(1, most + 1)
        if size % n == 0 and all(n % i == 0 or i % n == 0 for i in inner)
    )
    return part if inner or 2 * part >= most else most


def _with_inner(fmt: BlockFormat) -> FloatFormat:
    """The elements' precision over the binades of both, which holds subnormals at every one."""
    element = _carrier(fmt.element)
    scales = [s for level in fmt.inner if isinstance(s := level.scale, FloatFormat)]
    low = element.emin + sum(floor_log2(s.min_positive_exact) for s in scales)
    binades = element.emax + sum(s.emax for s in scales) - low + 1
    precision = element.precision
    return FloatFormat(
        name=_name(fmt.element, "with_inner"),
        kind="float",
        bits=element.signed + binades.bit_length() + precision - 1,
        precision=precision,
        bias=1 - low,
        signed=element.signed,
        nan="ieee" if element.has_nan or any(s.has_nan for s in scales) else "none",
        infinity=element.infinity,
    )


def scale_format(fmt: BlockFormat) -> FloatFormat:
    """What the scale along K is in the unit: itself, an integer as a float, or, of two levels, the
    exact product in the first of float32 and float64 that holds it."""
    scale = _carrier(fmt.scale)
    if not has_two_levels(fmt) or fmt.outer is None:
        return scale
    outer = _carrier(fmt.outer.scale)
    for name in ("float32", "float64"):
        wide = load_format(name)
        assert isinstance(wide, FloatFormat)
        if (
            scale.precision + outer.precision <= wide.precision
            and scale.max_exact * outer.max_exact <= wide.max_exact
            and scale.min_positive_exact * outer.min_positive_exact >= pow2(wide.emin)
        ):
            return wide
    raise LowprecError(f"{fmt.name}: no datapath: float64 does not hold its scales' products")


def goes_beyond_scales(fmt: BlockFormat) -> bool:
    """Whether a unit for it reads more than elements and one float scale of each block."""
    scale = None if isinstance(fmt.block, str) else scale_format(fmt)
    return not fmt.is_only_scaled or scale not in (None, fmt.scale)


def passes(fmt: Format | BlockFormat) -> int:
    """Passes of its unit for a product of two blocks: with offsets the elements and the ones of
    one by those of the other."""
    return 4 if isinstance(fmt, BlockFormat) and fmt.offset is not None else 1


def has_two_levels(fmt: BlockFormat) -> bool:
    """Whether the outer scale changes along K, too."""
    return fmt.outer is not None and not isinstance(fmt.outer.block, str)


def _carrier(*elements: Format) -> FloatFormat:
    """The float that holds the values of these: of one, itself if it is a float."""
    match elements:
        case (FloatFormat() as element,):
            return element
        case (IntFormat() as element,):
            # Subnormals and one binade more: fixed point with a sign.
            return FloatFormat(
                name=_name(element, "magnitude"),
                kind="float",
                bits=element.bits + 1,
                precision=element.bits,
                bias=2 - element.bits - element.exponent,
            )
    names = " and ".join(fmt.name for fmt in elements)
    for name in CARRIERS:
        fmt = load_format(name)
        if isinstance(fmt, FloatFormat) and all(_holds(fmt, element) for element in elements):
            return fmt
    raise LowprecError(f"{names}: no datapath: not even float64 holds the values")


def _holds(fmt: FloatFormat, element: Format) -> bool:
    """Whether every finite value is one of `fmt`'s."""
    if isinstance(element, CodebookFormat):
        return all(_has(fmt, abs(Fraction(v))) for v in element.values if isfinite(v) and v)
    ends = [element.max_exact, element.min_positive_exact]
    # Of a float each value is as long as its precision, and a multiple of the least one.
    precision = element.precision if isinstance(element, FloatFormat) else element.bits
    quantum = pow2(fmt.emin - fmt.precision + 1)
    last = element.min_positive_exact / quantum
    return precision <= fmt.precision and ends[0] <= fmt.max_exact and last.denominator == 1


def _has(fmt: FloatFormat, x: Fraction) -> bool:
    unit = pow2(max(floor_log2(x), fmt.emin) - (fmt.precision - 1))
    return x <= fmt.max_exact and (x / unit).denominator == 1


def _scaling(fmt: BlockFormat, operand: Format, lanes: int) -> Scaling | None:
    if fmt.offset is not None and fmt.offset != fmt.scale:
        raise LowprecError(
            f"{fmt.name}: no datapath for an offset of the format {fmt.offset.name}; expected the "
            f"scale's, {fmt.scale.name}"
        )
    if isinstance(fmt.block, str):
        if fmt.offset is not None:
            raise LowprecError(f"{fmt.name}: no datapath for offsets that do not change along K")
        return None
    size, scale = fmt.block[-1], scale_format(fmt)
    whole = size % min(size, lanes) == 0
    if scale.precision > NARROW and size % lanes == 0 and not fmt.inner:
        return Scaling(formats=(scale,), block=size, position="outside")
    narrow = bool(fmt.inner) or _width(operand) <= GROUP_BITS
    group = min(size, lanes) if narrow and whole else None
    return Scaling(formats=(scale,), block=size, position="inside", group=group)


def _width(operand: Format) -> int:
    """Bits of a product in fixed point."""
    match operand:
        case FloatFormat():
            return 2 * (operand.precision + operand.emax - operand.emin)
        case IntFormat():
            return 2 * operand.bits
    return GROUP_BITS + 1
