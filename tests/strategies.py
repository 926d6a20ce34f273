"""Hypothesis strategies: formats that nobody has named yet, quantizers, tensors."""

from __future__ import annotations

import math

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.spec import (
    BlockFormat,
    CodebookFormat,
    FloatFormat,
    Format,
    IntFormat,
    Projection,
    Quantizer,
    build,
    load_format,
)
from lowprec.spec.projection import SATURATIONS
from lowprec.spec.quantizer import POWER_OF_TWO_RULES

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
def quantizers(draw: st.DrawFn) -> Quantizer:
    """Casts and one-dimensional blocks, rounding to nearest even."""
    element = draw(formats())
    projection = Projection(saturation=draw(st.sampled_from(SATURATIONS)))
    if draw(st.booleans()):
        return Quantizer(format=element, rule="cast", projection=projection)
    scale = load_format(draw(st.sampled_from(SCALES)))
    fmt = BlockFormat(
        name="drawn_block",
        element=element,
        scale=scale,
        block=draw(st.sampled_from([(1,), (3,), (16,), (32,), "channel", "tensor"])),
    )
    rules = ["amax"]
    if isinstance(scale, FloatFormat) and scale.precision == 1:
        rules += [r for r in POWER_OF_TWO_RULES if r != "even" or _has_precision(element)]
    return Quantizer(format=fmt, rule=draw(st.sampled_from(rules)), projection=projection)


def _has_precision(element: Format) -> bool:
    return isinstance(element, FloatFormat | IntFormat)


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
