"""Recurrent layers and cells: torch's own results, and the bits of an explicit reference."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from lowprec import coverage, fake_quantize, wrap
from lowprec.nn import Emulated

# A format that holds every float32 keeps all bits.
EXACT = "*: weight=float32/cast activation=float32/cast"


def close(a, b) -> None:
    a, b = (list(flat(x)) for x in (a, b))
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=2e-6, atol=2e-6)


def flat(x):
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, PackedSequence):
        yield from (x.data, x.batch_sizes)
    else:
        for each in x:
            yield from flat(each)


OPTIONS = [
    {"num_layers": 1, "bidirectional": False, "batch_first": False},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"num_layers": 2, "bidirectional": True, "batch_first": False, "bias": False},
]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_without_a_loss_it_is_torch_s_own(kind, options):
    torch.manual_seed(0)
    layer = kind(8, 12, **options)
    x = torch.randn(3, 5, 8)
    packed = pack_padded_sequence(
        x, [5, 4, 2] if options["batch_first"] else [3, 2, 1, 1, 1], options["batch_first"]
    )  # fmt: skip
    state = torch.randn(options["num_layers"] * (1 + options["bidirectional"]), 1, 12)
    start = state.expand(-1, 3 if options["batch_first"] else 5, -1).contiguous()
    start = (start, start * 0.5) if kind is nn.LSTM else start
    cases = [(x,), (x, start), (packed,), (packed, start), (x[0],)]
    before = [layer(*case) for case in cases]
    wrap(nn.Sequential(layer), EXACT)
    assert isinstance(layer, Emulated)
    for case, expected in zip(cases, before, strict=True):
        close(layer(*case), expected)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}], ids=str)
def test_a_projected_lstm_is_torch_s_own(options):
    torch.manual_seed(0)
    layer = nn.LSTM(8, 12, proj_size=4, **options)
    x = torch.randn(5, 3, 8)
    before = layer(x)
    wrap(nn.Sequential(layer), EXACT)
    close(layer(x), before)


def test_relu_and_dropout_between_layers():
    torch.manual_seed(0)
    layer = nn.RNN(8, 12, nonlinearity="relu", num_layers=2, dropout=0.5)
    x = torch.randn(5, 3, 8)
    before = layer.eval()(x)
    wrap(nn.Sequential(layer), EXACT)
    close(layer(x), before)
    layer.train()
    assert not torch.equal(layer(x)[0], layer(x)[0])


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_a_cell_without_a_loss_is_torch_s_own(kind):
    torch.manual_seed(0)
    cell = kind(8, 12)
    x = torch.randn(3, 8)
    before = cell(x), cell(x[0])
    wrap(nn.Sequential(cell), EXACT)
    close((cell(x), cell(x[0])), before)


def test_the_gates_products_have_quantized_operands():
    torch.manual_seed(0)
    cell = nn.LSTMCell(32, 32)
    x, h, c = torch.randn(3, 4, 32)
    q = "mxfp4/floor"
    w_ih, w_hh = (fake_quantize(w.detach(), q) for w in (cell.weight_ih, cell.weight_hh))
    gates = F.linear(fake_quantize(x, q), w_ih, cell.bias_ih)
    gates = gates + F.linear(fake_quantize(h, q), w_hh, cell.bias_hh)
    i, f, g, o = gates.chunk(4, -1)
    new_c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    new_h = o.sigmoid() * new_c.tanh()
    wrap(nn.Sequential(cell), q)
    found = cell(x, (h, c))
    assert torch.equal(found[0], new_h)
    assert torch.equal(found[1], new_c)


def test_a_gru_s_elementwise_functions_by_their_own_rule():
    torch.manual_seed(0)
    cell = nn.GRUCell(32, 16)
    x, h = torch.randn(4, 32), torch.randn(4, 16)
    a, b = F.linear(x, cell.weight_ih, cell.bias_ih), F.linear(h, cell.weight_hh, cell.bias_hh)

    def cast(t):
        return t.bfloat16().float()

    r = cast(a[:, :16] + b[:, :16]).sigmoid()
    z = cast(a[:, 16:32] + b[:, 16:32]).sigmoid()
    n = cast(a[:, 32:] + r * b[:, 32:]).tanh()
    wrap(nn.Sequential(cell), "*: operation=elementwise input=bfloat16")
    assert torch.equal(cell(x, h), n + z * (h - n))


def test_one_weight_alone():
    torch.manual_seed(0)
    layer = nn.GRU(32, 32)
    x = torch.randn(2, 3, 32)
    plain = nn.GRU(32, 32)
    plain.load_state_dict(layer.state_dict())
    plain.weight_hh_l0.data = fake_quantize(plain.weight_hh_l0.data, "mxfp4/floor")
    wrap(nn.Sequential(layer), "0.weight_hh_l0: weight=mxfp4/floor")
    close(layer(x), plain(x))


def test_gradients_meta_compile_and_coverage():
    torch.manual_seed(0)
    x = torch.randn(3, 2, 32, requires_grad=True)
    layer = nn.LSTM(32, 16, num_layers=2, bidirectional=True)
    model = wrap(nn.Sequential(layer), "mxfp8_e4m3/floor", strict=True)
    y = model(x)[0]
    y.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())
    assert x.grad.abs().sum() > 0
    found = coverage(model, x)
    assert found.share == 1
    assert not found.holes
    # 2 directions of 3 steps of batch 2: 4 gates of 16 from 32 (both layers) and from 16.
    assert sum(e.flops for e in found.entries) == 2 * 2 * 3 * 2 * 2 * 64 * (32 + 16)
    meta = wrap(nn.Sequential(nn.LSTM(32, 16, device="meta")), "mxfp8_e4m3/floor")
    assert meta(torch.zeros(3, 2, 32, device="meta"))[0].shape == (3, 2, 16)


def test_cells_compile():
    torch.manual_seed(0)
    cell = nn.LSTMCell(32, 32)
    wrap(nn.Sequential(cell), "mxfp8_e4m3/floor")
    x = torch.randn(4, 32)
    compiled = torch.compile(cell, fullgraph=True, backend="eager")
    close(compiled(x), cell(x))


def test_layers_compile_where_dynamo_is_told_to(monkeypatch):
    monkeypatch.setattr(torch._dynamo.config, "allow_rnn", True)
    torch.manual_seed(0)
    layer = nn.GRU(32, 32)
    wrap(nn.Sequential(layer), "mxfp8_e4m3/floor")
    x = torch.randn(3, 2, 32)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    close(compiled(x), layer(x))
