"""Optimizer states, weights and masters between steps."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowprec as lp
from lowprec.errors import LowprecError
from lowprec.kernels import QTensor
from lowprec.nn.training.optimizer import optimizer_nbytes, quantize_optimizer

ADAM = {"exp_avg": "float8_e4m3fn/amax:32", "exp_avg_sq": "bfloat16/cast"}


def model_of(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(64, 32).to(dtype)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    p = next(model.parameters())
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(seed)).to(p.dtype)
    optimizer.zero_grad()
    F.mse_loss(model(x), x[:, :32]).backward()
    optimizer.step()


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(map(torch.equal, a, b))


def test_adam_with_quantized_states_is_the_reference_written_out() -> None:
    model, plain = model_of(), model_of()
    optimizer = quantize_optimizer(torch.optim.Adam(model.parameters(), 1e-2, foreach=False), ADAM)
    reference = torch.optim.Adam(plain.parameters(), 1e-2, foreach=False)
    for seed in range(4):
        step(model, optimizer, seed)
        step(plain, reference, seed)
        for p in plain.parameters():
            for name, quantizer in ADAM.items():
                state = reference.state[p]
                state[name] = lp.fake_quantize(state[name], quantizer)
        assert equal(weights(model), weights(plain))
    state = optimizer.state[model.weight]
    assert isinstance(state["exp_avg"], QTensor)
    assert state["exp_avg"].codes.dtype == torch.uint8
    assert not equal(weights(model), weights(model_of()))


def test_states_take_the_memory_of_their_codes() -> None:
    model = model_of()
    optimizer = quantize_optimizer(
        torch.optim.Adam(model.parameters()), dict.fromkeys(ADAM, "float8_e4m3fn/amax:32")
    )
    step(model, optimizer, 0)
    scaled = 64 * 32 + 64 * 32 // 32 * 4 + 32 + 4
    assert optimizer_nbytes(optimizer) == 2 * scaled + 2 * 4  # and two counts of steps


def test_weights_in_bfloat16_follow_their_float32_masters() -> None:
    model, plain = model_of(torch.bfloat16), model_of(torch.bfloat16).float()
    storage = model.weight.data_ptr()
    optimizer = quantize_optimizer(torch.optim.Adam(model.parameters(), 1e-4), weight="bfloat16")
    reference = torch.optim.Adam(plain.parameters(), 1e-4)
    for seed in range(5):
        step(model, optimizer, seed)
        # The reference takes its gradients at the rounded weights, and updates the masters.
        masters = weights(plain)
        with torch.no_grad():
            for p in plain.parameters():
                p.copy_(p.bfloat16())
        half = copy.deepcopy(plain).bfloat16()
        x = torch.randn(16, 64, generator=torch.Generator().manual_seed(seed)).bfloat16()
        F.mse_loss(half(x), x[:, :32]).backward()
        for p, h, m in zip(plain.parameters(), half.parameters(), masters, strict=True):
            p.grad = h.grad.float()
            p.data.copy_(m)
        reference.step()
        assert equal(weights(model), [p.bfloat16() for p in weights(plain)])
    assert model.weight.dtype == torch.bfloat16
    assert model.weight.data_ptr() == storage


def test_without_masters_small_updates_are_lost_unless_rounding_is_stochastic() -> None:
    def moved(weight: str, master: str | None) -> float:
        p = nn.Parameter(torch.ones(4096))
        optimizer = torch.optim.SGD([p], lr=2.0**-12)
        quantize_optimizer(optimizer, weight=weight, master=master)
        for _ in range(16):
            p.grad = torch.ones_like(p)
            optimizer.step()
        return 1 - p.mean().item()

    assert moved("bfloat16", None) == 0
    assert moved("bfloat16", "float32/cast") == 2.0**-8
    assert moved("bfloat16/cast/stochastic:16", None) == pytest.approx(2.0**-8, rel=0.05)


def test_wrapped_weights_are_quantized_anew_after_a_step() -> None:
    model = lp.wrap(model_of(), "*: weight=mxfp4/floor")
    optimizer = quantize_optimizer(torch.optim.SGD(model.parameters(), 1.0), weight="bfloat16")
    x = torch.randn(4, 64)
    with torch.no_grad():
        model(x)  # keeps the codes of the weights
    step(model, optimizer, 0)
    with torch.no_grad():
        fresh = F.linear(x, lp.fake_quantize(model.weight, "mxfp4/floor"), model.bias)
        assert torch.equal(model(x), fresh)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_state_goes_on_bit_for_bit(dtype: torch.dtype) -> None:
    def make() -> tuple[nn.Module, Any]:
        model = model_of(dtype)
        states = {"exp_avg": "float8_e4m3fn/amax:32/stochastic:8", "exp_avg_sq": "bfloat16"}
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        return model, quantize_optimizer(optimizer, states, weight="bfloat16/cast/stochastic:16")

    model, optimizer = make()
    for seed in range(2):
        step(model, optimizer, seed)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    for seed in range(2, 4):
        step(model, optimizer, seed)
    again, resumed = make()
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    for seed in range(2, 4):
        step(again, resumed, seed)
    assert equal(weights(model), weights(again))


def test_schedulers_and_the_gradient_scaler_work_with_it() -> None:
    model = model_of()
    optimizer = quantize_optimizer(
        torch.optim.Adam(model.parameters(), 1e-2), ADAM, weight="float16"
    )
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, 4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
    for k in range(3):
        before = weights(model)
        optimizer.zero_grad()
        loss = model(torch.randn(16, 64)).square().mean()
        scaler.scale(loss).backward()
        if k == 2:
            model.weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        assert equal(before, weights(model)) == (k == 2)
    assert scaler.get_scale() == 2.0**8  # grown once, halved once
    assert isinstance(optimizer.state[model.weight]["exp_avg"], QTensor)


def test_what_cannot_be_is_said() -> None:
    model = model_of()
    optimizer = quantize_optimizer(
        torch.optim.Adam(model.parameters()), {"exp_average": "bfloat16"}
    )
    with pytest.raises(LowprecError, match=r"Adam: unknown state 'exp_average'.*exp_avg"):
        step(model, optimizer, 0)
    optimizer = quantize_optimizer(torch.optim.SGD(model.parameters(), 1.0), weight="bfloat16")
    with pytest.raises(LowprecError, match="closure"):
        optimizer.step(lambda: 0.0)
    optimizer = quantize_optimizer(
        torch.optim.SGD(model.parameters(), 1.0, momentum=0.9), {"momentum_buffer": "mxfp4/floor"}
    )
    model.weight.grad = torch.full_like(model.weight, float("nan"))
    optimizer.step()  # a block's scale has a NaN
    assert optimizer.state[model.weight]["momentum_buffer"].dequantize().isnan().all()
    optimizer = quantize_optimizer(
        torch.optim.SGD(model.parameters(), 1.0, momentum=0.9), {"momentum_buffer": "int8/cast"}
    )
    with pytest.raises(LowprecError, match="momentum_buffer of parameter 0: int8: NaN has no code"):
        optimizer.step()
