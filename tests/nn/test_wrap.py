"""Wrapped modules: the right bits, and nothing else changed."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

from lowprec import LowprecError, unwrap, wrap
from lowprec.kernels import fake_quantize
from lowprec.nn import Emulated
from lowprec.nn.emulation import sites_of
from lowprec.nn.site import Site

FAMILIES = ["llama", "llama-tied", "gpt2", "qwen3-moe", "mixtral"]
W4A8 = "lm_head: keep; *: weight=mxfp4/floor activation=mxfp8_e4m3/floor"


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(torch.int32)


def logits(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(ids).logits


def quantized(model: nn.Module) -> dict[str, Emulated]:
    return {path: m for path, m in model.named_modules() if isinstance(m, Emulated)}


def site(module: nn.Module) -> Site:
    found = sites_of(module).get("linear")
    assert found is not None
    return found


def quantized_weight(module: nn.Module, axis: int = -1) -> torch.Tensor:
    with torch.no_grad():
        return site(module).weight(module.weight, axis)


@pytest.mark.parametrize("family", FAMILIES)
def test_keep_changes_no_bit_of_the_output(build, ids, family):
    model = build(family)
    before = logits(model, ids)
    wrap(model, "*: keep")
    assert not quantized(model)
    assert torch.equal(bits(logits(model, ids)), bits(before))


@pytest.mark.parametrize("family", FAMILIES)
def test_wrap_changes_the_output_and_unwrap_restores_every_bit_and_object(build, ids, family):
    model = build(family)
    before = logits(model, ids)
    modules = {path: (m, type(m), set(vars(m))) for path, m in model.named_modules()}
    state = {name: (t, t.clone()) for name, t in model.state_dict(keep_vars=True).items()}
    assert wrap(model, W4A8) is model
    assert quantized(model)
    assert not torch.equal(logits(model, ids), before)
    assert unwrap(model) is model
    assert not quantized(model)
    assert torch.equal(bits(logits(model, ids)), bits(before))
    after = {path: (m, type(m), set(vars(m))) for path, m in model.named_modules()}
    assert after.keys() == modules.keys()
    for path, (module, kind, attributes) in after.items():
        was, kind_before, attributes_before = modules[path]
        assert module is was
        assert kind is kind_before
        assert attributes == attributes_before
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert tensor is state[name][0]
        assert torch.equal(bits(tensor), bits(state[name][1]))


@pytest.mark.parametrize(
    "recipe",
    [
        "mxfp4/floor",
        "*: weight=nvfp4/amax",
        "*: activation=float8_e4m3fn/amax:tensor",
        "*: weight=int8/amax:channel activation=mxint8/floor",
    ],
)
def test_linear_equals_the_explicit_reference(recipe):
    torch.manual_seed(0)
    linear = nn.Linear(96, 40)
    x = torch.randn(3, 7, 96)
    rule = site(wrap(nn.Sequential(linear), recipe)[0]).rule
    w = fake_quantize(linear.weight.detach(), rule.weight) if rule.weight else linear.weight
    xq = fake_quantize(x, rule.activation) if rule.activation else x
    assert isinstance(linear, nn.Linear)
    assert (linear.in_features, linear.out_features) == (96, 40)
    assert torch.equal(bits(quantized_weight(linear)), bits(w))
    assert torch.equal(bits(linear(x)), bits(F.linear(xq, w, linear.bias)))


def test_conv1d_is_blocked_along_its_own_axis_k():
    torch.manual_seed(0)
    conv = Conv1D(40, 96)  # weight of shape (K, N) = (96, 40)
    nn.init.normal_(conv.bias)
    x = torch.randn(2, 5, 96)
    rule = site(wrap(nn.Sequential(conv), "mxfp4/floor")[0]).rule
    w_nk = fake_quantize(conv.weight.detach().T.contiguous(), rule.weight)
    assert torch.equal(bits(quantized_weight(conv, 0).contiguous()), bits(w_nk.T.contiguous()))
    expected = torch.addmm(conv.bias, fake_quantize(x, rule.activation).view(-1, 96), w_nk.T)
    torch.testing.assert_close(conv(x), expected.view(2, 5, 40), rtol=1e-6, atol=1e-6)


def test_the_model_equals_one_with_operands_quantized_by_hooks(build, ids):
    model, plain = build("llama"), build("llama")
    wrap(model, W4A8)
    rule = site(model.model.layers[0].mlp.up_proj).rule
    for path, module in plain.named_modules():
        if type(module) is nn.Linear and path != "lm_head":
            module.weight.data = fake_quantize(module.weight.data, rule.weight)
            module.register_forward_pre_hook(
                lambda _, args: (fake_quantize(args[0], rule.activation),)
            )
    assert torch.equal(bits(logits(model, ids)), bits(logits(plain, ids)))


def test_the_first_rule_that_matches_wins(build):
    model = wrap(
        build("llama"), "*.down_proj: keep; *.mlp.*: weight=mxfp4/floor; *: activation=mxint8/floor"
    )
    mlp, attention = model.model.layers[1].mlp, model.model.layers[1].self_attn
    assert type(mlp.down_proj) is nn.Linear
    assert site(mlp.up_proj).rule.weight.format.name == "mxfp4"
    assert site(mlp.up_proj).rule.activation is None
    assert site(attention.q_proj).rule.activation.format.name == "mxint8"


def test_gradients_pass_straight_through():
    torch.manual_seed(0)
    linear = nn.Linear(64, 32)
    x = torch.randn(5, 64, requires_grad=True)
    upstream = torch.randn(5, 32)
    rule = site(wrap(nn.Sequential(linear), "mxfp8_e4m3/floor")[0]).rule
    linear(x).backward(upstream)
    w = fake_quantize(linear.weight.detach(), rule.weight)
    xq = fake_quantize(x.detach(), rule.activation)
    assert torch.equal(x.grad, upstream @ w)
    torch.testing.assert_close(linear.weight.grad, upstream.T @ xq, rtol=1e-6, atol=1e-6)
    assert torch.equal(linear.bias.grad, upstream.sum(0))


@pytest.mark.parametrize("rule", ["floor", "mse"])  # made at every call, and kept as codes
def test_the_quantized_weight_follows_the_parameter(rule):
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Linear(64, 32)), f"*: weight=mxfp4/{rule}")
    linear = model[0]

    def current() -> bool:
        expected = fake_quantize(linear.weight.detach(), site(linear).rule.weight)
        return torch.equal(bits(quantized_weight(linear)), bits(expected))

    first = quantized_weight(linear)
    linear(torch.randn(2, 64)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert current()
    assert not torch.equal(quantized_weight(linear), first)
    model.load_state_dict({name: t * 3 for name, t in model.state_dict().items()})
    assert current()
    model.bfloat16()
    assert quantized_weight(linear).dtype == torch.bfloat16


def test_layers_that_read_one_tensor_quantize_it_once(monkeypatch):
    """As q, k and v do; what changed it in between is seen, and another rule is another result."""
    torch.manual_seed(0)
    model = nn.ModuleDict({name: nn.Linear(64, 32, bias=False) for name in "qkvo"})
    plain = copy.deepcopy(model)
    wrap(
        model,
        "o: weight=mxfp4/floor activation=mxfp4/floor; *: weight=nvfp4/amax activation=nvfp4/amax",
    )
    shapes = []

    def counted(x, *args, **kwargs):
        shapes.append(tuple(x.shape))
        return fake_quantize(x, *args, **kwargs)

    monkeypatch.setattr("lowprec.nn.site.fake_quantize", counted)

    def expected(name, x):
        fmt = "mxfp4/floor" if name == "o" else "nvfp4/amax"
        return fake_quantize(x, fmt) @ fake_quantize(plain[name].weight.detach(), fmt).T

    x = torch.randn(5, 64)
    with torch.no_grad():
        for name in "qkv":
            assert torch.equal(model[name](x), expected(name, x))
        assert shapes == [(5, 64)]
        assert torch.equal(model["o"](x), expected("o", x))
        x.mul_(3)
        assert torch.equal(model["o"](x), expected("o", x))
        assert torch.equal(model["q"](x[:2]), expected("q", x[:2]))
    assert shapes == [(5, 64)] * 3 + [(2, 64)]
    x.requires_grad_()
    assert model["q"](x).requires_grad


# Kept as codes, and by its largest magnitude.
KEPT = pytest.mark.parametrize("name", ["mxfp4/mse", "nvfp4/amax"])


@KEPT
def test_a_changed_weight_is_quantized_again(name):
    torch.manual_seed(0)
    linear = nn.Linear(64, 32)
    wrap(nn.Sequential(linear), f"*: weight={name}")
    for change in (lambda w: w.mul_(3), lambda w: w[5].fill_(100), lambda w: w.zero_()):
        with torch.no_grad():
            first = quantized_weight(linear)
            assert torch.equal(bits(quantized_weight(linear)), bits(first))
            change(linear.weight)
            expected = fake_quantize(linear.weight.detach(), name)
            assert torch.equal(bits(quantized_weight(linear)), bits(expected))
            assert not torch.equal(bits(first), bits(expected))


def test_a_largest_magnitude_that_is_none_any_more_is_noticed():
    """`.data` counts no version up; a smaller maximum is as wrong as a larger one."""
    torch.manual_seed(0)
    linear = nn.Linear(64, 32)
    wrap(nn.Sequential(linear), "*: weight=nvfp4/amax")
    for factor in (1, 1.3, 0.1):
        linear.weight.data.mul_(factor)
        expected = fake_quantize(linear.weight.detach(), "nvfp4/amax")
        assert torch.equal(bits(quantized_weight(linear)), bits(expected))


@KEPT
def test_a_copy_made_later_does_not_trust_the_cache(name):
    torch.manual_seed(0)
    linear = nn.Linear(64, 32)
    with torch.no_grad():
        linear.weight.add_(0)  # the version that the cache will know
    model = wrap(nn.Sequential(linear), f"*: weight={name}")
    quantized_weight(linear)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        while twin[0].weight._version < model[0].weight._version:
            twin[0].weight.mul_(3)
    expected = fake_quantize(twin[0].weight.detach(), site(linear).rule.weight)
    assert torch.equal(bits(quantized_weight(twin[0])), bits(expected))


@pytest.mark.parametrize("family", ["llama-tied", "gpt2"])
def test_deepcopy_is_wrapped_too_and_stands_alone(build, ids, family):
    model = wrap(build(family), W4A8)
    twin = copy.deepcopy(model)
    assert torch.equal(bits(logits(twin, ids)), bits(logits(model, ids)))
    unwrap(model)
    assert quantized(twin)
    assert torch.equal(bits(logits(unwrap(twin), ids)), bits(logits(model, ids)))


def test_state_dict_round_trip(build, ids):
    plain = build("llama")
    model = wrap(build("llama"), W4A8)
    assert model.state_dict().keys() == plain.state_dict().keys()
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other = build("llama")
    for parameter in other.parameters():
        nn.init.zeros_(parameter)
    wrap(other, W4A8).load_state_dict(torch.load(buffer))
    assert torch.equal(bits(logits(other, ids)), bits(logits(model, ids)))
    assert torch.equal(bits(logits(unwrap(other), ids)), bits(logits(plain, ids)))


def test_a_shared_weight_is_quantized_for_the_head_only(build, ids):
    model = build("llama-tied")
    embedding = model.model.embed_tokens.weight
    before = embedding.detach().clone()
    wrap(model, "lm_head: weight=mxfp4/floor; *: keep")
    assert model.lm_head.weight is embedding
    assert torch.equal(bits(embedding), bits(before))
    with torch.no_grad():
        hidden = model.model(ids).last_hidden_state
    expected = F.linear(hidden, fake_quantize(before, site(model.lm_head).rule.weight))
    assert torch.equal(bits(logits(model, ids)), bits(expected))


def test_untouched_weights_are_not_copied(build, ids):
    model = build("llama")
    pointers = {name: p.data_ptr() for name, p in model.named_parameters()}
    wrap(model, "*.q_proj: weight=mxfp4/mse; *: keep")
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == pointers
    logits(model, ids)
    assert sum(len(site(m).weights) for m in quantized(model).values()) == 2  # codes, kept


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3-moe"])
def test_generate_gives_the_same_tokens_with_and_without_a_cache(build, ids, family):
    model = wrap(build(family), W4A8)
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    mask = torch.ones_like(ids)
    cached = model.generate(ids, attention_mask=mask, use_cache=True, **options)
    whole = model.generate(ids, attention_mask=mask, use_cache=False, **options)
    assert cached.shape == (2, 22)
    assert torch.equal(cached, whole)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("*.q_porj: weight=mxfp4/floor", "matches no module for conv or linear; did you mean"),
        ("*.embed_tokens: weight=mxfp4/floor", "rule '*.embed_tokens' matches no module for conv"),
        ("*.rotary_emb: operation=conv weight=mxfp4/floor", "matches no module for conv"),
    ],
)
def test_a_rule_that_cannot_apply_is_an_error_and_wraps_nothing(build, recipe, message):
    model = build("qwen3-moe")
    with pytest.raises(LowprecError) as error:
        wrap(model, recipe)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not quantized(model)


def test_an_error_while_it_runs_names_the_module_and_the_operand():
    model = wrap(nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32).half()), "bfloat16")
    with pytest.raises(LowprecError, match=r"1: activation: .*float16 does not hold"):
        model[1](torch.zeros(2, 32, dtype=torch.float16))


def test_wrapping_twice_is_an_error(build):
    model = wrap(build("llama"), W4A8)
    with pytest.raises(LowprecError, match="wrapped already"):
        wrap(model, W4A8)
    with pytest.raises(LowprecError, match="wrapped already"):
        wrap(nn.Sequential(model.model), "mxfp4/floor")
    wrap(unwrap(model), "mxint8/floor")
    assert quantized(model)


def test_unwrap_of_a_plain_model_does_nothing(build, ids):
    model = build("llama")
    before = logits(model, ids)
    assert torch.equal(logits(unwrap(model), ids), before)


def test_a_subclass_is_emulated_too_and_a_replaced_forward_is_refused():
    class Scaled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    torch.manual_seed(0)
    model = nn.Sequential(Scaled(32, 32), nn.Linear(32, 32))
    x = torch.randn(4, 32)
    w = fake_quantize(model[0].weight.detach(), "mxfp4/floor")
    expected = 2 * F.linear(fake_quantize(x, "mxfp4/floor"), w, model[0].bias)
    wrap(model, "mxfp4/floor")
    assert isinstance(model[0], Scaled)
    assert torch.equal(bits(model[0](x)), bits(expected))
    hooked = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
    hooked[1].forward = hooked[1].forward
    with pytest.raises(LowprecError, match="1: something has replaced its forward"):
        wrap(hooked, "mxfp4/floor")
    assert not quantized(hooked)


def test_nan_and_infinity_reach_the_output():
    model = wrap(nn.Sequential(nn.Linear(64, 8)), "mxfp8_e4m3/floor")
    for bad in (float("nan"), float("inf")):
        x = torch.ones(2, 64)
        x[0, 3] = bad
        y = model(x)
        assert y[0].isnan().all()
        assert y[1].isfinite().all()


def test_repr_names_the_quantizers_in_full():
    model = wrap(nn.Sequential(nn.Linear(32, 16, bias=False)), "*: weight=mxfp4/floor")
    assert "weight=mxfp4/floor/nearest-even/SatFinite" in repr(model)
    assert "in_features=32" in repr(model)


def test_what_is_no_model_is_refused():
    with pytest.raises(LowprecError, match="the model is a Tensor; expected"):
        wrap(torch.ones(2), W4A8)
