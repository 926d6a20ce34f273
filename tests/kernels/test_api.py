"""What surrounds the numerics: dtypes, autograd, torch.compile, arguments and their errors."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lowprec import LowprecError, kernels, quantizer
from lowprec.kernels.ops import define
from lowprec.spec import Projection, Quantizer, load_format
from tests.kernels.oracle import assert_same_bits, every_bfloat16, every_float16

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
        (lambda: kernels.fake_quantize(x.double(), "mxfp4/floor"), "float64"),
        (lambda: kernels.fake_quantize(x, "mxfp4/floor", axis=2), "axis"),
        (lambda: kernels.fake_quantize(x, "mxfp4/floor", out=x.double()), "out"),
        (lambda: kernels.fake_quantize(x, "mxfp4/floor", out=x[0]), "out"),
        (lambda: kernels.cast(x, "int8", "stochastic", bits=4), "random"),
        (lambda: kernels.cast(x, "int8", random=x.long()), "random"),
        (lambda: kernels.cast(x, "int8", "stochastic", bits=4, random=x), "integers"),
    ]
    for call, said in wrong:
        with pytest.raises(LowprecError, match=said) as error:
            call()
        assert "\n" not in str(error.value)


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

    name = ops.name_of(quantizer("mxfp4/floor"))
    x = torch.randn(3, 40, requires_grad=True)
    torch.library.opcheck(ops.operator, (x, name, -1, None))


def test_meta_tensors_have_shapes_only() -> None:
    x = torch.empty(3, 40, device="meta", dtype=torch.bfloat16)
    y = kernels.fake_quantize(x, "nvfp4/amax")
    assert (y.device.type, y.shape, y.dtype) == ("meta", x.shape, x.dtype)


def test_the_definition_is_a_graph_of_tensor_operations() -> None:
    """So that a compiler for another device can take it: no value of x decides what runs."""
    fmt = load_format("mxfp8_e4m3")
    q = Quantizer(format=fmt, rule="floor", projection=Projection(saturation="OvfInf"))
    traced = make_fx(lambda x: define(x, q, -1, None))(torch.zeros(4, 70))
    x = torch.randn(4, 70) * 1e30
    assert_same_bits(traced(x), define(x, q, -1, None))
