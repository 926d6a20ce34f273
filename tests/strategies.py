"""Hypothesis strategies: formats that nobody has named yet, quantizers, tensors."""

from __future__ import annotations

import math
from contextlib import suppress

import torch
from hypothesis import assume
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.spec import (
    BlockFormat,
    CodebookFormat,
    FloatFormat,
    Format,
    IntFormat,
    Level,
    Outlier,
    Projection,
    Quantizer,
    build,
    load_format,
)
from lowprec.spec.projection import ROUNDINGS, SATURATIONS
from lowprec.spec.quantizer import RULES

NANS = ("none", "ieee", "all-ones", "negative-zero")
SCALES = ("float8_e8m0fnu", "float32", "float8_e4m3fn", "float8_e5m2", "bfloat16")


@st.composite
def float_formats(draw: st.DrawFn, max_bits: int = 16) -> FloatFormat:
    """Any float of up to `max_bits` bits whose exponents stay within float32's."""
    signed = draw(st.booleans())
    precision = draw(st.integers(1, max_bits - 1))
    exponent_bits = draw(st.integers(1, min(8, max_bits - precision + 1)))
    bits = precision - 1 + exponent_bits + signed
    assume(1 <= bits <= max_bits)
    subnormals = draw(st.booleans())
    parameters = {
        "name": "drawn",
        "kind": "float",
        "bits": bits,
        "precision": precision,
        "bias": draw(st.integers(-8, 140)),
        "signed": signed,
        "subnormals": subnormals,
        "zero": subnormals or draw(st.booleans()),
        "infinity": draw(st.booleans()),
        "nan": draw(st.sampled_from(NANS)),
    }
    try:
        return build(FloatFormat, parameters, "drawn")
    except LowprecError:
        assume(False)
        raise


@st.composite
def int_formats(draw: st.DrawFn, max_bits: int = 16) -> IntFormat:
    signed = draw(st.booleans())
    return IntFormat(
        name="drawn",
        kind="int",
        bits=draw(st.integers(2, max_bits)),
        signed=signed,
        exponent=draw(st.integers(-20, 20)),
        symmetric=signed and draw(st.booleans()),
    )


@st.composite
def codebooks(draw: st.DrawFn) -> CodebookFormat:
    number = st.floats(-1e6, 1e6, width=32, allow_subnormal=True)
    values = draw(st.lists(number, min_size=2, max_size=20, unique_by=lambda v: v or 0.0))
    values = [v or 0.0 for v in values]
    assume(any(v > 0 for v in values))
    ends = draw(st.lists(st.sampled_from([math.inf, -math.inf, math.nan]), unique_by=str))
    return CodebookFormat(name="drawn", kind="codebook", bits=6, values=(*values, *ends))


def formats() -> st.SearchStrategy[Format]:
    return st.one_of(float_formats(), int_formats(), codebooks())


@st.composite
def block_formats(draw: st.DrawFn) -> BlockFormat:
    """Any element and scale, any block; and one of what else blocks may share."""
    small, large = draw(st.sampled_from([(1, 4), (2, 4), (3, 9), (16, 64), (32, 32)]))
    parts: dict[str, object] = {
        "element": draw(formats()),
        "scale": load_format(draw(st.sampled_from(SCALES))),
        "block": (small,),
    }
    outer = draw(st.sampled_from([None, None, (large,), "channel", "tensor"]))
    if outer is not None:
        parts["outer"] = Level(scale=load_format(draw(st.sampled_from(SCALES))), block=outer)
    match draw(st.sampled_from(["plain", "flat", "tile", "inner", "zero", "offset", "outlier"])):
        case "flat":
            parts |= {"block": draw(st.sampled_from(["channel", "tensor"])), "outer": None}
        case "tile":
            parts |= {"block": (2, small), "outer": None}
        case "inner":
            bit = draw(st.sampled_from([-2, -1, 0]))
            parts["block"] = (large,)
            parts["outer"] = None
            parts["inner"] = (Level(scale=one_bit(bit), block=(small,)),)
        case "zero":
            parts |= {"element": draw(plain_ints()), "zero_point": draw(plain_ints())}
        case "offset":
            parts["offset"] = draw(st.one_of(plain_ints(), st.sampled_from(OFFSETS)))
        case "outlier":
            other = draw(formats())
            bits = max(parts["element"].bits, other.bits)
            assume(bits <= 16 and parts["element"].bits == other.bits)
            parts["outlier"] = Outlier(element=other, index_bits=8)
    return BlockFormat(name="drawn_block", **parts)


OFFSETS = [load_format(name) for name in ("float16", "ufloat8_e4m3", "float8_e4m3fn")]


def one_bit(low: int) -> FloatFormat:
    """The values 2^low and 2^(low + 1)."""
    return FloatFormat(
        name="bit", kind="float", bits=1, precision=1, bias=-low,
        signed=False, subnormals=False, zero=False,
    )  # fmt: skip


@st.composite
def plain_ints(draw: st.DrawFn) -> IntFormat:
    bits, signed = draw(st.integers(2, 9)), draw(st.booleans())
    return IntFormat(name="drawn", kind="int", bits=bits, signed=signed)


@st.composite
def block_quantizers(draw: st.DrawFn) -> Quantizer:
    """A block format and one of the rules that it takes; every rounding but the stochastic one."""
    fmt = draw(block_formats())
    rounding = draw(st.sampled_from([r for r in ROUNDINGS if r != "stochastic"]))
    projection = Projection(rounding=rounding, saturation=draw(st.sampled_from(SATURATIONS)))
    taken = []
    for rule in RULES:
        with suppress(ValidationError):
            fixed = 0.375 if rule == "fixed" else None
            taken.append(Quantizer(format=fmt, rule=rule, projection=projection, fixed=fixed))
    return draw(st.sampled_from([q for q in taken if q.rule != "static"]))


@st.composite
def quantizers(draw: st.DrawFn) -> Quantizer:
    """Casts and one-dimensional blocks, rounding to nearest even."""
    if draw(st.booleans()):
        projection = Projection(saturation=draw(st.sampled_from(SATURATIONS)))
        return Quantizer(format=draw(formats()), rule="cast", projection=projection)
    drawn = draw(block_quantizers())
    projection = Projection(saturation=drawn.projection.saturation)
    return drawn.model_copy(update={"projection": projection})


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """float32 of rank 1 to 3: random bits, or numbers of like magnitude with a few of those."""
    outer = draw(st.lists(st.integers(1, 40), min_size=1, max_size=2))
    shape = [*outer, draw(st.integers(1, 70))]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    bits = torch.randint(-(1 << 31), 1 << 31, shape, generator=generator)
    wild = bits.to(torch.int32).view(torch.float32)
    tame = torch.randn(shape, generator=generator) * 2.0 ** draw(st.integers(-140, 120))
    return torch.where(torch.rand(shape, generator=generator) < draw(st.floats(0, 1)), wild, tame)
