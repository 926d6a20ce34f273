"""Gradients of the matmuls under a recipe: autograd's own, or those of an explicit reference."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

import lowprec as lp
from lowprec.errors import LowprecError
from lowprec.nn.emulation import sites_of

PLAIN = "float32/cast"
FLOAT32 = (
    f"*: weight={PLAIN} activation={PLAIN} input_gradient.gradient={PLAIN} "
    f"weight_gradient.gradient={PLAIN} weight_gradient.activation={PLAIN}"
)
MX = "mxfp8_e4m3/rceil"
E5M2 = "mxfp8_e5m2/floor"


def numbers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator)
    return x * 4.0 ** torch.randn(*shape, generator=generator)


def gradients(model: nn.Module, x: Tensor, g: Tensor, **named: Any) -> tuple[Tensor, ...]:
    x = x.detach().requires_grad_()
    model.zero_grad()
    model(x, **named).backward(g)
    return x.grad, *(p.grad for p in model.parameters())


class Experts(nn.Module):
    """Three experts, by torch.bmm or by the grouped matmul."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(numbers(3, 40, 24, seed=5))

    def forward(self, x: Tensor, offsets: Tensor | None = None) -> Tensor:
        return torch.bmm(x, self.up) if offsets is None else F.grouped_mm(x, self.up, offs=offsets)


class Left(nn.Module):
    """A weight times an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(numbers(24, 40, seed=6))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight @ x


def equal(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...], dict[str, Any]]]
OFFSETS = {"offsets": torch.tensor([5, 5, 33], dtype=torch.int32)}
CASES = {
    "linear": (lambda: nn.Linear(40, 24), (2, 33, 40), (2, 33, 24), {}),
    "no bias": (lambda: nn.Linear(40, 24, bias=False), (33, 40), (33, 24), {}),
    "one token": (lambda: nn.Linear(40, 24), (40,), (24,), {}),
    "Conv1D": (lambda: Conv1D(24, 40), (2, 33, 40), (2, 33, 24), {}),
    "bmm": (Experts, (3, 33, 40), (3, 33, 24), {}),
    "grouped": (Experts, (33, 40), (33, 24), OFFSETS),
    "left": (Left, (40, 33), (24, 33), {}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("text", [FLOAT32, f"*: weight_gradient.gradient={PLAIN}"])
def test_gradients_of_a_float32_recipe_are_autograds(case: str, text: str) -> None:
    make, of_x, of_y, named = CASES[case]
    model, x, g = make(), numbers(*of_x), numbers(*of_y, seed=1)
    expected = gradients(model, x, g, **named)
    lp.wrap(model, text)
    assert equal(gradients(model, x, g, **named), expected)
    assert len(expected) > 1


@pytest.mark.parametrize("seed", range(8))
def test_they_are_in_every_shape(seed: int) -> None:
    torch.manual_seed(seed)
    b, t, k, n = (int(torch.randint(1, 90, ())) for _ in range(4))
    for make in (nn.Linear, lambda k, n: Conv1D(n, k)):
        model, x, g = make(k, n), numbers(b, t, k), numbers(b, t, n, seed=1)
        expected = gradients(model, x, g)
        assert equal(gradients(lp.wrap(model, FLOAT32), x, g), expected)
        # A two-dimensional input that lies in memory column by column.
        x2, g2 = numbers(k, t).T, numbers(t, n, seed=1)
        expected = gradients(lp.unwrap(model), x2, g2)
        assert equal(gradients(lp.wrap(model, FLOAT32), x2, g2), expected)


RECIPE = (
    f"*: weight={MX} activation={MX} input_gradient.gradient={E5M2} input_gradient.weight={MX} "
    f"weight_gradient.gradient={E5M2} weight_gradient.activation={MX}"
)


def q(x: Tensor, quantizer: str, axis: int, **named: Any) -> Tensor:
    return lp.fake_quantize(x.detach().contiguous(), quantizer, axis=axis, **named)


def test_each_operand_is_quantized_along_what_its_matmul_sums_over() -> None:
    model, x, g = nn.Linear(40, 24), numbers(2, 33, 40), numbers(2, 33, 24, seed=1)
    w, b = model.weight, model.bias
    x2, g2 = x.view(66, 40), g.view(66, 24)
    lp.wrap(model, RECIPE)
    assert torch.equal(model(x), F.linear(q(x, MX, -1), q(w, MX, -1), b))
    dx, dw, db = gradients(model, x, g)
    assert torch.equal(dx.view(66, 40), q(g2, E5M2, 1) @ q(w, MX, 0))
    assert torch.equal(dw, q(g2, E5M2, 0).T @ q(x2, MX, 0))
    assert torch.equal(db, g2.sum(0))


def test_what_is_left_out_is_the_forwards() -> None:
    model, x, g = nn.Linear(40, 24), numbers(66, 40), numbers(66, 24, seed=1)
    text = f"*: weight={MX} activation={MX} weight_gradient.gradient={E5M2}"
    dx, dw, _ = gradients(lp.wrap(model, text), x, g)
    assert torch.equal(dx, g @ q(model.weight, MX, -1))
    assert torch.equal(dw, q(g, E5M2, 0).T @ q(x, MX, -1))


def test_without_a_backward_rule_gradients_are_straight_through() -> None:
    model, x, g = nn.Linear(40, 24), numbers(66, 40), numbers(66, 24, seed=1)
    dx, dw, _ = gradients(lp.wrap(model, f"*: weight={MX} activation={MX}"), x, g)
    assert torch.equal(dx, g @ q(model.weight, MX, -1))
    assert torch.equal(dw, g.T @ q(x, MX, -1))


def test_an_activation_may_be_quantized_from_its_codes() -> None:
    model, x, g = nn.Linear(40, 24), numbers(66, 40), numbers(66, 24, seed=1)
    text = f"*: activation={MX} weight_gradient.activation={E5M2} weight_gradient.requantize"
    _, dw, _ = gradients(lp.wrap(model, text), x, g)
    assert torch.equal(dw, g.T @ q(q(x, MX, -1), E5M2, 0))
    assert not torch.equal(dw, g.T @ q(x, E5M2, 0))


@pytest.mark.parametrize(
    ("fmt", "agree"),
    [("nvfp4_16x16/amax", True), ("float8_e4m3fn_128x128/amax", True), ("nvfp4/amax", False)],
)
def test_square_tiles_make_forward_and_backward_agree(fmt: str, agree: bool) -> None:
    w = numbers(150, 140)
    assert torch.equal(q(w, fmt, 0), q(w, fmt, 1)) == agree
    model, g = nn.Linear(140, 150), numbers(20, 150, seed=1)
    model.weight.data.copy_(w)
    found = gradients(
        lp.wrap(model, f"*: weight={fmt} input_gradient.weight={fmt}"), numbers(20, 140), g
    )
    assert torch.equal(found[0], g @ q(w, fmt, 1)) == agree
    assert torch.equal(found[0], g @ q(w, fmt, 0))


def hadamard(n: int) -> Tensor:
    """Sylvester's matrix over sqrt(n), by its definition."""
    h = torch.ones(1, 1, dtype=torch.float64)
    while len(h) < n:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return h / n**0.5


def test_a_rotation_alone_changes_nothing_but_the_last_bits() -> None:
    model, x, g = nn.Linear(40, 24), numbers(2, 33, 40), numbers(2, 33, 24, seed=1)
    expected = gradients(model, x, g)[1]
    text = f"*: weight_gradient.gradient={PLAIN} weight_gradient.rotation=16"
    found = gradients(lp.wrap(model, text), x, g)[1]
    assert not torch.equal(found, expected)
    scale = g.abs().view(66, 24).T @ x.abs().view(66, 40)
    assert float(((found - expected).abs() / scale).max()) < 5e-6


def test_a_rotation_comes_before_the_quantizers() -> None:
    from lowprec.nn.calibration.rotation import signs

    model, x, g = nn.Linear(40, 24), numbers(33, 40), numbers(33, 24, seed=1)
    fmt = "nvfp4/amax"
    text = f"*: weight_gradient.gradient={fmt} weight_gradient.activation={fmt} "
    text += "weight_gradient.rotation=16 weight_gradient.seed=3"
    d = signs(16, 3)
    assert set(d.tolist()) == {-1.0, 1.0}
    # 33 tokens: two blocks, and one that zeros fill. Powers of two, so that float32 is exact.
    whole = torch.block_diag(*[hadamard(16) * d.double()] * 3).float()
    x, g = x.round(), g.round()
    rows = [whole @ F.pad(t, (0, 0, 0, 15)) for t in (x, g)]
    dw = gradients(lp.wrap(model, text), x, g)[1]
    assert torch.equal(dw, q(rows[1], fmt, 0).T @ q(rows[0], fmt, 0))


SR = "nvfp4/amax/stochastic:16"


def test_stochastic_gradients_are_new_at_each_step_and_the_same_in_each_run() -> None:
    def run() -> list[tuple[Tensor, ...]]:
        torch.manual_seed(0)
        model = lp.wrap(
            nn.Linear(40, 24),
            f"*: input_gradient.gradient={SR} weight_gradient.gradient={SR}",
        )
        return [gradients(model, x, g) for _ in range(2)]

    x, g = numbers(66, 40), numbers(66, 24, seed=1)
    first, second = run()
    assert not torch.equal(first[0], second[0])
    assert not torch.equal(first[1], second[1])
    again = run()
    assert equal(first, again[0])
    assert equal(second, again[1])


def test_stochastic_gradients_are_unbiased() -> None:
    model, x, g = nn.Linear(16, 8, bias=False), numbers(32, 16), numbers(32, 8, seed=1)
    exact = gradients(model, x, g)[1]
    # Scales rounded up: nothing saturates.
    lp.wrap(model, "*: weight_gradient.gradient=mxfp4/ceil/stochastic:16")
    draws = torch.stack([gradients(model, x, g)[1] for _ in range(300)])
    error = (draws.mean(0) - exact).abs() / (draws.std(0) / 300**0.5 + 1e-6)
    nearest = gradients(lp.wrap(lp.unwrap(model), "*: weight_gradient.gradient=mxfp4/ceil"), x, g)
    assert float(error.max()) < 5
    assert float(((nearest[1] - exact).abs() / (draws.std(0) / 300**0.5 + 1e-6)).max()) > 5


def test_each_expert_has_its_own_tokens() -> None:
    model, x, g = Experts(), numbers(33, 40), numbers(33, 24, seed=1)
    w = model.up.detach()
    lp.wrap(model, RECIPE)
    dx, dw = gradients(model, x, g, **OFFSETS)
    for expert, (start, end) in enumerate([(0, 5), (5, 5), (5, 33)]):
        gs, xs = g[start:end], x[start:end]
        assert torch.allclose(dx[start:end], q(gs, E5M2, 1) @ q(w[expert], MX, 1).T)
        expected = q(xs, MX, 0).T @ q(gs, E5M2, 0) if end > start else torch.zeros(40, 24)
        assert torch.allclose(dw[expert], expected, rtol=1e-5, atol=1e-3)
    assert torch.equal(dx, F.grouped_mm(q(g, E5M2, 1), q(w, MX, 2).mT, offs=OFFSETS["offsets"]))


DATAPATHS = {
    "tensor": ("float8_e4m3fn_tensor/amax", "float8_e5m2_tensor/amax", "hopper_fp8"),
    "blocks": ("float8_e4m3fn_1x128/amax", "float8_e4m3fn_1x128/amax", "hopper_fp8_deepseek"),
    "stochastic": (
        "float8_e4m3fn_tensor/amax",
        "float8_e5m2_tensor/amax/stochastic:8",
        "hopper_fp8",
    ),
}


@pytest.mark.parametrize("case", DATAPATHS)
def test_each_matmul_has_its_datapath(case: str) -> None:
    other, gradient, path = DATAPATHS[case]
    model, x, g = nn.Linear(160, 40, bias=False), numbers(140, 160), numbers(140, 40, seed=1)
    lp.wrap(
        model,
        f"*: input_gradient.gradient={gradient} input_gradient.weight={other} "
        f"input_gradient.datapath={path} weight_gradient.gradient={gradient} "
        f"weight_gradient.activation={other} weight_gradient.datapath={path}",
    )
    seeds = dict(zip(("input_gradient", "weight_gradient"), _next_seeds(model), strict=True))

    def coded(t: Tensor, quantizer: str, seed: int | None = None) -> lp.QTensor:
        return lp.quantize(t.detach().contiguous(), quantizer, random=seed)

    w = model.weight
    dx, dw = gradients(model, x, g)
    expected = lp.matmul(
        coded(g, gradient, seeds["input_gradient"]), coded(w.T, other), datapath=path
    )
    assert torch.equal(dx, expected)
    expected = lp.matmul(
        coded(x.T, other), coded(g.T, gradient, seeds["weight_gradient"]), datapath=path
    )
    assert torch.equal(dw, expected.T)
    assert not torch.allclose(dx, q(g, "float32/cast", 1) @ w, rtol=1e-3)


def _next_seeds(model: nn.Module) -> list[int | None]:
    """The seeds of both gradients at the next call."""
    site = copy.deepcopy(sites_of(model).get("linear"))
    return [
        site.seed_for(f"{table}.gradient", getattr(site.rule, table).gradient)
        for table in ("input_gradient", "weight_gradient")
    ]


def test_under_a_datapath_square_tiles_serve_both_passes() -> None:
    tiles, rows = "float8_e4m3fn_128x128/amax", "float8_e4m3fn_1x128/amax"
    model, x, g = nn.Linear(160, 140, bias=False), numbers(20, 160), numbers(20, 140, seed=1)
    text = f"*: weight={tiles} input_gradient.gradient={rows} "
    text += "input_gradient.datapath=hopper_fp8_deepseek"
    dx, _ = gradients(lp.wrap(model, text), x, g)
    pair = lp.quantize(g, rows), lp.quantize(model.weight.detach().T.contiguous(), tiles)
    assert torch.equal(dx, lp.matmul(*pair, datapath="hopper_fp8_deepseek"))
    lp.wrap(lp.unwrap(model), text.replace(tiles, rows))
    with pytest.raises(LowprecError, match=r"input_gradient: a datapath needs weight, since"):
        gradients(model, x, g)


def test_experts_have_datapaths_too() -> None:
    f, path = "float8_e4m3fn_tensor/amax", "hopper_fp8"
    text = "; ".join(
        [
            "up: "
            + " ".join(
                f"{t}.gradient={f} {t}.{n}={f} {t}.datapath={path}"
                for t, n in (("input_gradient", "weight"), ("weight_gradient", "activation"))
            )
        ]
    )
    x, g = numbers(33, 40), numbers(33, 24, seed=1)
    dx, dw = gradients(lp.wrap(Experts(), text), x, g, **OFFSETS)
    w = Experts().up.detach()
    assert not dw[1].any()
    for i, (start, end) in ((0, (0, 5)), (2, (5, 33))):
        pair = g[start:end], w[i].contiguous()
        own = lp.matmul(*pair, a=f, w=f, datapath=path)
        assert torch.equal(dx[start:end], own)
        pair = x[start:end].T.contiguous(), g[start:end].T.contiguous()
        assert torch.equal(dw[i], lp.matmul(*pair, a=f, w=f, datapath=path))


def test_a_weight_that_is_frozen_gets_none() -> None:
    model, x, g = nn.Linear(40, 24), numbers(66, 40), numbers(66, 24, seed=1)
    model.weight.requires_grad_(False)
    dx, dw, _ = gradients(lp.wrap(model, RECIPE), x, g)
    assert dw is None
    assert torch.equal(dx, q(g, E5M2, 1) @ q(model.weight, MX, 0))


def test_saved_for_the_backward_pass_is_one_activation() -> None:
    model = lp.wrap(nn.Linear(400, 24), RECIPE)
    x, saved = numbers(66, 400).requires_grad_(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = model(x)
    kept = {t.untyped_storage()._cdata: t.numel() for t in saved}
    assert y.requires_grad
    assert sum(kept.values()) == x.numel() + model.weight.numel()


def test_activation_checkpointing_gives_the_same_gradients() -> None:
    from torch.utils.checkpoint import checkpoint

    model, x, g = lp.wrap(nn.Linear(40, 24), RECIPE), numbers(66, 40), numbers(66, 24, seed=1)
    expected = gradients(model, x, g)
    x = x.requires_grad_()
    model.zero_grad()
    checkpoint(model, x, use_reentrant=False).backward(g)
    assert equal((x.grad, *(p.grad for p in model.parameters())), expected)


# Dynamo's own way to trace an autograd.Function.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_torch_compile_traces_it_whole() -> None:
    model, x, g = lp.wrap(nn.Linear(40, 24), RECIPE), numbers(66, 40), numbers(66, 24, seed=1)
    expected = gradients(copy.deepcopy(model), x, g)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert equal(gradients(compiled, x, g), expected)


def test_a_whole_model_trains() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    lp.wrap(model, RECIPE)
    x = numbers(64, 16).tanh()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4


def test_shapes_that_do_not_fit_are_named() -> None:
    class Broadcast(Experts):
        def forward(self, x: Tensor) -> Tensor:
            return x @ self.up

    model = lp.wrap(Broadcast(), f"up: weight_gradient.gradient={MX}")
    with pytest.raises(LowprecError, match=r"\[5, 40\] times w \[3, 40, 24\]: expected the same"):
        model(numbers(5, 40).requires_grad_())


def test_nothing_is_kept_without_gradients() -> None:
    model = lp.wrap(nn.Linear(40, 24), f"*: weight_gradient.gradient={SR}")
    with torch.no_grad():
        assert not model(numbers(3, 40)).requires_grad
    assert sites_of(model).get("linear").draws == 0
