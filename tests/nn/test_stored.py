"""Modules whose weights stay codes."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowprec as lp
from lowprec.errors import LowprecError
from lowprec.nn.stored import codes as codes_module
from lowprec.nn.stored.codes import Codes
from lowprec.nn.stored.modules import Activation, StoredEmbedding, StoredExperts, StoredLinear
from lowprec.spec import load_quantizer

QUANTIZERS = (
    "mxfp4/rceil", "nvfp4/amax", "float8_e4m3fn_128x128/amax", "float8_e4m3fn/amax:channel",
    "int4/amax:tensor", "int4_g32_float16/amax", "uint4_zp_g32_float16/minmax", "mx9/floor",
    "gguf_q4_1/minmax", "gguf_q4_k/minmax", "gguf_q3_k/amax", "hif4/amax", "vsquant_int4_s4/amax",
    "mxfp4_plus/floor", "float6_e2m3fn", "float4_e2m1fn",
)  # fmt: skip


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(300, 256), (37, 33), (1, 7)])
@pytest.mark.parametrize("text", QUANTIZERS)
def test_values_whole_in_tiles_and_by_row(
    text: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    q = lp.quantize(normal(*shape), text)
    expected, codes = q.dequantize(), Codes(q)
    index = torch.arange(400).reshape(2, 200) * 7 % shape[0]
    for tile in (1 << 20, 1 << 12, 1):
        monkeypatch.setattr(codes_module, "TILE", tile)
        assert torch.equal(codes.dequantize(), expected)
    assert torch.equal(codes.rows(index), expected[index])
    assert codes.nbytes == q.pack().nbytes == sum(b.nbytes for b in codes.state_dict().values())


def test_linear_is_the_product_with_its_values() -> None:
    q, x, bias = lp.quantize(normal(48, 64), "mxfp4/rceil"), normal(2, 5, 64, seed=1), normal(48)
    linear = StoredLinear.from_codes(Codes(q), bias)
    assert torch.equal(linear(x), F.linear(x, q.dequantize(), bias))
    assert torch.equal(linear.weight, q.dequantize())
    assert linear.quantizer == q.quantizer
    assert linear.nbytes == 48 * 64 * 17 // 32
    assert isinstance(linear, nn.Linear)
    assert "bias=True" in repr(linear)
    half = copy.deepcopy(linear).to(torch.bfloat16)
    assert half.weight.dtype == half(x.bfloat16()).dtype == torch.bfloat16
    assert torch.equal(half.weight, q.dequantize(torch.bfloat16))
    assert torch.equal(linear.weight, q.dequantize())


def test_gradient_of_the_input() -> None:
    q, x = lp.quantize(normal(48, 64), "nvfp4/amax"), normal(5, 64, seed=1).requires_grad_()
    StoredLinear.from_codes(Codes(q))(x).sum().backward()
    assert torch.equal(x.grad, torch.ones(5, 48) @ q.dequantize())


@pytest.mark.parametrize(
    ("text", "scale"),
    [
        ("float8_e4m3fn/amax:channel", None),
        ("float8_e4m3fn/static:tensor", 0.01),
        ("int8/static:tensor", 0.03),
        ("nvfp4/static", 1e-3),
    ],
)
def test_quantized_inputs(text: str, scale: float | None) -> None:
    q, x = lp.quantize(normal(48, 64), "mxfp4/rceil"), normal(2, 5, 64, seed=1)
    given = None if scale is None else torch.tensor(scale)
    linear = StoredLinear.from_codes(Codes(q), activation=Activation(load_quantizer(text), given))
    shaped = given if given is None or "nvfp4" in text else given.reshape(1, 1, 1)
    expected = F.linear(lp.fake_quantize(x, text, scale=shaped), q.dequantize())
    assert torch.equal(linear(x), expected)
    # The scale is the file's, whatever dtype the model is turned to.
    assert torch.equal(copy.deepcopy(linear).bfloat16().float()(x), expected)
    linear.activation = None
    assert torch.equal(linear(x), F.linear(x, q.dequantize()))


def test_state_dict_round_trip() -> None:
    texts = ("nvfp4/amax", "gguf_q4_k/minmax", "mx9/floor")
    for text in texts:
        a, b = (Codes(lp.quantize(normal(32, 256, seed=i), text)) for i in range(2))
        b.load_state_dict(a.state_dict())
        assert torch.equal(a.dequantize(), b.dequantize())


class Scaled(nn.Embedding):
    """As Gemma's: something of its own around what it extends."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


def test_embeddings_and_their_subclasses() -> None:
    q, ids = lp.quantize(normal(40, 64), "gguf_q8_0/amax"), torch.tensor([[3, 39, 3]])
    plain = StoredEmbedding.adopt(nn.Embedding(40, 64, device="meta"), Codes(q))
    scaled = StoredEmbedding.adopt(Scaled(40, 64, device="meta"), Codes(q))
    assert torch.equal(plain(ids), q.dequantize()[ids])
    assert torch.equal(scaled(ids), q.dequantize()[ids] * 2)
    assert isinstance(scaled, Scaled)
    with pytest.raises(LowprecError, match="row 40: expected 0 to 39"):
        plain(torch.tensor([40]))
    with pytest.raises(LowprecError, match="max_norm"):
        StoredEmbedding.adopt(nn.Embedding(40, 64, max_norm=1.0, device="meta"), Codes(q))


def test_experts() -> None:
    weights = normal(3, 2, 32, 64)
    codes = [[Codes(lp.quantize(w, "mxfp4/rceil")) for w in parts] for parts in weights]
    values = lp.fake_quantize(weights, "mxfp4/rceil").reshape(3, 64, 64)
    experts, turned = StoredExperts(codes), StoredExperts(codes, transposed=True)
    assert experts.shape == (3, 64, 64)
    assert len(experts) == 3
    assert torch.equal(experts[torch.tensor(1)], values[1])
    assert torch.equal(turned[2], values[2].T)
    assert torch.equal(experts.weight, values)
    assert experts.nbytes == 3 * 64 * 64 * 17 // 32


def test_on_the_meta_device_there_are_shapes() -> None:
    activation = Activation(load_quantizer("float8_e4m3fn/amax:channel"))
    linear = StoredLinear.from_codes(
        Codes(lp.quantize(normal(48, 64), "mxfp4/rceil")), activation=activation
    ).to("meta")
    y = linear(torch.empty(2, 64, device="meta"))
    assert (y.shape, y.is_meta) == ((2, 48), True)
    embedding = StoredEmbedding.adopt(
        nn.Embedding(48, 64, device="meta"), Codes(lp.quantize(normal(48, 64), "mxfp4/rceil"))
    ).to("meta")
    assert embedding(torch.zeros(2, 3, dtype=torch.long, device="meta")).shape == (2, 3, 64)


def test_what_does_not_fit() -> None:
    with pytest.raises(LowprecError, match="expected a matrix"):
        Codes(lp.quantize(normal(2, 32, 64), "mxfp4/rceil"))
    with pytest.raises(LowprecError, match="along axis -2"):
        Codes(lp.quantize(normal(32, 64), "mxfp4/rceil", axis=0))
    codes = Codes(lp.quantize(normal(32, 64), "mxfp4/rceil"))
    with pytest.raises(LowprecError, match=r"codes of shape \(32, 64\) for a weight of \(64, 32\)"):
        StoredLinear.adopt(nn.Linear(32, 64), codes)


def test_a_recipe_reaches_it_and_takes_the_place_of_its_own_activation() -> None:
    torch.manual_seed(0)
    q = lp.quantize(torch.randn(8, 64), "mxfp4/floor")
    own = Activation(load_quantizer("mxfp8_e4m3/floor"))
    model = nn.Sequential(StoredLinear.from_codes(Codes(q), activation=own))
    x = torch.randn(3, 64)
    before = model(x)
    assert torch.equal(before, F.linear(lp.fake_quantize(x, own.quantizer), q.dequantize()))
    lp.wrap(model, "*: activation=mxint8/floor")
    assert torch.equal(model(x), F.linear(lp.fake_quantize(x, "mxint8/floor"), q.dequantize()))
    assert lp.coverage(model, x).share == 1
    assert torch.equal(lp.unwrap(model)(x), before)
