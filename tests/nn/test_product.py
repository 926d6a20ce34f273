"""Exact products on bfloat16 units: when they are taken, and that nothing is lost then."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowprec as lp
from lowprec.kernels import decode
from lowprec.nn.operations import matmul, product
from lowprec.nn.operations.product import fits_bfloat16, has_bfloat16_units, smallest

EXACT = [
    "mxfp8_e4m3/floor", "mxfp8_e5m2/rceil", "mxfp6_e2m3/ceil", "mxfp6_e3m2/even", "mxfp4/floor",
    "mxint8/floor", "bfloat16", "float8_e4m3fn", "int8", "float4_e2m1fn",
]  # fmt: skip
INEXACT = ["nvfp4/amax", "float8_e4m3fn/amax:tensor", "int8/amax:channel", "float16", "float32"]


@pytest.mark.parametrize("text", EXACT)
def test_every_value_that_fits_is_a_bfloat16_value(text: str) -> None:
    quantizer = lp.quantizer(text)
    assert fits_bfloat16(quantizer)
    fmt = getattr(quantizer.format, "element", quantizer.format)
    values = decode(torch.arange(1 << fmt.bits), fmt)
    values = torch.cat([values * 2.0**k for k in (-100, -3, 0, 60)])
    normal = values[values.abs() >= 2.0**-126]
    assert torch.equal(normal.bfloat16().float(), normal)
    # Two factors of 8 bits have a product of 16, and float32 has 24.
    some = normal[normal.isfinite()][:512].double()
    products = some[:, None] * some[None, :]
    kept = (products.abs() >= 2.0**-126) & (products.abs() < 2.0**128)
    assert torch.equal(products[kept].float().double(), products[kept])


@pytest.mark.parametrize("text", INEXACT)
def test_what_does_not_fit(text: str) -> None:
    assert not fits_bfloat16(lp.quantizer(text))


def test_no_quantizer_does_not_fit() -> None:
    assert not fits_bfloat16(None)


def test_smallest() -> None:
    assert smallest(torch.tensor([0.0, -0.0, -3.0, 2.0])) == 2.0
    assert smallest(torch.tensor([1e-45, 1.0])) == pytest.approx(1.4e-45)
    assert smallest(torch.tensor([0.0])) == math.inf
    assert smallest(torch.tensor([])) == math.inf
    assert smallest(torch.tensor([math.nan, -math.inf])) == math.inf


@pytest.mark.parametrize(
    ("recipe", "scale", "taken"),
    [
        ("mxfp8_e4m3/floor", 1.0, True),
        ("mxfp8_e4m3/floor", 2.0**-70, False),  # products below 2^-126
        ("nvfp4/amax", 1.0, False),
        ("*: weight=mxfp4/floor", 1.0, False),
    ],
)
def test_when_they_are_taken(
    recipe: str, scale: float, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = lp.wrap(nn.Sequential(nn.Linear(64, 32)), recipe)
    model[0].weight.requires_grad_(False).mul_(scale)
    x = torch.randn(8, 64) * scale
    wanted = model(x)
    settings = []
    monkeypatch.setattr(product, "has_bfloat16_units", lambda: True)
    multiply = F.linear
    monkeypatch.setattr(
        matmul.F, "linear", lambda *args: settings.append(_setting()) or multiply(*args)
    )
    before = _setting()
    got = model(x)
    assert settings[-1] == ("bf16" if taken else before)  # the module's own call comes first
    assert _setting() == before
    error = (got - wanted).abs().max() / wanted.abs().max()
    assert error < 1e-5  # two orders of the same float32 sum, or none where there are no units
    assert has_bfloat16_units() or torch.equal(got, wanted)


def _setting() -> str:
    return torch.backends.mkldnn.matmul.fp32_precision


@pytest.mark.skipif(not has_bfloat16_units(), reason="this processor has no bfloat16 units")
def test_the_units_lose_nothing() -> None:
    torch.manual_seed(0)
    x = lp.fake_quantize(torch.randn(256, 1024), "mxfp8_e4m3/floor")
    w = lp.fake_quantize(torch.randn(512, 1024), "mxfp4/floor")
    exact = x.double() @ w.double().T
    with product.bfloat16_products():
        fast = x @ w.T
    bound = 1024 * 2.0**-24 * (x.abs().double() @ w.abs().double().T)
    assert ((fast.double() - exact).abs() <= bound).all()
