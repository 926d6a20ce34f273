"""Norms, softmax, elementwise functions and adds: quantized in and out, and approximated."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lowprec import LowprecError, coverage, fake_quantize, unwrap, wrap
from lowprec.nn import Emulated
from lowprec.nn.operations.approximation import estimate

IN, OUT = "mxfp8_e4m3/floor", "mxfp6_e3m2/floor"
LOG2_E = math.log2(math.e)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.detach().view(torch.int32), b.detach().view(torch.int32))


def under(module: nn.Module, operation: str, words: str) -> nn.Module:
    return wrap(nn.Sequential(module), f"*: operation={operation} {words}")


NORMS = {
    "layer": (lambda: nn.LayerNorm(64), (3, 5, 64), -1),
    "rms": (lambda: nn.RMSNorm(64), (3, 5, 64), -1),
    "group": (lambda: nn.GroupNorm(2, 64), (3, 64, 5), 1),
    "instance": (lambda: nn.InstanceNorm2d(64, affine=True), (3, 64, 5, 5), 1),
    "batch": (lambda: nn.BatchNorm1d(64).eval(), (3, 64, 5), 1),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_are_quantized_in_and_out(name):
    torch.manual_seed(0)
    build, shape, axis = NORMS[name]
    norm, x = build(), torch.randn(shape)
    expected = fake_quantize(norm(fake_quantize(x, IN, axis=axis)).detach(), OUT, axis=axis)
    model = under(norm, "norm", f"input={IN} output={OUT}")
    assert same(model(x), expected)
    unwrap(model)


@pytest.mark.parametrize("name", NORMS)
def test_a_precise_estimate_leaves_a_norm_as_it_is(name):
    torch.manual_seed(0)
    build, shape, _ = NORMS[name]
    norm, x = build(), torch.randn(shape) + 1
    for p in norm.parameters():
        nn.init.normal_(p)
    if isinstance(norm, nn.BatchNorm1d):
        nn.init.uniform_(norm.running_var, 1.2, 1.9)
    before = norm(x).detach()
    close = under(norm, "norm", "approximation.rsqrt=bits:24")(x).detach()
    torch.testing.assert_close(close, before, rtol=1e-5, atol=1e-5)
    unwrap(norm)
    coarse = under(norm, "norm", "approximation.rsqrt=bits:4")(x).detach()
    assert 1e-3 < float((coarse - before).abs().max()) < 1


def test_the_bits_of_an_estimated_rms_norm():
    torch.manual_seed(0)
    norm, x = nn.RMSNorm(64, eps=1e-5), torch.randn(7, 64)
    scale = estimate(x.square().mean(-1, keepdim=True) + 1e-5, "rsqrt", "table:4")
    assert same(under(norm, "norm", "approximation.rsqrt=table:4")(x), x * scale * norm.weight)


def test_batch_norm_in_training_has_no_estimate():
    model = under(nn.BatchNorm1d(8), "norm", "approximation.rsqrt=bits:8")
    with pytest.raises(LowprecError, match=r"batch_norm: .* call model\.eval\(\)"):
        model(torch.randn(4, 8))


class TinyRMSNorm(nn.Module):
    """As transformers writes it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class PowerNorm(TinyRMSNorm):
    def forward(self, x):
        return self.weight * (x * (x.pow(2).mean(-1, keepdim=True) + 1e-6) ** -0.5)


class RootNorm(TinyRMSNorm):
    def forward(self, x):
        return self.weight * (x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


@pytest.mark.parametrize("kind", [TinyRMSNorm, PowerNorm, RootNorm])
def test_a_norm_written_out_is_one_operation(kind):
    torch.manual_seed(0)
    norm, x = kind(), torch.randn(3, 64)
    expected = fake_quantize(norm(fake_quantize(x, IN)).detach(), OUT)
    rules = f"*: operation=norm input={IN} output={OUT}; *: operation=elementwise input=float8_e5m2"
    rules += "; *: operation=add input=float8_e5m2"
    assert same(wrap(nn.Sequential(norm), rules)(x), expected)


@pytest.mark.parametrize("kind", [TinyRMSNorm, PowerNorm])
def test_its_rsqrt_is_estimated(kind):
    torch.manual_seed(0)
    norm, x = kind(), torch.randn(3, 64)
    scale = estimate(x.pow(2).mean(-1, keepdim=True) + 1e-6, "rsqrt", "table:4")
    assert same(under(norm, "norm", "approximation.rsqrt=table:4")(x), norm.weight * (x * scale))


def test_a_norm_without_a_function_to_estimate_is_an_error():
    model = under(RootNorm(), "norm", "approximation.rsqrt=table:4")
    with pytest.raises(LowprecError, match="0: RootNorm calls no function of norm that can be"):
        model(torch.randn(3, 64))


@pytest.mark.parametrize("dim", [-1, 1])
def test_softmax_is_quantized_along_its_dimension(dim):
    torch.manual_seed(0)
    x = torch.randn(3, 40, 40)
    expected = fake_quantize(fake_quantize(x, IN, axis=dim).softmax(dim), OUT, axis=dim)
    words = f"input={IN} output={OUT}"
    assert same(under(nn.Softmax(dim), "softmax", words)(x), expected)

    class Written(nn.Module):
        def __init__(self, call):
            super().__init__()
            self.call = call

        def forward(self, x):
            return self.call(x)

    calls = (
        lambda x: x.softmax(dim),
        lambda x: torch.softmax(x, dim=dim),
        lambda x: F.softmax(x, dim=dim, dtype=torch.float32),
        lambda x: torch.special.softmax(x, dim),
    )
    for call in calls:
        assert same(under(Written(call), "softmax", words)(x), expected)
    logs = fake_quantize(F.log_softmax(fake_quantize(x, IN, axis=dim), dim), OUT, axis=dim)
    assert same(under(nn.LogSoftmax(dim), "softmax", words)(x), logs)


def test_the_bits_of_an_estimated_softmax():
    torch.manual_seed(0)
    x = torch.randn(5, 33) * 4
    below = (x - x.amax(-1, keepdim=True)) * LOG2_E
    e = estimate(below, "exp2", "poly:3")
    divided = e / e.sum(-1, keepdim=True)
    multiplied = e * estimate(e.sum(-1, keepdim=True), "reciprocal", "bits:12")
    words = "approximation.exp2=poly:3"
    assert same(under(nn.Softmax(-1), "softmax", words)(x), divided)
    both = f"{words} approximation.reciprocal=bits:12"
    assert same(under(nn.Softmax(-1), "softmax", both)(x), multiplied)
    assert not same(divided, x.softmax(-1))
    torch.testing.assert_close(divided, x.softmax(-1), rtol=3e-4, atol=0)


def test_masked_rows_of_an_estimated_softmax():
    x = torch.tensor(
        [[0.0, -math.inf, 0.0], [-math.inf, -math.inf, -math.inf], [math.nan, 0.0, 1.0]]
    )
    y = under(nn.Softmax(-1), "softmax", "approximation.exp2=table:7")(x)
    assert y[0].tolist() == [0.5, 0.0, 0.5]
    assert y[1:].isnan().all()


ACTIVATIONS = {
    "silu": (nn.SiLU, lambda x, e, r: x * r(1 + e(x * -LOG2_E))),
    "sigmoid": (nn.Sigmoid, lambda x, e, r: r(1 + e(x * -LOG2_E))),
    "tanh": (nn.Tanh, lambda x, e, r: 1 - 2 * r(1 + e(x * (2 * LOG2_E)))),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_bits_of_estimated_activations(name):
    torch.manual_seed(0)
    kind, formula = ACTIVATIONS[name]
    x = torch.randn(400) * 4
    expected = formula(
        x, lambda t: estimate(t, "exp2", "poly:2"), lambda t: estimate(t, "reciprocal", "bits:8")
    )
    words = "approximation.exp2=poly:2 approximation.reciprocal=bits:8"
    assert same(under(kind(), "elementwise", words)(x), expected)
    precise = "approximation.exp2=bits:24 approximation.reciprocal=bits:24"
    torch.testing.assert_close(
        under(kind(), "elementwise", precise)(x), kind()(x), rtol=2e-5, atol=2e-7
    )


def test_estimated_gelu():
    x = torch.randn(400) * 3
    words = "approximation.exp2=bits:24 approximation.reciprocal=bits:24"
    by_tanh = under(nn.GELU("tanh"), "elementwise", words)(x)
    torch.testing.assert_close(by_tanh, F.gelu(x, approximate="tanh"), rtol=1e-5, atol=1e-6)
    assert not same(under(nn.GELU("tanh"), "elementwise", "approximation.exp2=table:4")(x), by_tanh)
    assert same(under(nn.GELU(), "elementwise", words)(x), F.gelu(x))  # by erf: no unit's


@pytest.mark.parametrize(
    "function",
    [
        F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.softplus,
        F.softsign, F.logsigmoid, F.hardswish, F.hardsigmoid, F.hardtanh, F.glu, torch.sigmoid,
        torch.tanh, torch.exp, torch.relu,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_elementwise_functions_are_quantized_in_and_out(function):
    class Calls(nn.Module):
        def forward(self, x):
            return function(x)

    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    expected = fake_quantize(function(fake_quantize(x, IN)), OUT)
    assert same(under(Calls(), "elementwise", f"input={IN} output={OUT}")(x), expected)


@pytest.mark.parametrize("words", [f"output={OUT}", f"input={IN} output={OUT}", f"input={IN}"])
def test_functions_in_place_stay_in_place(words):
    class InPlace(nn.Module):
        def forward(self, x):
            F.relu(x, inplace=True)
            x.sigmoid_()
            x += torch.ones_like(x)
            return x

    def cast(x, name):
        return fake_quantize(
            x, dict(word.split("=") for word in words.split()).get(name, "float32/cast")
        )

    x = torch.randn(3, 64)
    expected = cast(F.relu(cast(x, "input")), "output")
    expected = cast(cast(expected, "input").sigmoid(), "output") + 1
    model = under(InPlace(), "elementwise", words)
    y = model(x)
    assert y is x
    assert same(x, expected)


def test_gates_and_adds_of_two_activations():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64))

        def forward(self, x, y):
            return 2 * (x * y) + y * self.weight + self.weight  # one gate, one add

    torch.manual_seed(0)
    two, x, y = Two(), torch.randn(3, 64), torch.randn(3, 64)
    gate = fake_quantize(fake_quantize(x, IN) * fake_quantize(y, IN), OUT)
    w = two.weight.detach()
    words = f"input={IN} output={OUT}"
    expected = 2 * gate + y * w + w
    model = under(two, "elementwise", words)
    assert same(two(x, y), expected)
    unwrap(model)
    total = fake_quantize(fake_quantize(2 * (x * y), IN) + fake_quantize(y * w, IN), OUT)
    under(two, "add", words)
    assert same(two(x, y), total + w)


class GatedActivation(nn.Module):
    """A class that is one operation by its name, as transformers' NewGELUActivation is."""

    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


def test_an_activation_written_out_is_one_operation():
    torch.manual_seed(0)
    x = torch.randn(3, 64)
    module = GatedActivation()
    expected = fake_quantize(module(fake_quantize(x, IN)), OUT)
    assert same(under(module, "elementwise", f"input={IN} output={OUT}")(x), expected)


RULES = {
    "norm": "approximation.rsqrt=bits:6 input=bfloat16",
    "softmax": "approximation.exp2=poly:2 output=float8_e4m3fn",
    "elementwise": "approximation.exp2=table:5 input=bfloat16 output=bfloat16",
    "add": "input=bfloat16 output=bfloat16",
}


@pytest.mark.parametrize("operation", RULES)
def test_a_model_runs_and_learns(build, ids, operation):
    model = build("llama")
    model.set_attn_implementation("eager")
    before = model(ids).logits
    wrap(model, f"*: operation={operation} {RULES[operation]}")
    after = model(ids).logits
    assert not same(after, before)
    torch.testing.assert_close(after, before, rtol=0.2, atol=0.05)
    after.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
def test_it_compiles(backend):
    torch.manual_seed(0)

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.act = TinyRMSNorm(), nn.SiLU()

        def forward(self, x):
            return (x + self.act(self.norm(x)) * x).softmax(-1)

    rules = "; ".join(f"*: operation={name} {words}" for name, words in RULES.items())
    model = wrap(Residual(), rules)
    x = torch.randn(4, 64, requires_grad=True)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    y, expected = compiled(x), model(x)
    mine, other = (torch.autograd.grad(out.square().sum(), x)[0] for out in (y, expected))
    if backend == "eager":
        assert same(y, expected)
        assert same(mine, other)
    else:  # Its softmax differs in last bits; a number beside a tie falls on its other side.
        assert (~torch.isclose(y, expected, rtol=1e-6, atol=1e-7)).float().mean() < 0.02
        assert torch.nn.functional.cosine_similarity(mine.flatten(), other.flatten(), dim=0) > 0.99


def test_coverage_and_repr_say_what_ran(build, ids):
    model = build("llama")
    model.set_attn_implementation("eager")
    wrap(model, "; ".join(f"*: operation={name} {words}" for name, words in RULES.items()))
    for found in (coverage(model, ids), coverage(model, tokens=16)):
        ran = {(e.path, e.kind): e for e in found.vector}
        assert ran["model.norm", "norm"].calls == 1
        assert "rsqrt=bits:6" in ran["model.norm", "norm"].operands
        assert ran["model.layers.1", "add"].calls == 2  # the residuals
        assert ran["model.layers.0.mlp.act_fn", "elementwise"].calls == 1
        assert ran["model.layers.0.mlp", "elementwise"].calls == 1  # the gate
        assert ran["model.layers.0.self_attn", "softmax"].calls == 1
        assert found.share == 0
        assert "model.layers.*.input_layernorm  norm" in str(found)
    assert "norm input=bfloat16/cast/nearest-even/SatFinite, rsqrt=bits:6" in repr(model.model.norm)
    unwrap(model)
    assert not any(isinstance(m, Emulated) for m in model.modules())


def test_it_runs_on_the_meta_device():
    words = "approximation.exp2=poly:2 approximation.reciprocal=bits:8"
    x = torch.zeros(3, 64, device="meta")
    assert under(nn.SiLU(), "elementwise", words)(x).shape == (3, 64)
    assert under(nn.Softmax(-1), "softmax", words)(x).shape == (3, 64)
    norm = nn.LayerNorm(64, device="meta")
    assert under(norm, "norm", "approximation.rsqrt=bits:8")(x).shape == (3, 64)


def test_half_precision_is_computed_in_float32():
    x = torch.randn(5, 64).bfloat16()
    words = "approximation.exp2=bits:24 approximation.reciprocal=bits:24"
    y = under(nn.SiLU(), "elementwise", words)(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, F.silu(x.float()).bfloat16()) or (y - F.silu(x)).abs().max() < 2**-7
    with pytest.raises(LowprecError, match="the operand is float64"):
        under(nn.SiLU(), "elementwise", words)(x.double())
