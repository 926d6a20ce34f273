"""Delayed scaling against Transformer Engine's rule written out, and what is saved of it."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowprec as lp
from lowprec.errors import LowprecError
from lowprec.nn.emulation import sites_of
from lowprec.nn.training.state import load_training_state, training_state

E4M3, E5M2 = "float8_e4m3fn_tensor/static", "float8_e5m2_tensor/static"
RECIPE = (
    f"*: weight={E4M3} activation={E4M3} input_gradient.gradient={E5M2} "
    f"weight_gradient.gradient={E5M2} delayed.history=3"
)


class Meta:
    """Transformer Engine's amax history and scale of one tensor, as its kernel updates them
    (transformer_engine/common/recipe/delayed_scaling.cu): row 0 holds the current amax."""

    def __init__(self, largest: float, length: int, algorithm: str, margin: int) -> None:
        self.history, self.scale = [0.0] * length, torch.tensor(1.0)
        self.algorithm, self.scaled_max = algorithm, largest * 2.0**-margin

    def quantize(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        self.history[0] = float(x.abs().max())
        largest = torch.finfo(dtype).max
        return (x * self.scale).clamp(-largest, largest).to(dtype).float() / self.scale

    def update(self) -> None:
        last = self.history[0]
        rolled = [*self.history[1:], last]
        amax = max(rolled) if self.algorithm == "max" else last
        self.history = [0.0, *rolled[1:]]
        if amax > 0 and amax != float("inf"):
            self.scale = torch.tensor(self.scaled_max) / torch.tensor(amax)


@pytest.mark.parametrize("algorithm", ["max", "most_recent"])
@pytest.mark.parametrize("margin", [0, 2])
@pytest.mark.parametrize("length", [1, 3])
def test_it_is_transformer_engines(algorithm: str, margin: int, length: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(32, 16, bias=False)
    recipe = f"{RECIPE} delayed.reduce={algorithm} delayed.margin={margin}"
    lp.wrap(model, recipe.replace("history=3", f"history={length}"))
    metas = [Meta(m, length, algorithm, margin) for m in (448, 448, 57344)]
    # Amaxes of 7 * 2^n, as the formats' largest values are: scales are powers of two, so that
    # the quotient here and the product there are the same.
    for k, size in enumerate([1.0, 2.0**9, 2.0**-3, 0.0, 2.0**11, 1.0, 1.0, 1.0, 1.0]):
        x = torch.randn(24, 32).clamp(-3, 3) * size
        x[0, 0], g = 3.5 * size, torch.randn(24, 16)
        g[0, 0] = 14.0
        with torch.no_grad():
            model.weight.copy_(torch.randn(16, 32).clamp(-2, 2))
            model.weight[0, 0] = 3.5
        x.requires_grad_()
        model.zero_grad()
        y = model(x)
        y.backward(g)
        xq = metas[0].quantize(x.detach(), torch.float8_e4m3fn)
        wq = metas[1].quantize(model.weight.detach(), torch.float8_e4m3fn)
        gq = metas[2].quantize(g, torch.float8_e5m2)
        assert torch.equal(y, F.linear(xq, wq)), k
        assert torch.equal(x.grad, gq @ wq)
        assert torch.equal(model.weight.grad, gq.T @ xq)
        for meta in metas:
            meta.update()
        histories = sites_of(model).get("linear").histories
        for name, meta in zip(
            ["activation", "weight", "input_gradient.gradient"], metas, strict=True
        ):
            assert torch.equal(histories[name].scale, 1 / meta.scale)


def test_the_first_scale_is_one() -> None:
    x = torch.tensor([[1000.0, 0.3]])
    model = lp.wrap(nn.Linear(2, 1, bias=False), f"*: activation={E4M3} delayed")
    with torch.no_grad():
        model.weight.fill_(1.0)
    assert model(x).item() == 448 + 0.3125
    assert model(x).item() == float(lp.fake_quantize(x, "float8_e4m3fn_tensor/amax").sum())


def test_current_scaling_is_the_rule_amax_and_equals_most_recent_on_the_same_data() -> None:
    x = torch.randn(8, 32)
    current = lp.wrap(nn.Linear(32, 16), "*: activation=float8_e4m3fn_tensor/amax")
    delayed = copy.deepcopy(lp.unwrap(copy.deepcopy(current)))
    lp.wrap(delayed, f"*: activation={E4M3} delayed.history=1 delayed.reduce=most_recent")
    first = delayed(x)
    assert not torch.equal(first, current(x))
    assert torch.equal(delayed(x), current(x))


def test_nothing_is_remembered_without_gradients() -> None:
    model, x = lp.wrap(nn.Linear(32, 16), RECIPE), torch.randn(8, 32)
    model(x)
    before = training_state(model)
    with torch.no_grad():
        model(100 * x)
    after = training_state(model)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_values_that_are_not_finite_leave_the_scale() -> None:
    model, x = lp.wrap(nn.Linear(32, 16), RECIPE), torch.randn(8, 32)
    model(x)
    history = sites_of(model).get("linear").histories["activation"]
    scale = history.scale
    for bad in ("inf", "nan"):
        x[0, 0] = float(bad)
        model(x)
        assert torch.equal(history.scale, scale)
    x[0, 0] = 100.0
    for _ in range(3):
        model(x)
    assert history.scale.item() == pytest.approx(100 / 448)


def train(model: nn.Module, steps: range) -> list[Tensor]:
    found = []
    for k in steps:
        x = torch.randn(8, 32, generator=torch.Generator().manual_seed(k)).requires_grad_()
        model.zero_grad()
        model(x).square().sum().backward()
        found += [x.grad, model.weight.grad.clone()]
    return found


SR = "mxfp4/floor/stochastic:8"


@pytest.mark.parametrize("recipe", [RECIPE, f"*: activation={SR} weight_gradient.gradient={SR}"])
def test_what_is_remembered_survives_a_copy_and_a_save(recipe: str) -> None:
    torch.manual_seed(0)
    model = lp.wrap(nn.Linear(32, 16), recipe)
    train(model, range(2))
    copied, state = copy.deepcopy(model), training_state(model)
    fresh = nn.Linear(32, 16)
    fresh.load_state_dict(model.state_dict())
    lp.wrap(fresh, recipe)
    forgetful = copy.deepcopy(fresh)
    load_training_state(fresh, state)
    expected = train(model, range(2, 4))
    for other in (copied, fresh):
        assert all(map(torch.equal, train(other, range(2, 4)), expected))
    assert not all(map(torch.equal, train(forgetful, range(2, 4)), expected))


def test_a_state_of_another_model_is_refused() -> None:
    model = lp.wrap(nn.Sequential(nn.Linear(32, 16)), RECIPE)
    model(torch.randn(8, 32))
    state = training_state(model)
    assert "0:linear:0/activation/amaxes" in state
    with pytest.raises(LowprecError, match=r"no such site"):
        load_training_state(lp.wrap(nn.Linear(32, 16), RECIPE), state)
    longer = lp.wrap(nn.Sequential(nn.Linear(32, 16)), RECIPE.replace("=3", "=4"))
    with pytest.raises(LowprecError, match=r"amaxes of \w+ is \[3\], expected \[4\]"):
        load_training_state(longer, state)


def test_each_expert_has_a_history() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Parameter(torch.tensor([1.0, 100.0]).view(2, 1, 1) * torch.ones(2, 8, 4))

        def forward(self, x: Tensor) -> Tensor:
            return torch.bmm(x, self.up)

    model = lp.wrap(Experts(), f"up: weight={E4M3} delayed")
    model(torch.randn(2, 3, 8))
    histories = next(iter(sites_of(model))).histories
    assert [float(h.amaxes[0]) for h in histories.values()] == [1.0, 100.0]


def test_it_needs_scales_of_a_whole_tensor() -> None:
    with pytest.raises(LowprecError, match="delayed scales are of a whole tensor"):
        lp.recipe("*: weight=float8_e4m3fn_channel/static delayed")
    with pytest.raises(LowprecError, match="delayed needs an operand whose scale is static"):
        lp.recipe("*: weight=float8_e4m3fn_tensor/amax delayed")


def test_torch_compile_remembers() -> None:
    model = lp.wrap(nn.Linear(32, 16), f"*: activation={E4M3} weight={E4M3} delayed.history=4")
    compiled = torch.compile(copy.deepcopy(model), backend="aot_eager", fullgraph=True)
    assert all(map(torch.equal, train(compiled, range(3)), train(model, range(3))))


@pytest.mark.parametrize("words", ["delayed", "delayed.history=4 delayed.margin=1"])
def test_it_is_spelled(words: str) -> None:
    recipe = lp.recipe(f"*: weight={E4M3} {words}")
    assert recipe.rules[0].delayed is not None
    assert lp.recipe(recipe.spell()).rules == recipe.rules
