"""Linear operations under a datapath: the kernels' bits, whatever the module."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

import lowprec as lp
from lowprec import LowprecError

FP8 = "float8_e4m3fn/amax:channel"
RECIPES = [
    f"*: weight={FP8} activation={FP8} datapath=hopper_fp8",
    "*: weight=mxfp4/floor activation=mxfp4/floor datapath=blackwell_mxf4",
    "*: weight=bfloat16 activation=bfloat16 datapath=ampere_bf16",
]


def explicit(recipe: str, x: Tensor, weight: Tensor) -> Tensor:
    rule = lp.recipe(recipe).rules[0]
    return lp.matmul(x, weight, a=rule.activation, w=rule.weight, datapath=rule.datapath)


@pytest.fixture
def operands() -> tuple[Tensor, nn.Linear]:
    torch.manual_seed(0)
    return torch.randn(2, 5, 64), nn.Linear(64, 32)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("mode", ["eager", "learning", "compiled"])
def test_linear_is_the_kernels_product(operands, recipe: str, mode: str) -> None:
    x, linear = operands
    expected = explicit(recipe, x, linear.weight.detach()) + linear.bias.detach()
    model = lp.wrap(nn.Sequential(linear), recipe)
    run = torch.compile(model, backend="eager", fullgraph=True) if mode == "compiled" else model
    with torch.set_grad_enabled(mode == "learning"):
        assert torch.equal(run(x), expected)
        assert torch.equal(run(x), expected)  # with the codes kept


def test_gradients_are_those_of_the_quantized_operands(operands) -> None:
    x, linear = operands
    x.requires_grad_()
    upstream = torch.randn(2, 5, 32)
    lp.wrap(nn.Sequential(linear), RECIPES[0])(x).backward(upstream)
    xq = lp.fake_quantize(x.detach(), FP8)
    w = lp.fake_quantize(linear.weight.detach(), FP8)
    assert torch.equal(x.grad, upstream @ w)
    expected = upstream.flatten(0, 1).T @ xq.flatten(0, 1)
    torch.testing.assert_close(linear.weight.grad, expected)
    assert torch.equal(linear.bias.grad, upstream.sum((0, 1)))


def test_a_weight_of_either_side_and_as_columns() -> None:
    torch.manual_seed(0)

    class Sides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(32, 64))

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return x @ self.weight.T, self.weight @ x.T, x[0] @ self.weight.T, self.weight @ x[0]

    x = torch.randn(5, 64)
    module = Sides()
    y = explicit(RECIPES[0], x, module.weight.detach())
    first = explicit(RECIPES[0], x[:1], module.weight.detach())[0]
    right, left, row, column = lp.wrap(module, RECIPES[0])(x)
    assert torch.equal(right, y)
    assert torch.equal(left, y.T)
    assert torch.equal(row, first)
    assert torch.equal(column, first)
    conv = Conv1D(32, 64)
    expected = explicit(RECIPES[0], x, conv.weight.detach().T) + conv.bias.detach()
    assert torch.equal(lp.wrap(nn.Sequential(conv), RECIPES[0])(x), expected)


def test_experts_are_multiplied_each_by_its_own() -> None:
    torch.manual_seed(0)

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Parameter(torch.randn(3, 32, 64))

        def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
            return F.grouped_mm(x, self.up.mT, offs=offsets)

    x, offsets = torch.randn(12, 64), torch.tensor([4, 4, 12], dtype=torch.int32)
    model = Experts()
    w = model.up.detach()
    expected = torch.cat([explicit(RECIPES[0], x[:4], w[0]), explicit(RECIPES[0], x[4:], w[2])])
    lp.wrap(model, RECIPES[0])
    with torch.no_grad():
        assert torch.equal(model(x, offsets), expected)
    [entry] = lp.coverage(model, x, offsets).entries
    assert (entry.flops, entry.datapath) == (2 * 12 * 64 * 32, "hopper_fp8")


def test_a_rotation_comes_first(operands) -> None:
    x, linear = operands
    model = lp.wrap(nn.Sequential(linear), f"{RECIPES[1]} transform.rotation=32")
    close = F.linear(x, linear.weight, linear.bias)
    plain = explicit(RECIPES[1], x, linear.weight.detach()) + linear.bias
    with torch.no_grad():
        assert not torch.equal(model(x), plain)
        assert (model(x) - close).abs().max() < 1.5


def test_what_a_datapath_does_not_take_is_named(operands) -> None:
    x, linear = operands
    model = lp.wrap(
        nn.Sequential(linear), f"*: weight={FP8} activation=bfloat16 datapath=hopper_fp8"
    )
    with pytest.raises(LowprecError, match=r"^0: .*hopper_fp8"):
        model(x)
