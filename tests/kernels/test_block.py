"""Block quantization against the oracle, bit for bit, on blocks built to break it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lowprec import LowprecError, exact, kernels, quantizer
from lowprec.eval import hard_inputs
from lowprec.eval.conformance.blocks import expected, fake, quantizers, reaches_across, static_scale
from lowprec.spec import (
    BlockFormat,
    CodebookFormat,
    FloatFormat,
    Level,
    Outlier,
    Projection,
    Quantizer,
    load_format,
)
from tests import strategies
from tests.kernels.oracle import BLOCKS, assert_same_bits
from tests.strategies import one_bit


def block(name: str, element: str, scale: str, size: int, **more: object) -> BlockFormat:
    """A block format of named scalars; levels as (scale, block)."""
    for key in ("zero_point", "offset"):
        if key in more:
            more[key] = load_format(more[key])
    if "outer" in more:
        more["outer"] = Level(scale=load_format(more["outer"][0]), block=more["outer"][1])
    parts = {"element": load_format(element), "scale": load_format(scale)}
    return BlockFormat(name=name, **parts, block=(size,), **more)


PLUS = CodebookFormat(
    name="e2m1_plus", kind="codebook", bits=4,
    values=tuple(sign * (4 + k / 2) for sign in (1, -1) for k in range(8)),
)  # fmt: skip
TILES = BlockFormat(
    name="tiles",
    element=load_format("float8_e4m3fn"),
    scale=load_format("float32"),
    block=(3, 4),
)
UNUSUAL = [
    TILES,
    TILES.model_copy(update={"name": "tiles_mx", "scale": load_format("float8_e8m0fnu")}),
    *map(load_format, ("nf4_g8", "af4_g8", "lns8_g8", "hifloat8_tensor", "posit8_2_channel")),
    *map(load_format, ("uint4_g8", "ternary_channel", "float4_e1m2_g1", "takum8_g8")),
    block("ue4m3", "int4", "ufloat8_e4m3", 5, outer=("float32", "tensor")),
    block("coarse_t", "float4_e2m1fn", "float8_e5m2", 4, outer=("float8_e8m0fnu", "tensor")),
    block("int_scale", "int4", "uint4", 4),
    block("vs_quant", "int4_sym", "uint4", 4, outer=("float16", "channel")),
    block("two_levels", "int6", "int8", 3, outer=("float16", (6,))),
    block("k_quant", "uint4", "uint6", 4, outer=("float16", (8,)), offset="uint6"),
    block("k_quant_signed", "uint3", "uint4", 3, outer=("float32", "channel"), offset="int4"),
    block("with_offset", "uint4", "float16", 5, offset="float16"),
    block("with_unsigned_offset", "int4", "bfloat16", 5, offset="ufloat8_e4m3"),
    block("with_zero", "uint4", "float16", 5, zero_point="uint4"),
    block("with_narrow_zero", "int8", "float32", 5, zero_point="int4"),
    block("zero_and_outer", "uint4", "uint4", 3, zero_point="uint4", outer=("float32", "tensor")),
    block(
        "mx_shared", "float4_e1m2", "float8_e8m0fnu", 8,
        inner=(Level(scale=one_bit(-1), block=(2,)),),
    ),
    block(
        "hif", "float4_e1m2", "ufloat8_e6m2", 12,
        inner=(Level(scale=one_bit(0), block=(4,)), Level(scale=one_bit(0), block=(2,))),
    ),
    BlockFormat(
        name="low_scales",
        element=load_format("float4_e2m1fn"),
        scale=FloatFormat(
            name="low", kind="float", bits=6, precision=1, bias=149, signed=False,
            subnormals=False, zero=False,
        ),
        block=(4,),
    ),
    block(
        "mx_plus", "float4_e2m1fn", "float8_e8m0fnu", 6,
        outlier=Outlier(element=PLUS, index_bits=8),
    ),
]  # fmt: skip


# One shipped format of every kind; the others are alike, and the slow tests have them all.
USUAL = ("mxfp8_e4m3", "mxfp4", "mxint8", "nvfp4", "int8_channel", "float8_e4m3fn_tensor")
QUANTIZERS = [q for fmt in (*map(load_format, USUAL), *UNUSUAL) for q in quantizers(fmt)]
REST = [q for fmt in BLOCKS if fmt.name not in USUAL for q in quantizers(fmt)]
# The oracle tries 49 scales for every block.
SEARCHED = ("tiles", "mxfp4", "vs_quant")
QUICK = [q for q in QUANTIZERS if q.rule != "mse" or q.format.name in SEARCHED]
LONG = [q for q in (*QUANTIZERS, *REST) if q not in QUICK]
EVERY = [*QUICK, *(pytest.param(q, marks=pytest.mark.slow) for q in LONG)]
NAMED = {"ids": lambda value: value.spell()}


def breaking(width: int) -> Tensor:
    return torch.cat(hard_inputs.breaking(width))


@pytest.mark.parametrize("q", EVERY, **NAMED)
def test_blocks_built_to_break(q: Quantizer) -> None:
    groups = hard_inputs.breaking(hard_inputs.width_for(q.format, most=35))
    groups = [*groups, groups[0][:0]] if reaches_across(q.format) else [torch.cat(groups)]
    for rows in groups:
        assert_same_bits(fake(rows, q), expected(rows, q), rows)


@pytest.mark.parametrize("q", [q for q in QUICK if q.format in UNUSUAL], **NAMED)
def test_float64_blocks(q: Quantizer) -> None:
    """In steps of float64, with numbers that float32 cannot tell apart or hold."""
    for rows in hard_inputs.wide(9):
        assert_same_bits(fake(rows, q), expected(rows, q), rows)


@pytest.mark.parametrize("q", EVERY, **NAMED)
def test_codes_and_scales_are_the_oracles(q: Quantizer) -> None:
    """Element by element, and dequantizing gives the fake-quantized values."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 13, generator=generator) * 2.0 ** torch.arange(-3, 3)[:, None]
    scale, shape, fmt = static_scale(x, q), tuple(x.shape), q.format
    found = kernels.quantize(x, q, scale=scale)
    assert_same_bits(kernels.dequantize(found), expected(x, q), x)
    assert found.nbytes == -(-fmt.storage_bits_of(shape) // 8)
    assert tuple(found.scales.shape) == fmt.scale_shape(shape)
    sizes, codes = fmt.block_sizes(shape), found.codes.flatten()
    flat = None if scale is None else scale.flatten().tolist()
    for members, _, block in exact.quantize_blocks(x.flatten().tolist(), shape, q, scale=flat):
        row, column = divmod(members[0], shape[1])
        at = (row // sizes[0], column // sizes[1])
        assert codes[members].tolist() == list(block.codes)
        assert int(found.scales[at]) == exact.code_of(block.scale, fmt.scale)
        if found.offset is not None:
            assert int(found.offset[at]) == exact.code_of(
                block.offset, fmt.zero_point or fmt.offset
            )
        if found.outlier is not None:
            assert int(found.outlier[at]) == (255 if block.outlier is None else block.outlier)
        for level, codes_there, answers in zip(fmt.inner, found.inner, block.inner, strict=True):
            first = column // level.block[0]
            there = codes_there[row, first : first + len(answers)].tolist()
            assert there == [exact.code_of(u, level.scale) for u in answers]
        if fmt.outer is not None:
            outer_size = fmt.outer.block[0] if isinstance(fmt.outer.block, tuple) else shape[1]
            place = () if fmt.outer.block == "tensor" else (row, column // outer_size)
            assert float(found.outer_scale[place]) == float(block.outer.scale)
            if block.outer.offset is not None:
                assert float(found.outer_offset[place]) == float(block.outer.offset)


@settings(max_examples=150)
@given(q=strategies.block_quantizers(), seed=st.integers(0, 1 << 30), data=st.data())
def test_any_format_and_rule(q: Quantizer, seed: int, data: st.DataObject) -> None:
    """Formats and rules that nobody has combined, on random bits and on numbers of like size."""
    generator = torch.Generator().manual_seed(seed)
    shape = data.draw(st.sampled_from([(2, 11), (3, 5), (1, 40), (4, 2, 3)]))
    exponent = data.draw(st.integers(-140, 120))
    x = torch.randn(shape, generator=generator) * 2.0**exponent
    if data.draw(st.booleans()):
        bits = torch.randint(-(1 << 31), 1 << 31, shape, generator=generator)
        wild = bits.to(torch.int32).view(torch.float32)
        x = torch.where(torch.rand(shape, generator=generator) < 0.2, wild, x)
    if data.draw(st.booleans()):
        x = x.double() * (1 + 2.0**-40)
    axis = data.draw(st.integers(-len(shape), -1))
    assert_same_bits(kernels.fake_quantize(x, q, axis), expected(x, q, axis), x)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
@pytest.mark.parametrize(
    "name", ["mxfp4/floor", "nvfp4/amax", "float8_e4m3fn/amax:channel", "int8/amax:tensor", "tiles"]
)
def test_every_axis_and_layout(name: str, axis: int) -> None:
    q = Quantizer(format=TILES, rule="amax") if name == "tiles" else quantizer(name)
    x = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0))
    answer = expected(x, q, axis)
    assert_same_bits(kernels.fake_quantize(x, q, axis), answer)
    strided = x.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert_same_bits(kernels.fake_quantize(strided, q, axis).contiguous(), answer)
    assert_same_bits(kernels.quantize(strided, q, axis).dequantize().contiguous(), answer)
    row = torch.randn(7, generator=torch.Generator().manual_seed(1)).expand(3, 5, 7)
    assert_same_bits(kernels.fake_quantize(row, q, axis), expected(row, q, axis))


@pytest.mark.parametrize("saturation", ["SatFinite", "SatPropagate", "OvfInf"])
@pytest.mark.parametrize("rounding", ["nearest-away", "toward-zero", "up", "down", "to-odd"])
def test_projections_of_elements(rounding: str, saturation: str) -> None:
    projection = Projection(rounding=rounding, saturation=saturation)
    for name, rule in (("mxfp8_e5m2", "floor"), ("mxint8", "floor"), ("nvfp4", "amax")):
        q = Quantizer(format=load_format(name), rule=rule, projection=projection)
        x = breaking(8)[:14] if rule == "amax" else breaking(8)
        assert_same_bits(kernels.fake_quantize(x, q), expected(x, q), x)


def test_stochastic_elements() -> None:
    x = breaking(6)[:30]
    random = torch.randint(0, 1 << 8, x.shape, generator=torch.Generator().manual_seed(0))
    for name in ("mxfp4/floor/stochastic:8", "int8/amax:4/stochastic:8", "nf4/amax:4/stochastic:8"):
        q = quantizer(name)
        bits = random.flatten().tolist()
        values = exact.fake_quantize(x.flatten().tolist(), tuple(x.shape), q, -1, bits)
        found = kernels.fake_quantize(x, q, random=random)
        assert_same_bits(found, torch.tensor(values).view(x.shape), x)
        assert_same_bits(kernels.quantize(x[:7], q, random=random[:7]).dequantize(), found[:7])


def test_nan_blocks_as_codes() -> None:
    """Where the scale is NaN, the codes are the element's NaN, or 0 where it has none."""
    x = torch.ones(2, 32)
    x[0, 3] = math.nan
    fp8 = kernels.quantize(x, "mxfp8_e4m3/floor")
    assert (fp8.codes[0] == 0x7F).all()
    assert fp8.scales.tolist() == [[0xFF], [119]]
    fp4 = kernels.quantize(x, "mxfp4/floor")
    assert (fp4.codes[0] == 0).all()
    assert fp4.dequantize()[0].isnan().all()
    for name in ("mx9/floor", "hif4/amax", "gguf_q4_k/minmax", "mxfp4_plus/floor"):
        assert kernels.quantize(x, name).dequantize()[0, :16].isnan().all()
    with pytest.raises(LowprecError, match="NaN has no code point"):
        kernels.quantize(x, "int8/fixed=0.5:tensor")
    with pytest.raises(LowprecError, match="NaN"):
        kernels.quantize(
            x,
            Quantizer(
                format=load_format("mxfp4").model_copy(update={"scale": load_format("uint4")}),
                rule="amax",
            ),
        )


def test_formats_and_shapes_that_do_not_apply() -> None:
    wide = TILES.model_copy(update={"name": "wide", "scale": load_format("float64")})
    with pytest.raises(LowprecError, match=r"float64: torch\.float32 does not hold"):
        kernels.fake_quantize(torch.ones(3, 4), Quantizer(format=wide, rule="amax"))
    with pytest.raises(LowprecError, match="axis"):
        kernels.fake_quantize(torch.ones(()), "mxfp4/floor")
    with pytest.raises(LowprecError, match="rank 2"):
        kernels.fake_quantize(torch.ones(4), Quantizer(format=TILES, rule="amax"))
