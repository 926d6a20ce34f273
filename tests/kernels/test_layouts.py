"""Bytes of the layouts against the libraries that they come from."""

from __future__ import annotations

import warnings
from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import lowprec as lp
from lowprec.errors import LowprecError
from lowprec.kernels import layouts
from lowprec.kernels.layouts.gguf import LAYOUTS
from tests.kernels.compare import normal, random_bytes, same_bits, same_codes

with warnings.catch_warnings():  # it warns of its own optional parts
    warnings.simplefilter("ignore")
    from torchao.prototype.mx_formats.utils import from_blocked, to_blocked


# NVIDIA, 128 x 4


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


# GGUF


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
    with pytest.raises(LowprecError, match="expected rank 1 or more"):
        layouts.from_gguf(random_bytes(18), "gguf_q4_0", ())
    with pytest.raises(LowprecError, match="expected whole 32s"):
        layouts.from_gguf(random_bytes(7, 18), "gguf_q4_0", (7, 48))
    with pytest.raises(LowprecError, match="expected the last, -1"):
        layouts.to_gguf(replace(q, axis=-2))
    with pytest.raises(LowprecError, match="unknown GGUF format 'int8_channel'"):
        layouts.to_gguf(lp.quantize(normal(2, 32), "int8_channel/amax"))
    other = q.quantizer.format.model_copy(update={"block": (16,)})
    with pytest.raises(LowprecError, match="expected that of 'gguf_q4_0'"):
        layouts.to_gguf(replace(q, quantizer=q.quantizer.model_copy(update={"format": other})))


# gpt-oss


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
    with pytest.raises(LowprecError, match="expected rank 1 or more"):
        layouts.from_gpt_oss(random_bytes(16), torch.tensor(1, dtype=torch.uint8))
    with pytest.raises(LowprecError, match=r"expected torch.uint8 of \(2, 3, 16\)"):
        layouts.from_gpt_oss(random_bytes(2, 3, 8), random_bytes(2, 3))
