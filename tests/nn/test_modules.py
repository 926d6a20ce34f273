"""lp.nn: torch's modules under a rule of their own."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

import lowprec as lp
from lowprec.nn import Emulated
from lowprec.nn import modules as m

Q = "mxfp8_e4m3/floor"
X = torch.randn(2, 6, 64, generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(1))
TOKENS = torch.tensor([[1, 2, 3], [4, 5, 6]])
ROUTES = (torch.tensor([[0, 1], [3, 1], [1, 0], [0, 2], [2, 0], [3, 2]]), torch.rand(6, 2))

# The class, its plain one, arguments, operands, and inputs.
CASES = [
    (m.Linear, nn.Linear, (64, 32), {"weight": Q, "activation": Q}, (X,)),
    (m.Conv1D, Conv1D, (32, 64), {"weight": Q}, (X,)),
    (m.Conv1d, nn.Conv1d, (6, 4, 3), {"weight": Q}, (X,)),
    (m.Conv2d, nn.Conv2d, (8, 4, 3), {"weight": Q, "output": Q}, (IMAGE,)),
    (m.Conv3d, nn.Conv3d, (2, 4, 3), {"activation": Q}, (IMAGE[None],)),
    (m.ConvTranspose1d, nn.ConvTranspose1d, (6, 4, 3), {"weight": Q}, (X,)),
    (m.ConvTranspose2d, nn.ConvTranspose2d, (8, 4, 3), {"weight": Q}, (IMAGE,)),
    (m.ConvTranspose3d, nn.ConvTranspose3d, (2, 4, 3), {"weight": Q}, (IMAGE[None],)),
    (m.Embedding, nn.Embedding, (10, 64), {"weight": Q}, (TOKENS,)),
    (m.EmbeddingBag, nn.EmbeddingBag, (10, 64), {"weight": Q}, (TOKENS,)),
    (m.MultiheadAttention, nn.MultiheadAttention, (64, 4), {"weight": Q, "query": Q}, (X, X, X)),
    (m.LSTM, nn.LSTM, (64, 32), {"weight": Q}, (X,)),
    (m.GRU, nn.GRU, (64, 32), {"weight": Q}, (X,)),
    (m.RNN, nn.RNN, (64, 32), {"weight": Q}, (X,)),
    (m.LSTMCell, nn.LSTMCell, (64, 32), {"weight": Q}, (X[0],)),
    (m.GRUCell, nn.GRUCell, (64, 32), {"weight": Q}, (X[0],)),
    (m.RNNCell, nn.RNNCell, (64, 32), {"weight": Q}, (X[0],)),
    (m.LayerNorm, nn.LayerNorm, (64,), {"output": Q}, (X,)),
    (m.RMSNorm, nn.RMSNorm, (64,), {"approximation": {"rsqrt": "bits:6"}}, (X,)),
    (m.GroupNorm, nn.GroupNorm, (2, 8), {"input": Q}, (IMAGE,)),
    (m.Softmax, nn.Softmax, (-1,), {"approximation": {"exp2": "poly:2"}}, (X,)),
    (m.GELU, nn.GELU, (), {"input": Q}, (X,)),
    (m.SiLU, nn.SiLU, (), {"approximation": {"exp2": "poly:2"}}, (X,)),
    (m.Experts, m._Experts, (4, 64, 32), {"weight": Q, "activation": Q}, (X[0], *ROUTES)),
]  # fmt: skip


def first(y):
    return y[0] if isinstance(y, tuple) else y


def test_every_class_is_tried():
    assert {case[0].__name__ for case in CASES} == set(m.__all__)
    assert all(getattr(lp.nn, name) is getattr(m, name) for name in m.__all__)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_a_module_of_its_own_equals_a_wrapped_one(case):
    kind, plain, args, operands, inputs = case
    torch.manual_seed(0)
    module = kind(*args, **operands)
    torch.manual_seed(0)
    wrapped = plain(*args)
    before = first(wrapped(*inputs)).detach()
    assert isinstance(module, kind)
    assert isinstance(module, plain)
    assert isinstance(module, Emulated)
    rule = {"match": "*", **operands}
    if kind.operation is not None:
        rule["operation"] = kind.operation
    lp.wrap(wrapped, {"name": "same", "rules": [rule]})
    y = first(module(*inputs))
    assert torch.equal(y, first(wrapped(*inputs)))
    assert not torch.equal(y, before)
    assert list(module.state_dict()) == list(wrapped.state_dict())
    assert type(lp.unwrap(module)) is plain
    assert torch.equal(first(module(*inputs)), before)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_from_float_shares_the_parameters_and_leaves_the_module_alone(case):
    kind, plain, args, operands, inputs = case
    float_module = plain(*args)
    before = first(float_module(*inputs)).detach()
    module = kind.from_float(float_module, **operands)
    assert type(float_module) is plain
    assert not any(isinstance(part, Emulated) for part in float_module.modules())
    for (name, p), (its, q) in zip(
        module.named_parameters(), float_module.named_parameters(), strict=True
    ):
        assert name == its
        assert p is q
    y = first(module(*inputs))
    assert torch.equal(first(float_module(*inputs)), before)
    assert not torch.equal(y, before)
    assert torch.equal(first(copy.deepcopy(module)(*inputs)), y)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_without_a_word_it_is_the_plain_module(case):
    kind, plain, args, _, inputs = case
    float_module = plain(*args)
    module = kind.from_float(float_module)
    assert torch.equal(first(module(*inputs)), first(float_module(*inputs)))


def test_keyword_arguments_a_datapath_and_a_transform():
    torch.manual_seed(0)
    linear = lp.nn.Linear(
        64, out_features=32, bias=False, dtype=torch.float32, weight="float8_e4m3fn/cast",
        activation="float8_e4m3fn/cast", datapath="hopper_fp8",
    )  # fmt: skip
    q = "float8_e4m3fn/cast"
    expected = lp.matmul(X, linear.weight, a=q, w=q, datapath="hopper_fp8")
    assert torch.equal(linear(X), expected)
    rotated = lp.nn.Linear(64, 32, transform={"rotation": 32}, weight=Q)
    close = F.linear(X, rotated.weight, rotated.bias)
    torch.testing.assert_close(rotated(X), close, rtol=0.2, atol=0.2)
    assert "weight=mxfp8_e4m3/floor" in repr(rotated)


def test_they_are_parts_of_a_model_and_its_coverage():
    model = nn.Sequential(lp.nn.Linear(64, 64, weight=Q), nn.ReLU(), nn.Linear(64, 8))
    found = lp.coverage(model, X)
    assert found.share == pytest.approx(64 / 72)
    with pytest.raises(lp.LowprecError, match="wrapped already"):
        lp.wrap(model, Q)
    assert type(lp.unwrap(model)[0]) is nn.Linear


def test_experts_are_the_sum_of_mlps():
    torch.manual_seed(0)
    experts = lp.nn.Experts(4, 64, 32, weight=Q, activation=Q)
    x, (index, weights) = X[0], ROUTES
    expected = torch.zeros(6, 64)
    for t in range(6):
        for e, weight in zip(index[t].tolist(), weights[t], strict=True):
            up_w, down_w = (
                lp.fake_quantize(w[e].detach(), Q)
                for w in (experts.gate_up_proj, experts.down_proj)
            )
            gate, up = F.linear(lp.fake_quantize(x[t], Q), up_w).chunk(2)
            inner = lp.fake_quantize(F.silu(gate) * up, Q)
            expected[t] += weight * F.linear(inner, down_w)
    y = experts(x, index, weights)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
    y.sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in experts.parameters())
    one = lp.nn.Experts(4, 64, 32)
    assert one(x[:1], index[:1], weights[:1]).shape == (1, 64)
    assert lp.coverage(lp.nn.Experts(4, 64, 32, weight=Q), x, index, weights).share == 1


def test_compiled_and_on_the_meta_device():
    linear = lp.nn.Linear(64, 32, weight=Q, activation=Q)
    compiled = torch.compile(linear, fullgraph=True, backend="eager")
    assert torch.equal(compiled(X), linear(X))
    meta = lp.nn.Linear(64, 32, weight=Q, device="meta")
    assert meta(X.to("meta")).shape == (2, 6, 32)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: lp.nn.Linear(4, 4, weight="mxfp5/floor"), "rules.0.weight: unknown format"),
        (lambda: lp.nn.Linear(4, 4, query=Q), "linear has no operand 'query'"),
        (lambda: lp.nn.Linear.from_float(nn.Conv1d(4, 4, 1)), "takes a Linear, not a Conv1d"),
        (lambda: lp.nn.Linear.from_float(nn.Linear(4, 4), wieght=Q), "unknown keyword 'wieght'"),
    ],
)  # fmt: skip
def test_bad_words_are_errors(build, message):
    with pytest.raises(lp.LowprecError) as caught:
        build()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_it_is_a_name_of_lowprec():
    assert lp.nn is sys.modules["lowprec.nn"]
    assert "nn" in dir(lp)
