"""Convolutions: the bits of explicit references, and of the same sums under a datapath."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lowprec import LowprecError, coverage, dot, fake_quantize, unwrap, wrap

MX = "*: weight=mxfp4/floor activation=mxfp8_e4m3/floor"
A, W = "mxfp8_e4m3/floor", "mxfp4/floor"
CONVS = (F.conv1d, F.conv2d, F.conv3d)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.detach().view(torch.int32), b.detach().view(torch.int32))


def channels_quantized(x: torch.Tensor, q: str, groups: int, axis: int) -> torch.Tensor:
    """Blocks along `axis` within each of `groups` parts of it."""
    parts = x.detach().movedim(axis, -1).chunk(groups, -1)
    return (
        torch.cat([fake_quantize(part.contiguous(), q) for part in parts], -1)
        .movedim(-1, axis)
        .contiguous()
    )


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1, "dilation": 2},
        {"padding": "same", "groups": 2},
        {"padding": "valid", "bias": False},
        {"padding": 1, "padding_mode": "reflect", "groups": 2},
        {"padding": 2, "padding_mode": "circular"},
    ],
    ids=str,
)
def test_blocks_run_along_the_channels_of_a_group(dims, options):
    torch.manual_seed(0)
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    conv = kind(72, 8, 3, **options)  # a group of 36 has a ragged block
    plain = kind(72, 8, 3, **options)
    groups = options.get("groups", 1)
    plain.weight.data = channels_quantized(conv.weight, W, 1, 1)
    plain.bias = conv.bias
    x = torch.randn(2, 72, *[6] * dims)
    wrap(nn.Sequential(conv), MX)
    expected = plain(channels_quantized(x, A, groups, 1))
    assert same(conv(x), expected)
    assert same(conv(x[0]), plain(channels_quantized(x, A, groups, 1)[0]))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(
    "options", [{}, {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}], ids=str
)
def test_a_transposed_one_too(dims, options):
    torch.manual_seed(0)
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
    conv, plain = kind(72, 8, 3, **options), kind(72, 8, 3, **options)
    groups = options.get("groups", 1)
    plain.weight.data = channels_quantized(conv.weight, W, groups, 0)
    plain.bias = conv.bias
    x = torch.randn(2, 72, *[4] * dims)
    wrap(nn.Sequential(conv), MX)
    assert same(conv(x), plain(channels_quantized(x, A, groups, 1)))


def test_scales_per_tensor_and_per_output_channel():
    torch.manual_seed(0)
    conv = nn.Conv2d(16, 8, 3)
    x = torch.randn(2, 16, 6, 6)
    w = conv.weight.detach()
    for rule, expected in (
        ("float8_e4m3fn/amax:tensor", fake_quantize(w, "float8_e4m3fn/amax:tensor")),
        ("int8/amax:channel", fake_quantize(w.flatten(1), "int8/amax:channel").view_as(w)),
    ):
        model = wrap(nn.Sequential(conv), f"*: operation=conv weight={rule}")
        assert same(model(x), F.conv2d(x, expected, conv.bias))
        unwrap(model)


def test_the_output_is_quantized_along_its_channels():
    torch.manual_seed(0)
    conv = nn.Conv2d(8, 32, 1)
    x = torch.randn(2, 8, 5, 5)
    y = fake_quantize(conv(x).detach(), A, axis=1)
    wrap(nn.Sequential(conv), f"*: operation=conv output={A}")
    assert same(conv(x), y)


def test_gradients_pass_straight_through():
    torch.manual_seed(0)
    conv = nn.Conv2d(64, 8, 3)
    x = torch.randn(2, 64, 5, 5, requires_grad=True)
    wq, xq = channels_quantized(conv.weight, W, 1, 1), channels_quantized(x, A, 1, 1)
    wq.requires_grad_()
    xq.requires_grad_()
    F.conv2d(xq, wq, conv.bias).square().sum().backward()
    wrap(nn.Sequential(conv), MX)
    conv(x).square().sum().backward()
    assert torch.equal(x.grad, xq.grad)
    assert torch.equal(conv.weight.grad, wq.grad)


def columns(x, kernel, stride, padding, dilation):
    """im2col by F.unfold: (N, positions, kernel's positions, C)."""
    rows = F.unfold(x, kernel, dilation, padding, stride).mT
    return rows.unflatten(-1, (x.shape[1], -1)).transpose(-1, -2)


@pytest.mark.parametrize("groups", [1, 2])
def test_under_a_datapath_it_is_the_kernels_dot(groups):
    torch.manual_seed(0)
    conv = nn.Conv2d(12, 6, 3, stride=2, padding=2, dilation=2, groups=groups)
    q, size = "float8_e4m3fn/cast", 12 // groups
    x = torch.randn(2, 12, 9, 9)
    wq = fake_quantize(conv.weight.detach(), q)
    xq = fake_quantize(x, q)
    parts = []
    for g in range(groups):
        rows = columns(xq[:, g * size : (g + 1) * size], 3, 2, 2, 2).flatten(-2)
        outputs = wq[g * 6 // groups : (g + 1) * 6 // groups].flatten(2).mT.flatten(1)
        parts.append(dot(rows[:, :, None], outputs, datapath="hopper_fp8"))
    expected = torch.cat(parts, -1).mT.unflatten(-1, (5, 5)) + conv.bias.view(-1, 1, 1)
    text = f"*: operation=conv weight={q} activation={q} datapath=hopper_fp8"
    model = wrap(nn.Sequential(conv), text)
    assert same(model(x), expected)
    assert not same(F.conv2d(xq, wq, conv.bias, 2, 2, 2, groups), expected)
    found = coverage(model, x)
    assert found.share == 1
    assert sum(e.flops for e in found.entries) == 2 * 2 * 25 * conv.weight.numel()
    assert model(x[0]).shape == (6, 5, 5)


def test_scaled_blocks_under_a_datapath():
    torch.manual_seed(0)
    conv = nn.Conv1d(64, 8, 3, padding=1, bias=False)
    x = torch.randn(2, 64, 10)
    q = "mxfp8_e4m3/floor"
    model = wrap(
        nn.Sequential(conv), f"*: operation=conv weight={q} activation={q} datapath=blackwell_mxf8"
    )
    plain = F.conv1d(
        channels_quantized(x, q, 1, 1), channels_quantized(conv.weight, q, 1, 1), None, 1, 1
    )
    torch.testing.assert_close(model(x), plain, rtol=2e-3, atol=2e-3)
    from lowprec import matmul

    rows = F.pad(x, (1, 1)).unfold(2, 3, 1).permute(0, 2, 3, 1).flatten(2)
    weights = conv.weight.detach().permute(0, 2, 1).flatten(1)
    expected = matmul(rows, weights, a=q, w=q, datapath="blackwell_mxf8").mT
    assert same(model(x).contiguous(), expected.contiguous())


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_every_geometry_under_an_exact_datapath(dims):
    torch.manual_seed(0)
    kinds = (
        (nn.Conv1d, nn.Conv2d, nn.Conv3d),
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    )
    cast = "weight=bfloat16 activation=bfloat16"
    for stride, padding, dilation, groups in (
        (1, 0, 1, 1),
        (2, 2, 2, 2),
        (2, 1, 1, 2),
        (1, 2, 2, 1),
    ):
        for kind in (kinds[0][dims - 1], kinds[1][dims - 1]):
            options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
            if kind in kinds[1] and stride == 2:
                options["output_padding"] = 1
            conv = kind(4, 6, 3, **options)
            conv.weight.data = conv.weight.data.bfloat16().float()
            x = torch.randn(2, 4, *[5] * dims).bfloat16().float()
            before = conv(x)
            model = wrap(nn.Sequential(conv), f"*: operation=conv {cast} datapath=exact")
            torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-6)


def test_gradients_under_a_datapath_are_those_of_the_quantized_values():
    torch.manual_seed(0)
    conv = nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1, groups=2)
    x = torch.randn(2, 8, 4, 4, requires_grad=True)
    q = "float8_e4m3fn/cast"
    wq = fake_quantize(conv.weight.detach(), q).requires_grad_()
    xq = fake_quantize(x.detach(), q).requires_grad_()
    upstream = torch.randn(2, 6, 7, 7)
    F.conv_transpose2d(xq, wq, conv.bias, 2, 1, 0, 2).backward(upstream)
    model = wrap(
        nn.Sequential(conv), f"*: operation=conv weight={q} activation={q} datapath=hopper_fp8"
    )
    model(x).backward(upstream)
    torch.testing.assert_close(x.grad, xq.grad, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(conv.weight.grad, wq.grad, rtol=1e-5, atol=1e-5)


def test_tiles_change_no_bit(monkeypatch):
    torch.manual_seed(0)
    conv = nn.Conv2d(32, 8, 3, padding=1)
    x = torch.randn(2, 32, 8, 8)
    q = "float8_e4m3fn/amax:tensor"
    model = wrap(
        nn.Sequential(conv), f"*: operation=conv weight={q} activation={q} datapath=hopper_fp8"
    )
    whole = model(x)
    monkeypatch.setattr("lowprec.nn.operations.conv_datapath._TILE", 1)
    assert same(model(x), whole)


@pytest.mark.parametrize("datapath", ["", " datapath=hopper_fp8"])
def test_it_compiles_and_runs_on_the_meta_device(datapath):
    torch.manual_seed(0)
    q = "float8_e4m3fn/cast"
    text = f"*: operation=conv weight={q} activation={q}{datapath}"
    model = wrap(nn.Sequential(nn.Conv2d(8, 4, 3), nn.ConvTranspose2d(4, 4, 2)), text)
    x = torch.randn(2, 8, 6, 6)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert same(compiled(x), model(x))
    meta = wrap(nn.Sequential(nn.Conv2d(8, 4, 3, device="meta")), text)
    assert meta(x.to("meta")).shape == (2, 4, 4, 4)


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ("activation=int8/amax:channel", "a scale for each position, which no sum over positions"),
        ("activation=float8_e4m3fn/static:tensor", "a calibrated scale"),
    ],
)
def test_what_a_datapath_cannot_sum_is_an_error(operands, message):
    model = wrap(
        nn.Sequential(nn.Conv2d(4, 4, 3)), f"*: operation=conv {operands} datapath=hopper_fp8"
    )
    with pytest.raises(LowprecError, match=message) as caught:
        model(torch.zeros(1, 4, 5, 5))
    assert str(caught.value).startswith("0: activation=")
