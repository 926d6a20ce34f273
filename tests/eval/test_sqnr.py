from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lowprec.eval.sqnr import activation_sqnr, sqnr_db, weight_sqnr
from lowprec.kernels import fake_quantize
from lowprec.nn import unwrap, wrap
from lowprec.spec import load_recipe
from tests.eval.tiny import tiny_llama

RECIPE = (
    "lm_head: keep; *.down_proj: weight=mxfp4/floor; "
    "*: weight=mxfp8_e4m3/floor activation=mxfp6_e2m3/floor"
)


def test_the_ratio_is_of_powers() -> None:
    x = torch.tensor([3.0, 4.0])
    assert sqnr_db(x, torch.tensor([3.0, 3.5])) == pytest.approx(20.0)
    assert sqnr_db(x, x) == math.inf
    assert sqnr_db(torch.zeros(2), torch.ones(2)) == -math.inf
    assert math.isnan(sqnr_db(x, torch.tensor([3.0, math.nan])))


def test_each_operand_has_the_ratio_of_its_own_tensor() -> None:
    model, ids = tiny_llama(), torch.arange(24)[None]
    inputs: dict[str, torch.Tensor] = {}
    hooks = [
        module.register_forward_pre_hook(lambda _m, args, p=path: inputs.update({p: args[0]}))
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    with torch.inference_mode():
        before = model(input_ids=ids).logits
    for hook in hooks:
        hook.remove()
    activations = activation_sqnr(model, load_recipe(RECIPE), ids)
    linears = {p for p, m in model.named_modules() if isinstance(m, nn.Linear)} - {"lm_head"}
    assert set(activations) == {path for path in linears if "down_proj" not in path}
    path = "model.layers.1.self_attn.o_proj"
    x = inputs[path].double()
    noise = x - fake_quantize(inputs[path], "mxfp6_e2m3/floor").double()
    expected = 10 * torch.log10(x.square().sum() / noise.square().sum())
    assert activations[path] == pytest.approx(float(expected))
    weights = weight_sqnr(wrap(model, RECIPE))
    unwrap(model)
    assert set(weights) == linears
    assert weights["model.layers.0.mlp.down_proj"] < 22 < weights[path]
    with torch.inference_mode():
        assert torch.equal(model(input_ids=ids).logits, before)
