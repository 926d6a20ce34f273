"""The kernels in Triton's interpreter against `lowprec.kernels`, bit for bit: run by
test_triton.py in a process of its own, since the interpreter must be chosen before Triton loads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lowprec as lp
from lowprec import LowprecError
from lowprec.kernels import triton as lt
from lowprec.kernels.triton.matmul import datapath_of
from lowprec.kernels.triton.numbers import numbers as numbers_of
from lowprec.kernels.word import holds
from lowprec.spec import BlockFormat, CodebookFormat, Quantizer, list_formats, load_format
from tests.kernels.oracle import assert_same_bits

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*")

CASTS = [
    "float8_e4m3fn", "float8_e4m3fnuz/cast/OvfInf", "float8_e8m0fnu", "ufloat8_e5m3", "bfloat16",
    "float8_e5m2/cast/down/OvfInf", "float6_e2m3fn/cast/nearest-away", "int8/cast/up",
]  # fmt: skip
MORE_CASTS = [
    "float8_e5m2", "float6_e3m2fn", "float4_e2m1fn", "float8_e4m3fn/cast/up", "binary8p3se",
    "float8_e4m3fn/cast/to-odd", "int8", "uint4", "float8_e5m2/cast/toward-zero/SatPropagate",
    "float16/cast/OvfInf", "tfloat32", "float32",
]  # fmt: skip
BLOCKS = [
    "mxfp4/floor", "mxfp8_e4m3/even", "mxint8/rceil", "nvfp4/amax", "int8/amax:channel",
    "float8_e4m3fn/amax:tensor", "float4_e2m1fn/amax:5",
]  # fmt: skip
MORE_BLOCKS = [
    "mxfp4/rceil", "mxfp8_e5m2/ceil", "mxfp6_e3m2/floor2x", "int4/amax:128", "mxfp4/floor/up",
    "nvfp4/amax/nearest-away",
]  # fmt: skip


def names(*often: str, rarely: list[str]) -> list[object]:
    return [*often, *(pytest.param(name, marks=pytest.mark.slow) for name in rarely)]


NAMES = names(*CASTS, *BLOCKS, rarely=MORE_CASTS + MORE_BLOCKS)
# A format in no standard: 5-bit E2M2 under UE5M3 scales.
OWN = Quantizer(
    format=BlockFormat(
        name="e2m2_ue5m3",
        element=load_format("float6_e2m3fn").model_copy(
            update={"name": "float5_e2m2fn", "precision": 3, "bits": 5}
        ),
        scale=load_format("ufloat8_e5m3"),
        block=(16,),
    ),
    rule="amax",
)


def numbers(count: int = 2048, seed: int = 0) -> Tensor:
    """Random patterns, NaN, Inf and subnormals among them, numbers of like size, and the ends."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(1 << 31), 1 << 31, (count // 2,), generator=generator)
    tame = torch.randn(count // 2 - 64, generator=generator)
    tame *= 2.0 ** torch.randint(-20, 20, tame.shape, generator=generator)
    top = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45, -1e-45, 3.4e38]
    ends = torch.tensor(top * 8)
    x = torch.cat([bits.to(torch.int32).view(torch.float32), tame, ends])
    return x.view(-1, 32)


@pytest.mark.parametrize("name", NAMES)
def test_values(name: str) -> None:
    x = numbers()
    assert_same_bits(lt.fake_quantize(x, name), lp.fake_quantize(x, name), x)


@pytest.mark.slow
@pytest.mark.parametrize("name", list_formats())
def test_values_of_every_format_that_it_covers(name: str) -> None:
    fmt = load_format(name)
    rules = ["cast"] if not isinstance(fmt, BlockFormat) else ["floor", "rceil", "amax"]
    for rule in rules:
        try:
            q = lp.quantizer(f"{name}/{rule}")
            lt.fake_quantize(torch.ones(4), q)
        except LowprecError:
            continue
        x = numbers(1024)
        assert_same_bits(lt.fake_quantize(x, q), lp.fake_quantize(x, q), x)
        finite = x.nan_to_num(0, 1, -1)
        assert_same_codes(lt.quantize(finite, q), lp.quantize(finite, q))


def assert_same_codes(found: lp.QTensor, expected: lp.QTensor) -> None:
    assert found.codes.dtype == expected.codes.dtype
    assert torch.equal(found.codes, expected.codes)
    if expected.scales is not None:
        assert found.scales is not None
        assert found.scales.dtype == expected.scales.dtype
        assert found.scales.shape == expected.scales.shape
        assert torch.equal(found.scales, expected.scales)
    if expected.outer_scale is not None:
        assert found.outer_scale is not None
        assert_same_bits(found.outer_scale, expected.outer_scale)


@pytest.mark.parametrize("name", [*NAMES, "e2m2_ue5m3"])
def test_codes(name: str) -> None:
    q = OWN if name == OWN.format.name else lp.quantizer(name)
    fmt, x = q.format, numbers()
    part = fmt.scale if isinstance(fmt, BlockFormat) else fmt
    if not part.has_nan:
        with pytest.raises(LowprecError, match="NaN has no code point"):
            lt.quantize(x, q)
        x = x.nan_to_num(0.0, 3.0, -3.0)
    found = lt.quantize(x, q)
    assert_same_codes(found, lp.quantize(x, q))
    assert_same_bits(found.dequantize(), lp.fake_quantize(x, q), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "nvfp4/amax"])
def test_narrow_tensors(name: str, dtype: torch.dtype) -> None:
    x = numbers().to(dtype)
    assert_same_bits(lt.fake_quantize(x, name), lp.fake_quantize(x, name))


@pytest.mark.parametrize("name", ["mxfp4/floor", "nvfp4/amax", "int8/amax:channel"])
@pytest.mark.parametrize(("shape", "axis"), [((3, 50, 7), 1), ((37,), 0), ((5, 40), 0)])
def test_shapes(name: str, shape: tuple[int, ...], axis: int) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    assert_same_bits(lt.fake_quantize(x, name, axis), lp.fake_quantize(x, name, axis))
    assert_same_codes(lt.quantize(x, name, axis), lp.quantize(x, name, axis))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "int8/amax:tensor"])
def test_one_number(name: str) -> None:
    x = torch.tensor(3.3)
    assert_same_bits(lt.fake_quantize(x, name), lp.fake_quantize(x, name))
    assert_same_codes(lt.quantize(x, name), lp.quantize(x, name))


@pytest.mark.parametrize("random", [7, torch.arange(2048).view(-1, 32) * 37])
@pytest.mark.parametrize("name", ["float8_e4m3fn/cast/stochastic:8", "mxfp4/floor/stochastic:16"])
def test_stochastic_rounding_with_the_bits_given(name: str, random: int | Tensor) -> None:
    x = numbers()
    found = lt.fake_quantize(x, name, random=random)
    assert_same_bits(found, lp.fake_quantize(x, name, random=random), x)


def test_no_elements() -> None:
    x = torch.empty(3, 0)
    assert lt.fake_quantize(x, "mxfp4/floor").shape == x.shape
    assert lt.quantize(x, "mxfp4/floor").scales.shape == (3, 0)
    assert (
        lt.matmul(x, torch.empty(2, 0), a="mxfp4/floor", w="mxfp4/floor").tolist() == [[0, 0]] * 3
    )


# Matmul: bit for bit where the sums of a step are exact.

EXACT = [
    ("mxfp4/floor", "mxfp4/floor"),
    ("nvfp4/amax", "nvfp4/amax"),
    (OWN, "int4/amax:channel"),
    pytest.param("mxint8/floor", "mxfp4/rceil", marks=pytest.mark.slow),
    pytest.param("int8/amax:channel", "int4/amax:channel", marks=pytest.mark.slow),
    pytest.param(OWN, "mxfp4/floor", marks=pytest.mark.slow),
    pytest.param("mxfp6_e2m3/floor", "mxfp6_e2m3/floor", marks=pytest.mark.slow),
    pytest.param("float4_e2m1fn", "float4_e2m1fn/amax:tensor", marks=pytest.mark.slow),
]


def operands(k: int = 96) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x, w = (torch.randn(n, k, generator=generator) for n in (20, 17))
    return x * 2.0 ** torch.arange(20)[:, None], w


@pytest.mark.parametrize(("a", "w"), EXACT)
def test_matmul(a: str | Quantizer, w: str) -> None:
    """Of scales with few bits: the interpreter rounds a multiply-add twice."""
    x, weight = operands()
    qa, qw = a if isinstance(a, Quantizer) else lp.quantizer(a), lp.quantizer(w)
    path = datapath_of(qa, qw)
    assert lt.sums_are_exact(path)
    expected = lp.matmul(x, weight, a=qa, w=qw, datapath=path)
    assert_same_bits(lt.matmul(x, weight, a=qa, w=qw), expected)
    codes = lp.quantize(x, qa), lp.quantize(weight, qw)
    assert_same_bits(lt.matmul(*codes), expected)
    assert_same_bits(lt.matmul(x, codes[1], a=qa), expected)


def test_matmul_of_what_is_not_finite() -> None:
    x, weight = operands(64)
    x[1, 3], x[2, 40], x[3] = torch.nan, torch.inf, -0.0
    q = lp.quantizer("mxfp4/floor")
    expected = lp.matmul(x, weight, a=q, w=q, datapath=datapath_of(q, q))
    assert_same_bits(lt.matmul(x, weight, a=q, w=q), expected)


@pytest.mark.parametrize(
    ("a", "w"),
    [
        ("mxfp8_e4m3/rceil", "mxfp8_e4m3/rceil"),
        ("mxfp8_e5m2/floor", "mxfp4/floor"),
        (None, "mxfp4/floor"),
    ],
)
def test_matmul_whose_sums_are_rounded(a: str | None, w: str) -> None:
    """Within the bound for any order of K float32 additions (Higham, section 3.1)."""
    x, weight = operands()
    path = datapath_of(a and lp.quantizer(a), lp.quantizer(w))
    assert not lt.sums_are_exact(path)
    values = x if a is None else lp.fake_quantize(x, a)
    pair = values.double(), lp.fake_quantize(weight, w).double()
    bound = 2 * 96 * 2.0**-24 * (pair[0].abs() @ pair[1].abs().T)
    assert ((lt.matmul(x, weight, a=a, w=w) - pair[0] @ pair[1].T).abs() <= bound).all()


def test_matmul_of_more_dimensions_and_narrow_numbers() -> None:
    x = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(3)).bfloat16()
    w = torch.randn(5, 32, generator=torch.Generator().manual_seed(4)).bfloat16()
    found = lt.matmul(x, w, a="mxfp4/floor", w="mxfp4/floor")
    q = lp.quantizer("mxfp4/floor")
    assert_same_bits(found, lp.matmul(x, w, a=q, w=q, datapath=datapath_of(q, q)))


# As operators of torch.


def layer(x: Tensor, w: Tensor) -> Tensor:
    y = lt.matmul(x, w, a="mxfp4/floor", w="mxfp4/floor")
    return lt.fake_quantize(y, "float8_e4m3fn").relu()


def test_compiled_and_exported_they_are_one_operator_each() -> None:
    x, w = operands(64)
    wanted = layer(x, w)
    assert_same_bits(torch.compile(layer, fullgraph=True, backend="aot_eager")(x, w), wanted)

    class Layer(torch.nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            return layer(x, w)

    program = torch.export.export(Layer(), (x, w))
    calls = [str(node.target) for node in program.graph.nodes if "lowprec" in str(node.target)]
    assert calls == ["lowprec.triton_matmul.default", "lowprec.triton_fake_quantize.default"]
    assert_same_bits(program.module()(x, w), wanted)


def test_codes_under_compile() -> None:
    x, _ = operands(64)

    def dequantized(x: Tensor) -> Tensor:
        codes, scales, _ = torch.ops.lowprec.triton_quantize(x, text, -1)
        return codes.float() + scales.float().repeat_interleave(32, -1)

    text = lp.quantizer("mxfp4/floor").model_dump_json()
    compiled = torch.compile(dequantized, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), dequantized(x))


@pytest.mark.slow
def test_the_operators_are_what_torch_expects() -> None:
    x, w = operands(64)
    text = lp.quantizer("nvfp4/amax").model_dump_json()
    x.requires_grad_()
    w.requires_grad_()
    torch.library.opcheck(torch.ops.lowprec.triton_fake_quantize.default, (x, text, -1))
    torch.library.opcheck(torch.ops.lowprec.triton_matmul.default, (x, w, text, text))
    torch.library.opcheck(torch.ops.lowprec.triton_quantize.default, (x.detach(), text, -1))


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_straight_through(compiled: bool) -> None:
    x, w = (t.requires_grad_() for t in operands(64))
    function = (
        torch.compile(lt.matmul, fullgraph=True, backend="aot_eager") if compiled else lt.matmul
    )
    function(x, w, a="mxfp4/floor", w="nvfp4/amax").sum().backward()
    x2, w2 = (t.detach().clone().requires_grad_() for t in (x, w))
    lp.matmul(x2, w2, a="mxfp4/floor", w="nvfp4/amax").sum().backward()
    assert torch.equal(x.grad, x2.grad)
    assert torch.equal(w.grad, w2.grad)


# What the kernels do not cover.


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nf4", "codebook"),
        ("mxfp4/mse", "rule 'mse'"),
        ("mx9/floor", "one scale per block"),
        ("gguf_q4_1/minmax", "one scale per block"),
        ("float64", "float32 does not hold"),
    ],
)
def test_what_is_not_covered(name: str, message: str) -> None:
    with pytest.raises(LowprecError, match=message):
        lt.fake_quantize(torch.ones(32), name)


def covers(name: str) -> bool:
    try:
        numbers_of(lp.quantizer(name))
    except LowprecError:
        return False
    return True


def test_every_scalar_format_but_codebooks_is_covered() -> None:
    scalars = [fmt for fmt in map(load_format, list_formats()) if not isinstance(fmt, BlockFormat)]
    left_out = {fmt.name for fmt in scalars if not covers(fmt.name)}
    codebooks = {fmt.name for fmt in scalars if isinstance(fmt, CodebookFormat)}
    wide = {fmt.name for fmt in scalars if not holds(torch.float32, fmt)}
    assert left_out == codebooks | wide


def test_wrong_arguments() -> None:
    x, w = operands(64)
    with pytest.raises(LowprecError, match=r"tensor of torch\.float64"):
        lt.fake_quantize(x.double(), "mxfp4/floor")
    with pytest.raises(LowprecError, match=r"expected \(\.\.\., K\) and \(N, K\)"):
        lt.matmul(x, w[:, :32])
    with pytest.raises(LowprecError, match="one to divide the other"):
        lt.matmul(x, w, a="float4_e2m1fn/amax:24", w="mxfp4/floor")
    with pytest.raises(LowprecError, match="quantized already"):
        lt.matmul(lp.quantize(x, "mxfp4/floor"), w, a="mxfp4/floor")
