"""GPTQ: the algorithm against its definition, and that it helps."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from lowprec import LowprecError, calibrate, fake_quantize, quantize, quantizer, wrap
from lowprec.kernels.fixed import fixed
from lowprec.nn.calibration.gptq import Rounded, fingerprint, gptq, place, with_codes
from lowprec.nn.emulation import sites_of

FORMATS = [
    "mxfp4/floor",
    "nvfp4/amax",
    "int4/amax:channel",
    "int4/mse:32",
    "float8_e4m3fn/amax:tensor",
    "mx4/floor",
    "mxfp4_plus/floor",
    "uint4_zp_g32_float16/minmax",
    "gguf_q4_k/minmax",
    "float4_e2m1fn",
]


def correlated(rows: int, columns: int, seed: int = 0) -> Tensor:
    """Rows whose columns depend on each other and differ in size, as activations do."""
    g = torch.Generator().manual_seed(seed)
    few = torch.randn(rows, columns // 4, generator=g)
    mix = torch.randn(columns // 4, columns, generator=g)
    sizes = torch.rand(columns, generator=g).mul(2).exp()
    return (few @ mix + 0.3 * torch.randn(rows, columns, generator=g)) * sizes


def values(weight: Tensor, codes: Tensor, text: str) -> Tensor:
    q = with_codes(weight, weight, Rounded(codes, fingerprint(weight)), quantizer(text), -1)
    return q.dequantize(weight.dtype)


@pytest.mark.parametrize("text", FORMATS)
def test_columns_round_as_quantize_does_where_nothing_is_corrected(text):
    torch.manual_seed(0)
    x, spec = torch.randn(8, 256 + 5), quantizer(text)
    grid = fixed(x, spec)
    parts = [grid.column(x[:, j], j) for j in range(x.shape[1])]
    found = torch.stack([value for _, value in parts], 1)
    assert torch.equal(found.view(torch.int32), fake_quantize(x, spec).view(torch.int32))
    elements = torch.stack([element for element, _ in parts], 1)
    assert torch.equal(grid.codes(elements), quantize(x, spec).codes)


@pytest.mark.parametrize("text", FORMATS)
def test_inputs_without_correlation_round_to_nearest(text):
    torch.manual_seed(0)
    weight = torch.randn(8, 64)
    codes = gptq(weight, torch.diag(torch.rand(64) + 0.5), quantizer(text), 0.01)
    assert torch.equal(codes, quantize(weight, text).codes)


@pytest.mark.parametrize("text", FORMATS)
def test_the_output_is_nearer_than_with_rounding_to_nearest(text):
    torch.manual_seed(0)
    weight, x = torch.randn(32, 96), correlated(512, 96)
    found = values(weight, gptq(weight, x.T @ x, quantizer(text), 0.01), text)
    error = (x @ (found - weight).T).norm()
    nearest = (x @ (fake_quantize(weight, text) - weight).T).norm()
    assert error < 0.9 * nearest


def naive(weight: Tensor, hessian: Tensor, text: str, damping: float) -> Tensor:
    """Optimal Brain Quantization in the columns' own order, as it is defined: with every column
    rounded, those that are left minimise the remaining error exactly."""
    h = hessian + damping * hessian.diagonal().mean() * torch.eye(len(hessian), dtype=weight.dtype)
    grid, w, found = fixed(weight, quantizer(text)), weight.clone(), []
    for j in range(w.shape[1]):
        element, value = grid.column(w[:, j], j)
        found.append(element)
        inverse = torch.linalg.inv(h[j:, j:])
        w[:, j:] -= torch.outer((w[:, j] - value) / inverse[0, 0], inverse[0])
    return grid.codes(torch.stack(found, 1))


@pytest.mark.parametrize("text", ["nvfp4/amax", "int4/amax:32"])
@pytest.mark.parametrize("columns", [40, 150])
def test_it_is_optimal_brain_quantization_in_order(text, columns):
    torch.manual_seed(0)
    weight, x = torch.randn(6, columns).double(), correlated(400, columns).double()
    expected = naive(weight, x.T @ x, text, 0.05)
    assert torch.equal(gptq(weight, x.T @ x, quantizer(text), 0.05), expected)


def test_a_channel_that_is_always_zero_rounds_to_nearest():
    torch.manual_seed(0)
    weight, x = torch.randn(8, 64), correlated(256, 64)
    x[:, 5] = 0
    codes = gptq(weight, x.T @ x, quantizer("int4/amax:channel"), 0.01)
    assert torch.equal(codes[:, 5], quantize(weight, "int4/amax:channel").codes[:, 5])


def test_a_hessian_that_is_none_is_refused():
    weight = torch.randn(4, 8)
    for bad in (torch.full((8, 8), torch.nan), -torch.eye(8)):
        with pytest.raises(LowprecError, match="up_proj: the Hessian is not positive definite"):
            gptq(weight, bad, quantizer("int4/amax:channel"), 0.01, where="up_proj")


def linear(recipe: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(96, 40)), correlated(256, 96)
    wrap(model, recipe)
    calibrate(model, [x[:128], x[128:]])
    return model, x


def test_a_layer_uses_the_codes_under_the_hessian_of_all_batches():
    text = "nvfp4/amax"
    model, x = linear(f"*: weight={text} transform.gptq transform.damping=0.02")
    weight = model[0].weight.detach()
    hessian = x[:128].T @ x[:128] + x[128:].T @ x[128:]
    expected = values(weight, gptq(weight, hessian, quantizer(text), 0.02), text)
    with torch.no_grad():
        y = model(x)
    assert torch.equal(y, nn.functional.linear(x, expected, model[0].bias))
    # While gradients are asked of it, and in a copy, the same values.
    assert torch.equal(model(x), y)
    assert torch.equal(copy.deepcopy(model)(x), y)


def test_gradients_pass_straight_through():
    model, x = linear("*: weight=nvfp4/amax transform.gptq")
    upstream = torch.randn(256, 40)
    model(x).backward(upstream)
    torch.testing.assert_close(model[0].weight.grad, upstream.T @ x)


def test_under_torch_compile_the_values_are_the_same():
    model, x = linear("*: weight=nvfp4/amax transform.gptq")
    with torch.no_grad():
        expected = model(x)
        found = torch.compile(model, fullgraph=True, backend="eager")(x)
    assert torch.equal(found, expected)


def test_a_weight_that_has_changed_is_refused():
    model, x = linear("*: weight=nvfp4/amax transform.gptq")
    with torch.no_grad():
        model[0].weight[3, 4] += 1
        with pytest.raises(LowprecError, match=r"changed since gptq.*lowprec\.calibrate"):
            model(x)


def test_the_hessian_is_that_of_the_transformed_activation():
    text = "mxfp4/floor"
    plain, x = linear(f"*: weight={text} transform.gptq")
    both, _ = linear(f"*: weight={text} transform.gptq transform.rotation=32")
    alone, _ = linear(f"*: weight={text} transform.rotation=32")
    with torch.no_grad():
        y = nn.functional.linear(x, plain[0].weight, plain[0].bias)
        error = {name: (m(x) - y).norm() for name, m in {"both": both, "alone": alone}.items()}
    assert error["both"] < 0.8 * error["alone"]


@pytest.mark.parametrize("family", ["qwen3-moe", "mixtral"])
def test_each_expert_has_its_own_codes(build, ids, family):
    model = build(family)
    model.set_experts_implementation("eager")
    recipe = "*.layers.0.*experts*: weight=int4/amax:channel transform.gptq"
    wrap(model, recipe)
    calibrate(model, [torch.randint(3, 96, (8, 64), generator=torch.Generator().manual_seed(2))])
    experts = model.model.layers[0].mlp.experts
    sites = [site for name, _, site in sites_of(experts).named() if name != "weight"]
    assert len(sites) == 2
    for site in sites:
        assert len(site.transform.rounded) == experts.num_experts
    with torch.no_grad():
        assert model(ids).logits.isfinite().all()
    assert [place(w) for w in experts.down_proj] == list(range(experts.num_experts))


def test_rows_of_grouped_experts_are_nobodys(build):
    model = build("mixtral")
    model.set_experts_implementation("grouped_mm")
    wrap(model, "*.experts*: weight=int4/amax:channel transform.gptq")
    with pytest.raises(LowprecError, match=r"set_experts_implementation\('eager'\)"):
        calibrate(model, [torch.randint(3, 96, (2, 16))])
