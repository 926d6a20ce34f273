"""A datapath for a format alone, where nobody says what the unit should be."""

from __future__ import annotations

from fractions import Fraction
from math import isfinite

from lowprec.errors import LowprecError
from lowprec.spec.block import BlockFormat
from lowprec.spec.catalogue import load_format
from lowprec.spec.datapath import Aligned, Datapath, Promotion, Scaling
from lowprec.spec.format import CodebookFormat, FloatFormat, Format, IntFormat, floor_log2, pow2

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
    "float32",
)  # fmt: skip


def default_datapath(
    fmt: Format | BlockFormat,
    fraction_bits: int | None = None,
    lanes: int = LANES,
) -> Datapath:
    """A unit as today's tensor cores would take the format, accumulating in float32.

    Products of floats are aligned and cut toward zero at `fraction_bits` [25]; plain integers are
    summed exactly in int32. Scales that change along K are applied inside, to exact sums of groups
    where products are narrow [35 fraction bits], those of more than 8 significant bits outside.
    Codebooks are looked up as floats, and so are integers that have scales. LowprecError for inner
    scales, zero points, offsets and outliers, and for scales that are no floats.
    """
    element = fmt.element if isinstance(fmt, BlockFormat) else fmt
    name = f"for_{fmt.name.lower()}".replace(".", "_").replace("-", "_")
    scaling = _scaling(fmt, element, lanes) if isinstance(fmt, BlockFormat) else None
    if isinstance(element, IntFormat) and scaling is None:
        return Datapath(
            name=name,
            inputs=(element,),
            accumulator=IntFormat(name="int32", kind="int", bits=32, exponent=2 * element.exponent),
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


def _carrier(element: Format) -> FloatFormat:
    """The float that holds the element's values."""
    match element:
        case FloatFormat():
            return element
        case IntFormat():
            # Subnormals and one binade more: fixed point with a sign.
            return FloatFormat(
                name=f"{element.name}_magnitude",
                kind="float",
                bits=element.bits + 1,
                precision=element.bits,
                bias=2 - element.bits - element.exponent,
            )
        case CodebookFormat():
            floats = [load_format(name) for name in CARRIERS]
            for fmt in floats:
                if isinstance(fmt, FloatFormat) and _holds(fmt, element):
                    return fmt
            raise LowprecError(f"{element.name}: no datapath: not even float32 holds its values")
    raise TypeError(f"no scalar format: {element!r}")


def _holds(fmt: FloatFormat, element: CodebookFormat) -> bool:
    """Whether every finite value is one of `fmt`'s."""
    for x in {abs(Fraction(v)) for v in element.values if isfinite(v) and v}:
        unit = pow2(max(floor_log2(x), fmt.emin) - (fmt.precision - 1))
        if x > fmt.max_exact or (x / unit).denominator != 1:
            return False
    return True


def _scaling(fmt: BlockFormat, element: Format, lanes: int) -> Scaling | None:
    if not fmt.is_only_scaled:
        raise LowprecError(
            f"{fmt.name}: no datapath for inner scales, zero points, offsets and outliers"
        )
    if isinstance(fmt.block, str):
        return None
    if not isinstance(fmt.scale, FloatFormat):
        raise LowprecError(f"{fmt.name}: no datapath for the scale {fmt.scale.name}, no float")
    size = fmt.block[-1]
    if fmt.scale.precision > NARROW and size % lanes == 0:
        return Scaling(formats=(fmt.scale,), block=size, position="outside")
    narrow = _width(element) <= GROUP_BITS and size % min(size, lanes) == 0
    group = min(size, lanes) if narrow else None
    return Scaling(formats=(fmt.scale,), block=size, position="inside", group=group)


def _width(element: Format) -> int:
    """Bits of a product in fixed point."""
    match element:
        case FloatFormat():
            return 2 * (element.precision + element.emax - element.emin)
        case IntFormat():
            return 2 * element.bits
    return GROUP_BITS + 1
