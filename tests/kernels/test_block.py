"""Block quantization against the oracle, bit for bit, on blocks built to break it."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from lowprec import LowprecError, exact, kernels, quantizer
from lowprec.spec import (
    BlockFormat,
    FloatFormat,
    IntFormat,
    Level,
    Projection,
    Quantizer,
    load_format,
)
from lowprec.spec.quantizer import POWER_OF_TWO_RULES
from tests.kernels.oracle import BLOCKS, assert_same_bits

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
    BlockFormat(
        name="ue4m3", element=load_format("int4"), scale=load_format("ufloat8_e4m3"), block=(5,),
        outer=Level(scale=load_format("float32"), block="tensor"),
    ),
    BlockFormat(
        name="coarse_t", element=load_format("float4_e2m1fn"), scale=load_format("float8_e5m2"),
        block=(4,), outer=Level(scale=load_format("float8_e8m0fnu"), block="tensor"),
    ),
    BlockFormat(
        name="int_scale", element=load_format("int4"), scale=load_format("uint4"), block=(4,)
    ),
]  # fmt: skip


def rules(fmt: BlockFormat) -> list[str]:
    one_bit = isinstance(fmt.scale, FloatFormat) and fmt.scale.precision == 1
    found = ["amax"]
    if one_bit and fmt.outer is None:
        found += POWER_OF_TWO_RULES
        if not isinstance(fmt.element, FloatFormat | IntFormat):
            found.remove("even")
    return found


QUANTIZERS = [
    Quantizer(format=fmt, rule=rule) for fmt in (*BLOCKS, *UNUSUAL) for rule in rules(fmt)
]
NAMED = {"ids": lambda value: value.spell()}


def breaking(width: int) -> Tensor:
    """Rows of `width`: what float exponents, scales and ends get wrong."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(7, width, generator=generator)
    powers = 2.0 ** torch.arange(-120, 121, 40)[:, None]
    below = torch.full((7, width), 1.0).nextafter(torch.zeros(())) * powers
    bits = torch.randint(-(1 << 31), 1 << 31, (4, width), generator=generator)
    wild = bits.to(torch.int32).view(torch.float32)
    spread = normal * 2.0 ** torch.randint(-149, 120, (7, width), generator=generator)
    tiny = torch.randint(-9, 10, (3, width), generator=generator) * 2.0**-149
    largest = [5.5, 6, 6.0000005, 7, 7.5, 448, 464, 480, 512, 57344, 1e38, 3e38]
    ends = torch.tensor([largest]).T * normal[:1] / normal[:1].abs().max()
    rows = [normal, below * normal.sign(), wild, spread, tiny, ends, torch.zeros(2, width)]
    x = torch.cat(rows)
    x[-1] = -0.0
    special = normal[:3].clone()
    special[0, 1], special[1, -1], special[2, 0] = math.nan, math.inf, -math.inf
    return torch.cat([x, special])


def expected(x: Tensor, q: Quantizer, axis: int = -1) -> Tensor:
    values = exact.fake_quantize(x.flatten().tolist(), tuple(x.shape), q, axis)
    return torch.tensor(values).view(x.shape)


@pytest.mark.parametrize("q", QUANTIZERS, **NAMED)
def test_blocks_built_to_break(q: Quantizer) -> None:
    width = 6 if isinstance(q.format.block, str) else min(q.format.block[-1] + 3, 35)
    x = breaking(width)
    if q.format.outer is None and q.format.block != "tensor":
        assert_same_bits(kernels.fake_quantize(x, q), expected(x, q), x)
        return
    # One NaN or Inf is all that a whole tensor needs.
    for rows in (x[:7], x[7:14], x[18:25], x[25:28], x[28:40], x[40:42], x[42:], x[:0]):
        assert_same_bits(kernels.fake_quantize(rows, q), expected(rows, q), rows)


@pytest.mark.parametrize("q", QUANTIZERS, **NAMED)
def test_codes_and_scales_are_the_oracles(q: Quantizer) -> None:
    """Element by element, and dequantizing gives the fake-quantized values."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 10, generator=generator) * 2.0 ** torch.arange(-3, 3)[:, None]
    found = kernels.quantize(x, q)
    assert_same_bits(kernels.dequantize(found), expected(x, q), x)
    assert found.nbytes == -(-q.format.storage_bits_of(tuple(x.shape)) // 8)
    assert tuple(found.scales.shape) == q.format.scale_shape(tuple(x.shape))
    sizes = q.format.block_sizes(tuple(x.shape))
    tensor_amax = x.abs().max().item()
    for at in product(*map(range, found.scales.shape)):
        where = tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, sizes, strict=True))
        block = exact.quantize_block(x[where].flatten().tolist(), q, exact.exact(tensor_amax))
        assert found.codes[where].flatten().tolist() == list(block.codes)
        assert int(found.scales[at]) == exact.code_of(block.scale, q.format.scale)
        if found.tensor_scale is not None:
            assert found.tensor_scale.item() == float(block.tensor_scale)


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
    with pytest.raises(LowprecError, match="NaN"):
        kernels.quantize(x, Quantizer(format=UNUSUAL[-1], rule="amax"))


def test_formats_and_shapes_that_do_not_apply() -> None:
    wide = TILES.model_copy(update={"name": "wide", "scale": load_format("float64")})
    with pytest.raises(LowprecError, match=r"float64: torch\.float32 does not hold"):
        kernels.fake_quantize(torch.ones(3, 4), Quantizer(format=wide, rule="amax"))
    with pytest.raises(LowprecError, match="axis"):
        kernels.fake_quantize(torch.ones(()), "mxfp4/floor")
    with pytest.raises(LowprecError, match="rank 2"):
        kernels.fake_quantize(torch.ones(4), Quantizer(format=TILES, rule="amax"))
