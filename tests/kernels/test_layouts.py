"""Bytes of the layouts against the libraries that they come from."""

from __future__ import annotations

import warnings
from dataclasses import fields, replace

import gguf
import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import lowprec as lp
from lowprec.errors import LowprecError
from lowprec.kernels import layouts
from lowprec.kernels.layouts.gguf import LAYOUTS

with warnings.catch_warnings():  # it warns of its own optional parts
    warnings.simplefilter("ignore")
    from torchao.prototype.mx_formats.utils import from_blocked, to_blocked


def random_bytes(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """NaN equals NaN whatever its bits, and zeros have signs."""
    a, b = a.float(), b.float()
    bits = a.view(torch.int32) == b.view(torch.int32)
    return a.shape == b.shape and bool((bits | (a.isnan() & b.isnan())).all())


def same_codes(a: lp.QTensor, b: lp.QTensor) -> bool:
    """All tensors alike, dtypes included, whatever rule chose the scales."""

    def equal(x: object, y: object) -> bool:
        if isinstance(x, torch.Tensor):
            return x.dtype == y.dtype and torch.equal(x, y)
        return x == y

    names = [field.name for field in fields(a) if field.name != "quantizer"]
    return all(equal(getattr(a, n), getattr(b, n)) for n in names)


# ---------------------------------------------------------------------------- NVIDIA, 128 x 4


@pytest.mark.parametrize(
    ("rows", "columns"), [(128, 4), (1, 1), (129, 5), (300, 17), (256, 8), (31, 0), (0, 3)]
)
def test_128x4_is_torchaos_order(rows, columns):
    scales = random_bytes(rows, columns)
    blocked = layouts.to_blocked_128x4(scales)
    assert blocked.dim() == 1
    assert torch.equal(layouts.from_blocked_128x4(blocked, rows, columns), scales)
    if scales.numel():
        assert torch.equal(blocked, to_blocked(scales))
        assert torch.equal(from_blocked(blocked, rows, columns), scales)


def test_128x4_is_the_formula_of_cublas():
    scales = random_bytes(200, 11)
    blocked = layouts.to_blocked_128x4(scales)
    expected = torch.zeros(2 * 3 * 512, dtype=torch.uint8)
    for r in range(200):
        for c in range(11):
            tile = r // 128 * 3 + c // 4
            expected[tile * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = scales[r, c]
    assert torch.equal(blocked, expected)


def test_128x4_refuses_what_it_is_not():
    with pytest.raises(LowprecError, match=r"expected torch.uint8 of rank 2"):
        layouts.to_blocked_128x4(random_bytes(4, 4, 4))
    with pytest.raises(LowprecError, match=r"expected torch.uint8 of rank 2"):
        layouts.to_blocked_128x4(torch.zeros(4, 4))
    with pytest.raises(LowprecError, match=r"129 x 4 scales are 1024 of torch.uint8"):
        layouts.from_blocked_128x4(random_bytes(512), 129, 4)


# ---------------------------------------------------------------------------- GGUF


def ggml_type(name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[name.removeprefix("gguf_").upper()]


def ggml_values(data: torch.Tensor, name: str) -> torch.Tensor:
    with np.errstate(all="ignore"):
        return torch.from_numpy(gguf.dequantize(data.numpy(), ggml_type(name)))


# Bytes of a super-block where a float16 stands that we hold as a number, not as a code.
OUTER = {"q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}
OUTER |= {"iq4_xs": (0,)}


def gguf_data(name: str, blocks: int, finite: bool = False) -> torch.Tensor:
    """Random bytes, less the codes that we refuse or read otherwise."""
    nbytes = gguf.GGML_QUANT_SIZES[ggml_type(name)][1]
    data = random_bytes(7, blocks * nbytes)
    each = data.view(-1, nbytes)
    if name == "gguf_tq2_0":  # code 3, of two set bits, is none
        each[:, :-2] &= ~((each[:, :-2] >> 1) & each[:, :-2] & 0x55)
    if name == "mxfp4":  # 255 is 2^128
        each[:, 0] %= 255
    for at in OUTER.get(name.removeprefix("gguf_"), ()) if finite else ():
        each[:, at + 1] &= 0xFB
    return data


@pytest.mark.parametrize("name", LAYOUTS)
def test_gguf_bytes_mean_what_ggml_says(name):
    data = gguf_data(name, 100)
    shape = (7, 100 * LAYOUTS[name].size)
    values = layouts.from_gguf(data, name, shape).dequantize()
    if name == "mxfp4":  # ggml has no -0 there
        values += 0.0
    assert same_bits(values, ggml_values(data, name))


@pytest.mark.parametrize("name", LAYOUTS)
def test_gguf_bytes_come_back(name):
    data = gguf_data(name, 6, finite=True).reshape(7, 2, -1)
    q = layouts.from_gguf(data, name, (7, 2, 3 * LAYOUTS[name].size))
    assert q.shape == (7, 2, 3 * LAYOUTS[name].size)
    assert torch.equal(layouts.to_gguf(q), data)
    assert data.numel() * 8 == q.quantizer.format.storage_bits_of(tuple(q.shape))


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_what_gguf_quantizes_comes_back(name):
    x = normal(5, 320)
    data = torch.from_numpy(gguf.quantize(x.numpy(), ggml_type(name)))
    q = layouts.from_gguf(data, f"gguf_{name}", (5, 320))
    assert same_bits(q.dequantize(), ggml_values(data, name))
    assert (q.dequantize() - x).abs().max() < 0.5
    assert torch.equal(layouts.to_gguf(q), data)


@pytest.mark.parametrize(
    "quantizer",
    ["gguf_q4_0/signed", "gguf_q8_0/amax", "gguf_q4_1/minmax", "gguf_q4_k/minmax", "mxfp4/even"],
)
def test_what_we_quantize_reads_alike_in_ggml(quantizer):
    q = lp.quantize(normal(3, 512), quantizer)
    name = q.quantizer.format.name
    data = layouts.to_gguf(q)
    expected = q.dequantize() + 0.0 if name == "mxfp4" else q.dequantize()
    assert same_bits(ggml_values(data, name), expected)
    assert same_codes(layouts.from_gguf(data, name, (3, 512)), q)


def test_gguf_nan_scales():
    data = gguf_data("gguf_q4_k", 1)[:1]
    data[0, :2] = torch.tensor([0x01, 0x7D])
    q = layouts.from_gguf(data, "gguf_q4_k", (1, 256))
    assert bool(q.dequantize().isnan().all())
    assert layouts.to_gguf(q)[0, :2].tolist() == [0x00, 0x7E]


def test_gguf_refuses_what_it_is_not():
    q = layouts.from_gguf(gguf_data("gguf_q4_0", 2), "gguf_q4_0", (7, 64))
    with pytest.raises(LowprecError, match="unknown GGUF format 'nvfp4'"):
        layouts.from_gguf(random_bytes(18), "nvfp4", (32,))
    with pytest.raises(LowprecError, match=r"expected torch.uint8 of \(7, 36\)"):
        layouts.from_gguf(random_bytes(7, 18), "gguf_q4_0", (7, 64))
    with pytest.raises(LowprecError, match="expected whole 32s"):
        layouts.from_gguf(random_bytes(7, 18), "gguf_q4_0", (7, 48))
    with pytest.raises(LowprecError, match="expected the last, -1"):
        layouts.to_gguf(replace(q, axis=-2))
    with pytest.raises(LowprecError, match="unknown GGUF format 'int8_channel'"):
        layouts.to_gguf(lp.quantize(normal(2, 32), "int8_channel/amax"))
    other = q.quantizer.format.model_copy(update={"block": (16,)})
    with pytest.raises(LowprecError, match="expected that of 'gguf_q4_0'"):
        layouts.to_gguf(replace(q, quantizer=q.quantizer.model_copy(update={"format": other})))


# ---------------------------------------------------------------------------- gpt-oss


def test_gpt_oss_reads_as_transformers_does():
    blocks, scales = random_bytes(3, 5, 4, 16), random_bytes(3, 5, 4, seed=1) % 255
    q = layouts.from_gpt_oss(blocks, scales)
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert same_bits(q.dequantize(), theirs.mT.contiguous())
    again = layouts.to_gpt_oss(q)
    assert torch.equal(again[0], blocks)
    assert torch.equal(again[1], scales)


def test_gpt_oss_writes_what_transformers_reads():
    q = lp.quantize(normal(2, 6, 64), "mxfp4/floor")
    blocks, scales = layouts.to_gpt_oss(q)
    assert blocks.shape == (2, 6, 2, 16)
    assert scales.shape == (2, 6, 2)
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert same_bits(q.dequantize(), theirs.mT.contiguous())
    assert same_codes(layouts.from_gpt_oss(blocks, scales), q)


def test_gpt_oss_refuses_what_it_is_not():
    with pytest.raises(LowprecError, match="expected that of 'mxfp4'"):
        layouts.to_gpt_oss(lp.quantize(normal(2, 64), "nvfp4/amax"))
    with pytest.raises(LowprecError, match="expected whole 32s"):
        layouts.to_gpt_oss(lp.quantize(normal(2, 40), "mxfp4/floor"))
    with pytest.raises(LowprecError, match="'float4_e2m1fn' is a scalar format"):
        layouts.to_gpt_oss(lp.quantize(normal(2, 64), "float4_e2m1fn"))
    with pytest.raises(LowprecError, match=r"expected torch.uint8 of \(2, 3, 16\)"):
        layouts.from_gpt_oss(random_bytes(2, 3, 8), random_bytes(2, 3))


# ---------------------------------------------------------------------------- compressed-tensors


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
    with pytest.raises(LowprecError, match="expected weight_packed, weight_scale"):
        layouts.from_mxfp4_pack_quantized({"weight_packed": state["weight_packed"]})
