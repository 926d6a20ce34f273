"""Transforms: exact but for rounding, and what they do to the operands."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from lowprec import LowprecError, calibrate, coverage, fake_quantize, recipe, unwrap, wrap
from lowprec.nn.calibration.rotation import hadamard, rotate, signs
from lowprec.nn.calibration.transforms import SiteTransform
from lowprec.nn.emulation import sites_of
from lowprec.nn.site import Site

ALONE = [
    "rotation=32",
    "rotation=32 transform.seed=7",
    "smooth=0.5",
    "smooth=0",
    "outliers=3",
    "outliers=3 transform.outlier=float32",
    "gptq",
]
TOGETHER = [
    "rotation=16 transform.gptq",
    "smooth=0.7 transform.outliers=5",
    "smooth=0.5 transform.outliers=2 transform.rotation=32 transform.gptq",
]


def sylvester(size: int) -> Tensor:
    """H by its definition: H_2n = [[H, H], [H, -H]] / sqrt 2."""
    h = torch.ones(1, 1, dtype=torch.float64)
    while len(h) < size:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return h / size**0.5


def site(module: nn.Module) -> Site:
    found = sites_of(module).get("linear")
    assert found is not None
    return found


def uneven(*shape: int, seed: int = 0) -> Tensor:
    """Numbers whose channels differ in size by a factor of 50."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g) * torch.linspace(0, 4, shape[-1]).exp()


@pytest.mark.parametrize("size", [2, 16, 32, 128])
def test_hadamard_is_sylvesters_matrix(size):
    assert torch.allclose(
        hadamard(torch.eye(size, dtype=torch.float64)), sylvester(size), atol=1e-15
    )
    x = torch.randn(3, 5, size)
    torch.testing.assert_close(hadamard(x), (x.double() @ sylvester(size)).float())


def test_rotations_are_of_blocks_with_random_signs():
    d, x = signs(16, 3), torch.randn(4, 48, dtype=torch.float64)
    expected = (x.view(4, 3, 16) * d) @ sylvester(16)
    torch.testing.assert_close(rotate(x, d), expected.view(4, 48))
    torch.testing.assert_close(rotate(x.T, d, axis=0), expected.view(4, 48).T)


def test_signs_follow_from_the_seed_alone():
    assert signs(16, 0).tolist() == signs(16, 0).tolist() != signs(16, 1).tolist()
    # Those that anyone else gets: a rotated checkpoint depends on them.
    assert "".join("+-"[int(s < 0)] for s in signs(16, 0)) == "-----++--++---++"
    assert abs(float(signs(4096, 5).mean())) < 0.05


def test_the_rotations_gradient():
    x = torch.randn(3, 16, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: rotate(x, signs(8, 0)), x)
    assert torch.autograd.gradgradcheck(lambda x: rotate(x, signs(8, 0)), x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_rotations_compile(backend):
    x, d = torch.randn(4, 64), signs(32, 0)
    compiled = torch.compile(rotate, fullgraph=True, backend=backend)
    assert torch.equal(compiled(x, d), rotate(x, d))


def test_rotations_of_the_meta_device():
    assert rotate(torch.empty(2, 64, device="meta"), signs(32, 0)).shape == (2, 64)


def test_a_block_that_does_not_divide_names_the_site_and_what_would():
    model = wrap(nn.Sequential(nn.Linear(48, 8)), "*: weight=mxfp4/floor transform.rotation=32")
    with pytest.raises(LowprecError, match=r"^0: a rotation of 32 .* 48 channels; .* is 16$"):
        model(torch.randn(2, 48))


def modules() -> dict[str, tuple[nn.Module, Tensor]]:
    torch.manual_seed(0)
    conv1d = Conv1D(40, 96)
    nn.init.normal_(conv1d.bias)

    class WeightFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(40, 96))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight @ x.mT

    class Batched(nn.Module):
        """Experts that each multiply their own rows."""

        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Parameter(torch.randn(4, 96, 40))

        def forward(self, x: Tensor) -> Tensor:
            return torch.bmm(x, self.up)

    return {
        "linear": (nn.Sequential(nn.Linear(96, 40)), uneven(3, 7, 96)),
        "linear without bias": (nn.Sequential(nn.Linear(96, 40, bias=False)), uneven(7, 96)),
        "conv1d": (nn.Sequential(conv1d), uneven(3, 7, 96)),
        "weight first": (nn.Sequential(WeightFirst()), uneven(7, 96)),
        "experts": (nn.Sequential(Batched()), uneven(4, 7, 96)),
    }


@pytest.mark.parametrize("transform", [*ALONE, *TOGETHER])
@pytest.mark.parametrize("kind", list(modules()))
def test_without_a_quantizer_nothing_changes_beyond_float_error(kind, transform):
    model, x = modules()[kind]
    expected = model(x).detach()
    wrap(model, f"*: weight=float32 activation=float32 transform.{transform}")
    calibrate(model, [x])
    x.requires_grad_()
    y = model(x)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    upstream = torch.randn_like(y)
    (dx,) = torch.autograd.grad(y, x, upstream)
    with torch.no_grad():
        kept = model(x)
    assert torch.equal(kept, y)  # what is kept between calls has the same bits
    (plain,) = torch.autograd.grad(unwrap(model)(x), x, upstream)
    torch.testing.assert_close(dx, plain, rtol=1e-5, atol=1e-5 * float(plain.abs().max()))


@pytest.mark.parametrize("transform", ["rotation=32", TOGETHER[1], TOGETHER[2]])
@pytest.mark.parametrize(
    ("family", "experts"),
    [("llama", ""), ("gpt2", ""), ("mixtral", "eager"), ("mixtral", "grouped_mm")],
)
def test_whole_models_without_a_quantizer(build, ids, family, experts, transform):
    if experts == "grouped_mm" and "gptq" in transform:
        pytest.skip("grouped experts refuse gptq")
    model = build(family)
    if experts:
        model.set_experts_implementation(experts)
    with torch.no_grad():
        expected = model(ids).logits
        wrap(model, f"*: weight=float32 transform.{transform}")
        calibrate(model, [ids])
        torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-5)


def test_a_rotated_linear_equals_the_explicit_reference():
    torch.manual_seed(0)
    linear, x = nn.Linear(96, 40), uneven(7, 96)
    text = "mxfp4/floor"
    d = signs(32, 5)
    w, xr = rotate(linear.weight.detach(), d), rotate(x, d)
    expected = F.linear(fake_quantize(xr, text), fake_quantize(w, text), linear.bias)
    wrap(
        nn.Sequential(linear),
        f"*: weight={text} activation={text} transform.rotation=32 transform.seed=5",
    )
    assert torch.equal(linear(x), expected)


def test_smoothing_equals_the_explicit_reference():
    torch.manual_seed(0)
    linear, batches = nn.Linear(96, 40), [uneven(7, 96), uneven(9, 96, seed=1)]
    text, x = "int8/amax:channel", batches[0]
    largest = torch.cat(batches).abs().amax(0).double()
    s = (largest**0.3 / linear.weight.abs().amax(0).double() ** 0.7).float()
    expected = F.linear(
        fake_quantize(x / s, text), fake_quantize(linear.weight * s, text), linear.bias
    )
    model = wrap(nn.Sequential(linear), f"*: weight={text} activation={text} transform.smooth=0.3")
    found = calibrate(model, batches)
    torch.testing.assert_close(found.tensors["0 linear.smooth"], s)
    torch.testing.assert_close(linear(x), expected)


def test_a_channel_without_magnitude_is_not_smoothed():
    linear, x = nn.Linear(8, 4), torch.randn(5, 8)
    x[:, 2] = 0
    with torch.no_grad():
        linear.weight[:, 6] = 0
    model = wrap(nn.Sequential(linear), "*: weight=float32 transform.smooth=0.5")
    factors = calibrate(model, [x]).tensors["0 linear.smooth"]
    assert factors[2] == factors[6] == 1
    assert linear(x).isfinite().all()


def test_outliers_equal_the_explicit_reference():
    torch.manual_seed(0)
    linear, x = nn.Linear(96, 40), torch.randn(7, 96)
    x[:, [5, 50]] *= 100
    text, wide = "mxfp4/floor", "bfloat16"
    places = torch.tensor([5, 50])
    rest = x.index_fill(1, places, 0), linear.weight.detach().index_fill(1, places, 0)
    a, b = (fake_quantize(t, text) for t in rest)
    apart = fake_quantize(x[:, places], wide) @ fake_quantize(linear.weight[:, places], wide).T
    expected = F.linear(a, b, linear.bias) + apart
    model = wrap(
        nn.Sequential(linear),
        f"*: weight={text} activation={text} transform.outliers=2 transform.outlier={wide}",
    )
    assert calibrate(model, [x]).tensors["0 linear.outliers"].tolist() == [5, 50]
    torch.testing.assert_close(linear(x), expected)


def test_each_makes_the_outliers_of_an_activation_cheaper():
    torch.manual_seed(0)
    linear, x = nn.Linear(128, 64), torch.randn(64, 128)
    x[:, [5, 50, 70]] *= 20
    expected, text = linear(x).detach(), "int4/amax:channel"

    def error(transform: str) -> float:
        model = copy.deepcopy(nn.Sequential(linear))
        wrap(model, f"*: weight={text} activation={text} {transform}")
        calibrate(model, [x])
        return float((model(x) - expected).detach().norm())

    plain = error("")
    for transform in ("rotation=128", "smooth=0.5", "outliers=3"):
        assert error(f"transform.{transform}") < 0.8 * plain


@pytest.mark.parametrize("transform", ["rotation=32", "outliers=2", "smooth=0.5", "gptq"])
@pytest.mark.parametrize("text", ["mxfp4/floor", "bfloat16"])
def test_the_weight_is_made_once(monkeypatch, transform, text):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 32)), torch.randn(3, 64)
    wrap(model, f"*: weight={text} transform.{transform}")
    calibrate(model, [x])
    with torch.no_grad():
        first = model(x)
        calls = []
        monkeypatch.setattr(SiteTransform, "weight", lambda *_: calls.append(1))
        assert torch.equal(model(x), first)
    assert not calls


def test_the_weight_is_made_again_when_it_changes():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 32, bias=False)), torch.randn(3, 64)
    wrap(model, "*: weight=mxfp4/floor transform.rotation=32")
    with torch.no_grad():
        first = model(x)
        model[0].weight.mul_(2)
        assert torch.equal(model(x), 2 * first)


def test_bfloat16_is_rounded_once():
    torch.manual_seed(0)
    linear, x, text = nn.Linear(64, 32).bfloat16(), torch.randn(3, 64).bfloat16(), "mxfp4/floor"
    d = signs(32, 0)
    a = fake_quantize(rotate(x.float(), d), text).bfloat16()
    b = fake_quantize(rotate(linear.weight.detach().float(), d), text).bfloat16()
    expected = F.linear(a, b, linear.bias)
    wrap(nn.Sequential(linear), f"*: weight={text} activation={text} transform.rotation=32")
    assert torch.equal(linear(x), expected)


@pytest.mark.parametrize("transform", ["rotation=32", "smooth=0.5 transform.outliers=4"])
def test_under_torch_compile(transform):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32)), uneven(3, 64)
    wrap(model, f"*: weight=mxfp4/floor activation=mxfp4/floor transform.{transform}")
    calibrate(model, [x])
    expected = model(x)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), expected)
    expected.sum().backward()
    wanted = model[0].weight.grad.clone()
    model.zero_grad()
    compiled(x).sum().backward()
    assert torch.equal(model[0].weight.grad, wanted)


@pytest.mark.parametrize("transform", [*ALONE, *TOGETHER])
def test_coverage_needs_no_calibration(build, transform):
    model = wrap(build("llama"), f"*: weight=mxfp4/floor transform.{transform}")
    found = coverage(model)
    assert all(entry.covered for entry in found.entries if entry.kind == "linear")


@pytest.mark.parametrize("transform", ["smooth=0.5", "outliers=4", "gptq"])
def test_a_pass_without_calibration_names_the_call(transform):
    model = wrap(nn.Sequential(nn.Linear(64, 32)), f"*: weight=mxfp4/floor transform.{transform}")
    with pytest.raises(LowprecError, match=r"^0: transform\.\w+ has .* lowprec\.calibrate\(model"):
        model(torch.randn(2, 64))


def test_copies_keep_what_was_calibrated_and_unwrap_takes_it_away():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 32)), uneven(9, 64)
    plain, attributes = model(x), set(vars(model[0]))
    wrap(model, f"*: weight=nvfp4/amax activation=nvfp4/amax transform.{TOGETHER[2]}")
    calibrate(model, [x])
    y = model(x)
    assert torch.equal(copy.deepcopy(model)(x), y)
    assert not torch.equal(y, plain)
    assert torch.equal(unwrap(model)(x), plain)
    assert set(vars(model[0])) == attributes


def test_conv_is_not_spoken_of():
    rule = recipe("*: weight=mxfp4/floor transform.rotation=32").rules[0]
    assert rule.speaks_of("linear")
    assert not rule.speaks_of("conv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("*: weight=mxfp4/floor transform.rotation=24", "rotation=24: expected a power of two"),
        ("*: weight=mxfp4/floor transform.seed=3", "needs smooth, outliers, rotation or gptq"),
        ("*: weight=mxfp4/floor transform.gptq transform.outlier=bfloat16", "that outliers counts"),
        ("*: activation=mxfp4/floor transform.gptq", "gptq needs weight"),
        ("*: keep transform.rotation=32", "transform is for linear, not kept"),
        ("*: query=mxfp4/floor transform.rotation=32", "transform is for linear"),
        ("*: operation=conv weight=mxfp4/floor transform.rotation=32", "transform is for linear"),
        (
            "*: weight=mxfp4/floor transform.outliers=2 transform.outlier=int8/static:tensor",
            "no calibrated scales",
        ),
        (
            "*: weight=mxfp4/floor transform.rotation=32 weight_gradient.rotation=16",
            "transform is for inference",
        ),
    ],
)
def test_rules_that_make_no_sense(text, message):
    with pytest.raises(LowprecError, match=message):
        recipe(text)


def test_recipes_spell_their_transforms():
    text = "*: weight=mxfp4/floor transform.smooth=0.5 transform.outliers=4 transform.gptq"
    assert recipe(recipe(text).spell()).rules == recipe(text).rules
