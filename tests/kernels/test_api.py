"""What surrounds the numerics: dtypes, autograd, torch.compile, arguments and their errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lowprec import LowprecError, kernels, quantizer
from lowprec.eval.hard_inputs import every_bfloat16, every_float16
from lowprec.kernels import counter
from lowprec.kernels.calls import Call, define
from lowprec.spec import BlockFormat, Projection, Quantizer, load_format
from tests.kernels.oracle import assert_same_bits
from tests.kernels.test_block import TILES

NAMES = ["float8_e4m3fn", "mxfp8_e4m3/floor", "nvfp4/amax", "int8/amax:channel", "nf4/amax:16"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_16_bit_dtypes_are_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(5, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    wide = kernels.fake_quantize(x.float(), name)
    assert_same_bits(kernels.fake_quantize(x, name), wide.to(dtype))
    assert_same_bits(kernels.fake_quantize(x.T, name, axis=0).T.contiguous(), wide.to(dtype))
    assert_same_bits(kernels.fake_quantize(x, name, out=torch.empty_like(x)), wide.to(dtype))


def test_casts_of_every_16_bit_float_stay_exact() -> None:
    for x in (every_bfloat16().bfloat16(), every_float16().half()):
        for name in ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"):
            wide = kernels.cast(x.float(), name)
            assert_same_bits(kernels.cast(x, name).float(), wide)


def test_float64_casts_do_not_round_twice() -> None:
    x = torch.tensor([1 + 2**-4 + 2**-40, 1 + 3 * 2**-4 - 2**-40], dtype=torch.float64)
    assert kernels.cast(x, "float8_e4m3fn").tolist() == [1.125, 1.125]


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float16, "bfloat16"),
        (torch.bfloat16, "float16"),
        (torch.float32, "float64"),
        (torch.float16, "float8_e8m0fnu"),
        (torch.float32, "lns8"),
    ],
)
def test_a_dtype_that_does_not_hold_the_format(dtype: torch.dtype, name: str) -> None:
    with pytest.raises(LowprecError, match=f"{name}: {dtype} does not hold"):
        kernels.cast(torch.ones(2, dtype=dtype), name)
    assert len(kernels.encode(torch.ones(2, dtype=dtype), name)) == 2


def test_wrong_arguments_are_one_line_errors() -> None:
    x = torch.ones(2, 32)
    wrong = [
        (lambda: kernels.cast(x.long(), "int8"), "int64"),
        (lambda: kernels.cast(x, "mxfp4"), "scalar"),
        (lambda: kernels.cast(x, "int99"), "bits"),
        (lambda: kernels.cast(x, "float8_e4m3f"), "did you mean 'float8_e4m3"),
        (lambda: kernels.cast(x, "int8", "nearest"), "rounding"),
        (lambda: kernels.fake_quantize(x, "mxfp4/floor", gradient="none"), "gradient"),
        (lambda: kernels.fake_quantize(x, "mxfp4/static"), "needs it"),
        (lambda: kernels.fake_quantize(x, "mxfp4/static", scale=x), r"expected scale= of shape"),
        (lambda: kernels.fake_quantize(x, "mxfp4/floor", scale=x), "belongs to the rule static"),
        (lambda: kernels.cast(x, "int8", "stochastic", bits=4, random=-1), "seed"),
        (lambda: kernels.fake_quantize(x, "mxfp4/floor", axis=2), "axis"),
        (lambda: kernels.fake_quantize(x, "mxfp4/floor", out=x.double()), "out"),
        (lambda: kernels.fake_quantize(x, "mxfp4/floor", out=x[0]), "out"),
        (lambda: kernels.cast(x, "int8", "stochastic", bits=4), "random"),
        (lambda: kernels.cast(x, "int8", random=x.long()), "random"),
        (lambda: kernels.cast(x, "int8", "stochastic", bits=4, random=x), "integers"),
        (lambda: kernels.cast(x, "int8", "stochastic", bits=4, random=1.5), "random=1.5"),
        (lambda: kernels.fake_quantize(x.tolist(), "mxfp4/floor"), "x is a list"),
        (lambda: kernels.quantize(x, None), "quantizer None"),
        (lambda: kernels.fake_quantize(x, "mxfp4/floor", axis=0.5), "axis=0.5"),
        (lambda: kernels.fake_quantize(x, "mxfp4/floor", out=[1]), "out is a list"),
        (lambda: kernels.fake_quantize(x, "mxfp4/static", scale=0.5), "scale=0.5"),
    ]
    for call, said in wrong:
        with pytest.raises(LowprecError, match=said) as error:
            call()
        assert "\n" not in str(error.value)


def test_out_of_codes_and_values() -> None:
    x = torch.randn(4, 64)
    codes = kernels.encode(x, "float8_e4m3fn")
    out = torch.empty_like(codes)
    assert kernels.encode(x, "float8_e4m3fn", out=out) is out
    assert torch.equal(out, codes)
    values = torch.empty_like(x)
    assert kernels.decode(codes, "float8_e4m3fn", out=values) is values
    assert_same_bits(values, kernels.cast(x, "float8_e4m3fn"))
    for name in ("mxfp4/floor", "nvfp4/amax", "hif4/amax"):
        q = kernels.quantize(x, name)
        assert q.dequantize(out=values) is values
        assert_same_bits(values, kernels.fake_quantize(x, name))
        with pytest.raises(LowprecError, match=r"out: torch\.float32 of shape"):
            q.dequantize(out=torch.empty(3))


def test_a_generator_gives_the_same_bits_again() -> None:
    x = torch.rand(1000) * 6
    name = "float4_e2m1fn/cast/stochastic:8"
    first, again, other = (
        kernels.fake_quantize(x, name, random=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert_same_bits(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 32), (2, 0, 5)])
@pytest.mark.parametrize("name", NAMES)
def test_empty_tensors(name: str, shape: tuple[int, ...]) -> None:
    x = torch.empty(shape)
    assert kernels.fake_quantize(x, name).shape == shape
    assert kernels.quantize(x, name).dequantize().shape == shape


def test_rank_0() -> None:
    x = torch.tensor(2.7)
    assert kernels.cast(x, "int8").item() == 3.0
    assert kernels.fake_quantize(x, "int8/amax:tensor").shape == ()


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_goes_straight_through(name: str) -> None:
    x = torch.randn(4, 32, requires_grad=True)
    weight = torch.randn(4, 32)
    y = kernels.fake_quantize(x, name)
    (y * weight).sum().backward()
    assert torch.equal(x.grad, weight)
    assert not kernels.quantize(x, name).dequantize().requires_grad
    with pytest.raises(LowprecError, match="autograd"):
        kernels.fake_quantize(x, name, out=torch.empty(4, 32))


def test_a_seed_gives_the_same_bits_everywhere() -> None:
    """Eager, compiled, of a slice, and what the generator says of each element."""
    x = torch.rand(64, 50) * 6
    name = "float4_e2m1fn/amax:channel/stochastic:8"
    drawn = counter.bits(3, x.shape, 8, x.device)
    expected = kernels.fake_quantize(x, name, random=drawn)
    assert_same_bits(kernels.fake_quantize(x, name, random=3), expected)
    compiled = torch.compile(
        lambda x: kernels.fake_quantize(x, name, random=3), fullgraph=True, backend="aot_eager"
    )
    assert_same_bits(compiled(x), expected)
    assert_same_bits(kernels.quantize(x, name, random=3).dequantize(), expected)
    assert not torch.equal(kernels.fake_quantize(x, name, random=4), expected)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "int8", "mxfp4/floor", "int4/fixed=0.5:tensor"])
def test_the_gradient_can_stop_where_elements_saturate(name: str) -> None:
    fmt = quantizer(name).format
    element = fmt.element if isinstance(fmt, BlockFormat) else fmt
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    x = (x * torch.tensor([[1.0], [20.0], [400.0], [400.0]])).requires_grad_()
    y = kernels.fake_quantize(x, name, gradient="saturation-mask")
    y.sum().backward()
    units = x.detach()
    if isinstance(fmt, BlockFormat):
        q = kernels.quantize(x, name)
        scale = kernels.decode(q.scales, fmt.scale)
        units = x.detach() / (scale.repeat_interleave(32, 1) if fmt.block == (32,) else scale)
    there = (units >= element.min) & (units <= element.max)
    assert torch.equal(x.grad, there.float())
    assert 0 < there.sum() < there.numel()
    compiled = torch.compile(
        lambda x: kernels.fake_quantize(x, name, gradient="saturation-mask"),
        fullgraph=True, backend="aot_eager",
    )  # fmt: skip
    again = x.detach().clone().requires_grad_()
    compiled(again).sum().backward()
    assert torch.equal(again.grad, x.grad)
    torch._dynamo.reset()


@pytest.mark.parametrize("in_dim", [0, 1, 2])
@pytest.mark.parametrize(
    "name", ["mxfp4/floor", "nvfp4/amax", "float8_e4m3fn", "tiles", "int8/static:tensor"]
)
def test_vmap_is_a_loop(name: str, in_dim: int) -> None:
    q = Quantizer(format=TILES, rule="amax") if name == "tiles" else quantizer(name)
    x = torch.randn(5, 6, 7)
    scale = torch.tensor([[0.1]]) if q.rule == "static" else None
    for axis in (-1, 0):

        def one(x: torch.Tensor, axis: int = axis) -> torch.Tensor:
            return kernels.fake_quantize(x, q, axis, scale=scale)

        expected = torch.stack([one(sample) for sample in x.unbind(in_dim)])
        assert_same_bits(torch.vmap(one, in_dim)(x), expected)


def test_vmap_of_gradients() -> None:
    x = torch.randn(3, 4, 32)
    per_sample = torch.vmap(
        torch.func.grad(lambda x: (kernels.fake_quantize(x, "nvfp4/amax") ** 2).sum())
    )
    expected = torch.stack([2 * kernels.fake_quantize(sample, "nvfp4/amax") for sample in x])
    assert torch.equal(per_sample(x), expected)


def test_an_exported_program_carries_its_quantizer(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return kernels.fake_quantize(x, "nf4/amax:16") + kernels.cast(x, "float8_e5m2")

    x = torch.randn(4, 32)
    torch.export.save(torch.export.export(Model(), (x,)), tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    assert_same_bits(loaded(x), Model()(x))


@pytest.mark.parametrize("given", ["mxfp4/floor", "nvfp4/amax", "int8"])
def test_compile_takes_it_whole(given: str) -> None:
    for q in (given, quantizer(given)):

        def step(x: torch.Tensor, q: Quantizer | str = q) -> torch.Tensor:
            return kernels.fake_quantize(x * 2, q) + kernels.cast(x, "float8_e5m2", "up")

        compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
        x = torch.randn(4, 32, requires_grad=True)
        found, expected = compiled(x), step(x)
        assert_same_bits(found.detach(), expected.detach())
        found.sum().backward()
        assert torch.equal(x.grad, torch.full_like(x, 3.0))
    torch._dynamo.reset()


def test_the_operator_is_well_formed() -> None:
    from lowprec.kernels import ops

    text = ops.text_of(quantizer("mxfp4/floor"))
    x = torch.randn(3, 40, requires_grad=True)
    torch.library.opcheck(ops.operator, (x, text, -1))
    torch.library.opcheck(ops.operator, (x, text, -1, None, None, None, True))


def test_meta_tensors_have_shapes_only() -> None:
    x = torch.empty(3, 40, device="meta", dtype=torch.bfloat16)
    y = kernels.fake_quantize(x, "nvfp4/amax")
    assert (y.device.type, y.shape, y.dtype) == ("meta", x.shape, x.dtype)


def test_the_definition_is_a_graph_of_tensor_operations() -> None:
    """So that a compiler for another device can take it: no value of x decides what runs."""
    fmt = load_format("mxfp8_e4m3")
    q = Quantizer(format=fmt, rule="floor", projection=Projection(saturation="OvfInf"))
    traced = make_fx(lambda x: define(x, Call(q, -1)))(torch.zeros(4, 70))
    x = torch.randn(4, 70) * 1e30
    assert_same_bits(traced(x), define(x, Call(q, -1)))
