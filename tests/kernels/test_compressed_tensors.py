"""Layouts of compressed-tensors against the library: its bytes, and the values it reads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

import lowprec as lp
from lowprec.errors import LowprecError
from lowprec.kernels import layouts
from tests.kernels.compare import normal, same_bits, same_codes


def scheme(**weights: object) -> QuantizationScheme:
    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))


def compress(name: str, state: dict[str, torch.Tensor], its: QuantizationScheme) -> dict:
    return BaseCompressor.get_value_from_registry(name).compress(state, its)


def decompress(name: str, state: dict[str, torch.Tensor], its: QuantizationScheme) -> torch.Tensor:
    return BaseCompressor.get_value_from_registry(name).decompress(state, its)["weight"]


def same_state(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    """Shapes, dtypes and bytes."""

    def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
        alike = a.dtype == b.dtype and a.shape == b.shape
        return alike and torch.equal(a.flatten().view(torch.uint8), b.flatten().view(torch.uint8))

    return set(ours) == set(theirs) and all(equal(ours[k], theirs[k]) for k in ours)


def integer_tensor(text: str, shape: tuple[int, ...], seed: int = 0) -> lp.QTensor:
    """Every code point of the elements and zero points, and ordinary scales."""
    fmt = lp.format(text)
    each = fmt.scale_shape(shape)
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 1 << fmt.element.bits, shape, generator=generator)
    scales = torch.rand(each, generator=generator) + 0.5
    zero = torch.randint(0, 1 << fmt.element.bits, each, generator=generator)
    q = lp.quantize(torch.zeros(shape), f"{text}/{'minmax' if fmt.zero_point else 'amax'}")
    return replace(
        q,
        codes=codes.to(torch.uint8),
        scales=lp.encode(scales, fmt.scale),
        offset=zero.to(torch.uint8) if fmt.zero_point else None,
    )


INTEGERS = [  # format, its arguments, shape
    ("int4_g32_float16", {"num_bits": 4, "strategy": "group", "group_size": 32}, (24, 96)),
    ("int4_g128_bfloat16", {"num_bits": 4, "strategy": "group", "group_size": 128}, (3, 256)),
    ("int4_channel", {"num_bits": 4, "strategy": "channel"}, (5, 40)),
    ("int8_channel", {"num_bits": 8, "strategy": "channel"}, (5, 39)),
    (
        "uint4_zp_g32_float16",
        {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False},
        (24, 96),
    ),
    ("uint8_zp_channel", {"num_bits": 8, "strategy": "channel", "symmetric": False}, (6, 33)),
    ("int8_zp_channel", {"num_bits": 8, "strategy": "channel", "symmetric": False}, (6, 33)),
]


@pytest.mark.parametrize(("name", "arguments", "shape"), INTEGERS)
def test_pack_quantized_is_theirs(name, arguments, shape):
    q = integer_tensor(name, shape)
    its, state = scheme(**arguments), layouts.to_pack_quantized(q)
    values = decompress("pack-quantized", state, its)
    assert same_bits(values, q.dequantize().to(values.dtype))
    assert same_codes(layouts.from_pack_quantized(state, name), q)
    # Their own quantizer, given our scales and zero points, gives our bytes.
    element = q.quantizer.format.element
    middle = 0 if element.signed else 1 << (element.bits - 1)
    zero = {}
    if q.offset is not None:
        signed = lp.decode(q.offset, q.quantizer.format.zero_point) - middle
        zero = {"weight_zero_point": signed.to(torch.int8)}
    scale = state["weight_scale"]
    theirs = {"weight": q.dequantize().to(scale.dtype), "weight_scale": scale, **zero}
    assert same_state(state, compress("pack-quantized", theirs, its))


@pytest.mark.parametrize("bits", range(2, 9))
def test_pack_quantized_of_any_width(bits):
    fmt = lp.format("int4_channel").model_copy(
        update={"element": lp.format(f"int{bits}"), "name": "any"}
    )
    q = integer_tensor("int8_channel", (3, 45))
    quantizer = q.quantizer.model_copy(update={"format": fmt})
    q = replace(q, codes=q.codes >> (8 - bits), quantizer=quantizer)
    state = layouts.to_pack_quantized(q)
    its = scheme(num_bits=bits, strategy="channel")
    assert state["weight_packed"].shape == (3, -(-45 * bits // 32))
    assert same_bits(decompress("pack-quantized", state, its), q.dequantize())
    assert same_codes(layouts.from_pack_quantized(state, fmt), q)


def test_pack_quantized_experts():
    q = integer_tensor("uint4_zp_g32_float16", (3, 8, 64))
    state = layouts.to_pack_quantized(q)
    assert state["weight_packed"].shape == (3, 8, 8)
    assert state["weight_zero_point"].shape == (3, 1, 2)
    assert same_codes(layouts.from_pack_quantized(state, "uint4_zp_g32_float16"), q)
    for i in range(3):
        one = replace(q, codes=q.codes[i], scales=q.scales[i], offset=q.offset[i])
        alone = layouts.to_pack_quantized(one)
        for key in ("weight_packed", "weight_zero_point", "weight_scale"):
            assert torch.equal(alone[key], state[key][i])


def without_negative_zero(q: lp.QTensor) -> lp.QTensor:
    """Their quantizer gives +0 for -0, though their files hold both."""
    return replace(q, codes=torch.where(q.codes == 8, 0, q.codes))


def test_nvfp4_pack_quantized_is_theirs():
    q = lp.quantize(normal(6, 64), "nvfp4/amax")
    assert (q.codes == 8).any()
    # A power of two, so that to divide by its reciprocal is to multiply.
    q = replace(q, outer_scale=torch.tensor(2.0**-9))
    state, its = (
        layouts.to_nvfp4_pack_quantized(q),
        scheme(num_bits=4, type="float", strategy="tensor_group", group_size=16),
    )
    assert state["weight_global_scale"].tolist() == [512.0]
    assert state["weight_scale"].dtype == torch.float8_e4m3fn
    values = decompress("nvfp4-pack-quantized", state, its)
    assert same_bits(values, q.dequantize(values.dtype))
    assert same_codes(layouts.from_nvfp4_pack_quantized(state), q)
    theirs = {
        "weight": q.dequantize(),
        "weight_scale": state["weight_scale"].float(),
        "weight_global_scale": state["weight_global_scale"],
    }
    state = layouts.to_nvfp4_pack_quantized(without_negative_zero(q))
    assert same_state(state, compress("nvfp4-pack-quantized", theirs, its))


def test_the_global_scale_of_nvfp4_divides():
    for seed in range(200):
        q = lp.quantize(normal(2, 32, seed=seed), "nvfp4/amax")
        state = layouts.to_nvfp4_pack_quantized(q)
        g = state["weight_global_scale"]
        assert g.shape == (1,)
        assert torch.equal(g, 1 / q.outer_scale.reshape(1))
        back = layouts.from_nvfp4_pack_quantized(state)
        ulps = back.outer_scale.view(torch.int32) - q.outer_scale.view(torch.int32)
        assert abs(int(ulps)) <= 1
        assert torch.equal(back.codes, q.codes)
        assert torch.equal(back.scales, q.scales)


def test_nvfp4_of_zeros_and_without_a_reciprocal():
    q = lp.quantize(torch.zeros(2, 32), "nvfp4/amax")
    state = layouts.to_nvfp4_pack_quantized(q)
    assert state["weight_global_scale"].tolist() == [1.0]
    assert not layouts.from_nvfp4_pack_quantized(state).dequantize().any()
    q = lp.quantize(normal(2, 32), "nvfp4/amax")
    with pytest.raises(LowprecError, match="has no finite reciprocal"):
        layouts.to_nvfp4_pack_quantized(replace(q, outer_scale=torch.tensor(1e-40)))


def test_mxfp4_pack_quantized_is_theirs():
    q = lp.quantize(normal(6, 64), "mxfp4/even")
    state = layouts.to_mxfp4_pack_quantized(q)
    its = scheme(num_bits=4, type="float", strategy="group", group_size=32)
    values = decompress("mxfp4-pack-quantized", state, its)
    assert same_bits(values, q.dequantize(values.dtype))
    assert same_codes(layouts.from_mxfp4_pack_quantized(state), q)
    theirs = {"weight": q.dequantize(), "weight_scale": lp.decode(q.scales, "float8_e8m0fnu")}
    state = layouts.to_mxfp4_pack_quantized(without_negative_zero(q))
    assert same_state(state, compress("mxfp4-pack-quantized", theirs, its))


def test_compressed_tensors_refuses_what_it_is_not():
    refused = "expected integers of up to 8 bits"
    for name in ("mxint8", "float8_e4m3fn_channel", "gguf_q2_k", "vsquant_int4_s4"):
        rule = "minmax" if name == "gguf_q2_k" else "floor" if name == "mxint8" else "amax"
        with pytest.raises(LowprecError, match=refused):
            layouts.to_pack_quantized(lp.quantize(normal(2, 256), f"{name}/{rule}"))
    with pytest.raises(LowprecError, match="expected whole 32s"):
        layouts.to_pack_quantized(lp.quantize(normal(2, 40), "int4_g32_float16/amax"))
    with pytest.raises(LowprecError, match="expected rank 2 or more"):
        layouts.to_pack_quantized(lp.quantize(normal(64), "int4_g32_float16/amax"))
    state = layouts.to_pack_quantized(integer_tensor("int4_channel", (5, 33)))
    with pytest.raises(LowprecError, match="expected weight_packed, weight_scale, weight_shape"):
        layouts.from_pack_quantized(state | {"weight": state["weight_scale"]}, "int4_channel")
    grouped = layouts.to_pack_quantized(integer_tensor("int4_g32_float16", (5, 64)))
    with pytest.raises(LowprecError, match=r"weight_scale of torch.float16"):
        layouts.from_pack_quantized(grouped, "int4_g32_bfloat16")
    with pytest.raises(LowprecError, match=r"expected torch.int32 of \(5, 9\)"):
        layouts.from_pack_quantized(state, "int8_channel")
    stray = state["weight_packed"].clone()
    stray[0, -1] |= 1 << 20
    with pytest.raises(LowprecError, match="behind the end of a row are not zero"):
        layouts.from_pack_quantized(state | {"weight_packed": stray}, "int4_channel")
    state = layouts.to_mxfp4_pack_quantized(lp.quantize(normal(2, 64), "mxfp4/floor"))
    with pytest.raises(LowprecError, match=r"expected torch.uint8 of \(2, 16\)"):
        layouts.from_nvfp4_pack_quantized(state | {"weight_global_scale": torch.ones(1)})
    scale = state["weight_scale"].float()
    with pytest.raises(LowprecError, match=r"weight_scale of torch.float32: expected torch.uint8"):
        layouts.from_mxfp4_pack_quantized(state | {"weight_scale": scale})
    with pytest.raises(LowprecError, match="expected rank 2 or more"):
        layouts.from_mxfp4_pack_quantized(state | {"weight_scale": state["weight_scale"][0]})
    with pytest.raises(LowprecError, match="expected weight_packed, weight_scale"):
        layouts.from_mxfp4_pack_quantized({"weight_packed": state["weight_packed"]})
