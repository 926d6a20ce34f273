from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lowprec.eval.tensors import operand_errors, sqnr_db, tensor_error
from lowprec.kernels import fake_quantize, quantize
from lowprec.nn import coverage, unwrap, wrap
from lowprec.studies.accuracy import Watched
from tests.eval.tiny import tiny_llama

RECIPE = (
    "lm_head: keep; *.down_proj: weight=mxfp4/floor; "
    "*: weight=mxfp8_e4m3/floor activation=mxfp6_e2m3/floor; "
    "*: query=mxfp8_e4m3/rceil key=mxfp8_e4m3/rceil probability=bfloat16"
)


def test_the_ratio_is_of_powers() -> None:
    x = torch.tensor([3.0, 4.0])
    assert sqnr_db(x, torch.tensor([3.0, 3.5])) == pytest.approx(20.0)
    assert sqnr_db(x, x) == math.inf
    assert sqnr_db(torch.zeros(2), torch.ones(2)) == -math.inf
    assert math.isnan(sqnr_db(x, torch.tensor([3.0, math.nan])))
    assert math.isnan(sqnr_db(x, torch.tensor([3.0, math.inf])))


def test_measures_by_hand() -> None:
    # OCP's floor gives the block the scale 2^(floor(log2 7.9) - 2) = 1: E2M1 holds up to 6.
    x = torch.tensor([7.9, 3.0, -6.1, 0.2, 0.0, 6.0])
    found = tensor_error(x, quantize(x, "mxfp4/floor"))
    q = torch.tensor([6.0, 3.0, -6.0, 0.0, 0.0, 6.0])
    assert found.sqnr_db == pytest.approx(sqnr_db(x, q))
    assert found.max_error == pytest.approx(1.9)
    assert found.cosine == pytest.approx(torch.cosine_similarity(x, q, dim=0).item())
    assert (found.clipped, found.flushed) == (pytest.approx(2 / 6), pytest.approx(1 / 6))
    assert tensor_error(x, quantize(x, "mxfp4/rceil")).clipped == 0
    assert tensor_error(x, quantize(x, "mxfp4_plus/floor")).clipped is None


@pytest.mark.parametrize(
    "quantizer",
    [
        "float8_e4m3fn/amax:channel",
        "int8/amax:tensor",
        "uint4_zp_g32_float16/minmax",
        "nvint4/amax",
    ],
)
def test_scales_from_the_largest_clip_nearly_nothing(quantizer: str) -> None:
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    found = tensor_error(x, quantize(x, quantizer))
    assert found.clipped is not None
    assert found.clipped < 0.04  # where a rounded scale is below the one asked for


def test_clipped_is_what_lies_beyond_its_block() -> None:
    """By hand: E2M1 holds up to 6 times the scale, by the floor 2^(floor(log2 amax) - 2)."""
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    scale = 2.0 ** (x.abs().amax(dim=1, keepdim=True).log2().floor() - 2)
    outside = (x.abs() > 6 * scale).double().mean().item()
    assert outside > 0.005
    assert tensor_error(x, quantize(x, "mxfp4/floor")).clipped == outside
    # A scale that may be negative turns the codes' ends around: nothing is said.
    assert tensor_error(x, quantize(x, "gguf_q4_0/signed")).clipped is None


def test_each_operand_has_the_error_of_its_own_tensor() -> None:
    model, ids = tiny_llama(), torch.arange(24)[None]
    inputs: dict[str, torch.Tensor] = {}
    linears = {p: m for p, m in model.named_modules() if isinstance(m, nn.Linear)}
    hooks = [
        module.register_forward_pre_hook(lambda _m, args, p=path: inputs.update({p: args[0]}))
        for path, module in linears.items()
    ]
    with torch.inference_mode():
        before = model(input_ids=ids).logits
    for hook in hooks:
        hook.remove()
    wrap(model, RECIPE)
    with torch.inference_mode():
        quantized = model(input_ids=ids).logits
    rows = {(r["path"], r["operation"], r["operand"]): r for r in operand_errors(model, ids)}
    with torch.inference_mode():
        assert torch.equal(model(input_ids=ids).logits, quantized)
    assert not torch.equal(quantized, before)
    path = "model.layers.1.self_attn.o_proj"
    activation = rows[path, "linear", "activation"]
    expected = sqnr_db(inputs[path], fake_quantize(inputs[path], "mxfp6_e2m3/floor"))
    assert activation["sqnr_db"] == pytest.approx(expected)
    weight = linears[path].weight
    expected = sqnr_db(weight, fake_quantize(weight, "mxfp8_e4m3/floor"))
    assert rows[path, "linear", "weight"]["sqnr_db"] == pytest.approx(expected)
    assert rows["model.layers.0.mlp.down_proj", "linear", "weight"]["sqnr_db"] < 22 < expected
    quantized_inputs = {p for p, _, operand in rows if operand == "activation"}
    assert quantized_inputs == {p for p in linears if "down_proj" not in p} - {"lm_head"}
    attention = {operand for p, operation, operand in rows if operation == "attention"}
    assert attention == {"query", "key", "probability"}
    assert 0.99 < rows["model.layers.0.self_attn", "attention", "query"]["cosine"] < 1
    # The pass that is scored is the one that is watched: nothing of it changes.
    watched = Watched(model)
    with torch.inference_mode():
        assert torch.equal(watched(input_ids=ids, use_cache=False).logits, quantized)
    assert watched.coverage == coverage(model, input_ids=ids, use_cache=False)
    assert {(r["path"], r["operation"], r["operand"]): r for r in watched.errors} == rows
    unwrap(model)
    with torch.inference_mode():
        assert torch.equal(model(input_ids=ids).logits, before)
