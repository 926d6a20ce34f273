"""matmul under datapaths: the oracle on small shapes, the definition on larger ones."""

from __future__ import annotations

import math
import platform
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import lowprec as lp
from lowprec.errors import LowprecError
from lowprec.exact import dot as exact_dot
from lowprec.kernels import matmul_core, matmul_product
from lowprec.kernels.core import compiled, opened
from lowprec.kernels.matmul import matmul
from lowprec.spec import Aligned, Datapath, Tree, list_datapaths, load_datapath, load_format
from lowprec.spec.format import FloatFormat, IntFormat
from tests.kernels.test_dot import datapaths, draw_values, same

NAMES = list_datapaths()
HAS_CORE = lp.backend().name == "core"
needs_core = pytest.mark.skipif(not HAS_CORE, reason="no CPU core")


def draw(
    path: Datapath,
    m: int,
    n: int,
    k: int,
    spread: int,
    seed: int,
    special: bool = False,
    low: int = 0,
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """Operands and their scales."""
    g = torch.Generator().manual_seed(seed)
    fmt = path.inputs[0]
    x, y = (draw_values(fmt, (rows, k), spread, g, low) for rows in (m, n))
    if special:
        for t in (x, y):
            t[torch.rand(t.shape, generator=g) < 0.02] = math.nan if fmt.has_nan else 0.0
            t[torch.rand(t.shape, generator=g) < 0.02] = math.inf if fmt.has_infinity else 0.0
    if path.scaling is None:
        return x, y, None
    first, blocks = path.scaling.formats[0], -(-k // path.scaling.block)
    scales = [draw_values(first, (rows, blocks), spread, g).abs() for rows in (m, n)]
    if isinstance(first, FloatFormat) and not first.zero:
        scales = [torch.where(s == 0, 1.0, s) for s in scales]
    return x, y, (scales[0], scales[1])


def product(path: Datapath, x: Tensor, y: Tensor, scales: Any) -> Tensor:
    return matmul_product.product(x, y, path, (path.inputs[0],) * 2, scales)


def definition(path: Datapath, x: Tensor, y: Tensor, scales: Any) -> Tensor:
    return matmul_product.defined(x, y, path, (path.inputs[0],) * 2, scales)


def odd_length(path: Datapath) -> int:
    """Some whole steps and a short one."""
    size = 2 * max(path.step or 8, len(path.order)) + 3
    return size + path.promotion.interval if path.promotion else size


# ---- the oracle ----


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_equals_the_oracle(name: str, special: bool) -> None:
    path = load_datapath(name)
    x, y, scales = draw(path, 3, 5, odd_length(path), 3, 7, special)
    got = product(path, x, y, scales)
    for i in range(len(x)):
        for j in range(len(y)):
            pair = scales and (scales[0][i].tolist(), scales[1][j].tolist())
            formats = (path.inputs[0],) * 2
            want = exact_dot(x[i].tolist(), y[j].tolist(), 0, path, formats, pair)
            assert same(got[i, j].double(), torch.tensor(float(want)).double()), (i, j)


# ---- the definition ----


@pytest.mark.parametrize("name", NAMES)
def test_equals_the_definition(name: str) -> None:
    path = load_datapath(name)
    for seed, spread in enumerate((0, 2, 12)):
        case = draw(path, 14, 37, odd_length(path), spread, seed)
        assert same(product(path, *case), definition(path, *case)).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_equals_the_definition_on_many(name: str) -> None:
    path = load_datapath(name)
    low = path.output.emin // 2 - 3 if isinstance(path.output, FloatFormat) else 0
    for seed, spread in enumerate((0, 1, 4, 12, 30, 60, 100)):
        k = 4 * odd_length(path) + seed
        for more in ({}, {"special": True}, {"low": low}):
            case = draw(path, 37, 70, k, spread, 100 + seed, **more)
            assert same(product(path, *case), definition(path, *case)).all()


@settings(max_examples=30)
@given(datapaths(), st.integers(0, 1000), st.sampled_from([1, 6, 40]), st.booleans())
def test_units_nobody_has_built(path: Datapath, seed: int, spread: int, special: bool) -> None:
    case = draw(path, 5, 35, odd_length(path), spread, seed, special)
    assert same(product(path, *case), definition(path, *case)).all()


# Two bits below float32: every fourth sum is a tie, of exact and of inexact sums.
OF_TIES = FloatFormat(
    name="float30_e8m21", kind="float", bits=30, precision=22, bias=127, infinity=True, nan="ieee"
)


def chunked(interval: int, accumulator: str | FloatFormat, fmt: str = "float8_e4m3fn") -> Datapath:
    """float32 sums in order, promoted to a narrower accumulator."""
    narrow = load_format(accumulator) if isinstance(accumulator, str) else accumulator
    promotion = {"interval": interval, "format": narrow}
    return Datapath(
        name="chunked", inputs=(load_format(fmt),), accumulator=load_format("float32"),
        addition=Tree(kind="tree"), step=1, promotion=promotion,
    )  # fmt: skip


def exact_chunks(step: int, accumulator: str, rounding: str, fmt: str) -> Datapath:
    """Exact sums of a step."""
    return Datapath(
        name="chunks", inputs=(load_format(fmt),), accumulator=load_format(accumulator),
        addition=Aligned(kind="aligned"), step=step, rounding=rounding,
    )  # fmt: skip


CHUNKED = [
    *(chunked(n, f) for n in (32, 128) for f in ("float22_e8m13", "bfloat16", "float16", OF_TIES)),
    *(chunked(n, "float32") for n in (32, 128)),
    chunked(1000, "float32", "float16"),
    *(
        exact_chunks(32, f, r, e)
        for f in ("float22_e8m13", "bfloat16", "float32", "float16")
        for r in ("nearest-even", "toward-zero", "up", "down")
        for e in ("float4_e2m1fn", "float8_e4m3fn")
    ),
]


@needs_core
@pytest.mark.parametrize("path", CHUNKED, ids=lambda p: f"{p.rounding}-{p.accumulator.name}")
def test_chunks_are_the_cores(path: Datapath) -> None:
    for seed, spread in enumerate((0, 3)):
        x, y, _ = draw(path, 14, 37, 300, spread, seed)
        got = matmul_core.multiply(x, y, path, (path.inputs[0],) * 2, None)
        assert got is not None
        assert same(got, definition(path, x, y, None)).all()


@needs_core
@pytest.mark.parametrize("fmt", ["float4_e2m1fn", "float8_e4m3fn"])
@pytest.mark.parametrize("ordered", [False, True])
def test_chunks_overflow_and_stay(ordered: bool, fmt: str) -> None:
    path = exact_chunks(32, "float16", "nearest-even", fmt)
    if ordered:
        path = chunked(32, "float16", fmt)
    largest = path.inputs[0].max
    x, y = torch.full((1, 8192), largest), torch.full((2, 8192), largest)
    y[0] *= -1
    y[1, 4096:] *= -1
    got = matmul_core.multiply(x, y, path, (path.inputs[0],) * 2, None)
    assert got is not None
    assert got.tolist() == [[-math.inf, math.inf]]


@needs_core
@pytest.mark.parametrize("bits", [13, 25])
@pytest.mark.parametrize("rounding", ["toward-zero", "down", "nearest-even"])
def test_terms_are_rounded_as_said(rounding: str, bits: int) -> None:
    for result in ("toward-zero", "nearest-even", "up", "down"):
        path = Datapath(
            name="terms", inputs=(load_format("float8_e4m3fn"),), rounding=result, step=32,
            accumulator=load_format("float32"), result=load_format("float22_e8m13"),
            addition=Aligned(kind="aligned", fraction_bits=bits, rounding=rounding),
            signed_zero=True,
        )  # fmt: skip
        for seed, spread in enumerate((0, 3, 8)):
            x, y, _ = draw(path, 14, 37, 100, spread, seed)
            got = matmul_core.multiply(x, y, path, (path.inputs[0],) * 2, None)
            assert got is not None
            assert same(got, definition(path, x, y, None)).all()


@needs_core
@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for x86-64")
def test_a_processor_without_vectors_of_256_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    library = opened(compiled("x86-64"))
    for path in (*CHUNKED, *map(load_datapath, ("hopper_fp8", "cdna3_fp8", "blackwell_nvf4"))):
        case = draw(path, 37, 70, 300, 3, 5)
        with monkeypatch.context() as patch:
            want = product(path, *case)
            patch.setattr(matmul_core, "load", lambda: (library, None))
            assert torch.equal(product(path, *case), want)


@needs_core
def test_what_the_core_covers() -> None:
    """A datapath that falls back to the definition is a hundred times slower."""
    slow = set()
    for name in NAMES:
        path = load_datapath(name)
        x, y, scales = draw(path, 3, 4, 64, 2, 0)
        if matmul_core.multiply(x, y, path, (path.inputs[0],) * 2, scales) is None:
            slow.add(name)
    assert slow == {"cdna2_bf16", "cdna2_fp16", "exact"}


def test_accumulators_overflow_and_stay() -> None:
    path = load_datapath("ampere_fp16_fp16")
    x, y = torch.full((1, 64), 200.0), torch.full((2, 64), 200.0)
    y[1, 32:] = -200
    d = product(path, x, y, None)
    assert d.tolist() == [[math.inf, math.inf]]
    assert same(d, definition(path, x, y, None)).all()


def test_integers_wrap_and_saturate() -> None:
    narrow = IntFormat(name="int16", kind="int", bits=16)
    x, y = torch.full((2, 64), 100.0), torch.full((3, 64), 100.0)
    y[0] = -100
    for overflow, want in (("saturate", 32767), ("wrap", 640000 % 65536 - 65536)):
        path = Datapath(
            name="narrow", inputs=(load_format("int8"),), accumulator=narrow, step=4,
            addition=Aligned(kind="aligned"), overflow=overflow,
        )  # fmt: skip
        d = product(path, x, y, None)
        assert d[0, 1] == want
        assert same(d.double(), definition(path, x, y, None).double()).all()


@needs_core
def test_threads_and_flush_to_zero_change_nothing() -> None:
    path = load_datapath("hopper_fp8")
    x, y, _ = draw(path, 530, 700, 70, 3, 0)
    one = product(path, x, y, None)
    torch.set_num_threads(2)
    torch.set_flush_denormal(True)
    try:
        two = product(path, x, y, None)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(one, two)


# ---- quantized operands ----


def test_a_scale_per_channel_is_the_epilogues() -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 70, generator=g), torch.randn(4, 70, generator=g)
    q = "float8_e4m3fn/amax:channel"
    got = matmul(x, y, a=q, w=q, datapath="hopper_fp8")
    left, right = lp.quantize(x, q), lp.quantize(y, q)
    values = [lp.decode(t.codes, "float8_e4m3fn") for t in (left, right)]
    s_a, s_w = (lp.decode(t.scales, "float32") for t in (left, right))
    d = lp.dot(values[0][:, None], values[1][None], datapath="hopper_fp8")
    assert torch.equal(got, (d * s_w.T) * s_a)
    assert torch.equal(got, matmul(left, right, datapath="hopper_fp8"))


def test_a_scale_per_block_is_the_datapaths() -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 70, generator=g), torch.randn(4, 70, generator=g)
    got = matmul(x, y, a="mxfp8_e4m3/floor", w="mxfp4/rceil", datapath="blackwell_mxf8")
    left, right = lp.quantize(x, "mxfp8_e4m3/floor"), lp.quantize(y, "mxfp4/rceil")
    for i in range(3):
        for j in range(4):
            want = lp.dot(
                lp.decode(left.codes[i], "float8_e4m3fn"),
                lp.decode(right.codes[j], "float4_e2m1fn"),
                datapath="blackwell_mxf8",
                formats=("float8_e4m3fn", "float4_e2m1fn"),
                scales=(
                    lp.decode(left.scales[i], "float8_e8m0fnu"),
                    lp.decode(right.scales[j], "float8_e8m0fnu"),
                ),
            )
            assert got[i, j] == want


def test_nvfp4s_outer_scale_is_the_epilogues() -> None:
    x, y = torch.randn(3, 64), torch.randn(5, 64)
    left, right = lp.quantize(x, "nvfp4/amax"), lp.quantize(y, "nvfp4/amax")
    scales = [lp.decode(t.scales, "float8_e4m3fn") for t in (left, right)]
    values = [lp.decode(t.codes, "float4_e2m1fn") for t in (left, right)]
    d = lp.dot(
        values[0][:, None], values[1][None], datapath="blackwell_nvf4",
        scales=(scales[0][:, None].expand(3, 5, 4), scales[1][None].expand(3, 5, 4)),
    )  # fmt: skip
    want = (d * right.outer_scale) * left.outer_scale
    assert torch.equal(
        matmul(x, y, a="nvfp4/amax", w="nvfp4/amax", datapath="blackwell_nvf4"), want
    )


def test_tiles_of_deepseek() -> None:
    x, y = torch.randn(2, 300), torch.randn(140, 300)
    a, w = "float8_e4m3fn_1x128/amax", "float8_e4m3fn_128x128/amax"
    got = matmul(x, y, a=a, w=w, datapath="hopper_fp8_deepseek")
    left, right = lp.quantize(x, a), lp.quantize(y, w)
    s_a, s_w = (lp.decode(t.scales, "float32") for t in (left, right))
    want = lp.dot(
        lp.decode(left.codes[1], "float8_e4m3fn"), lp.decode(right.codes[130], "float8_e4m3fn"),
        datapath="hopper_fp8_deepseek", scales=(s_a[1], s_w[1]),
        formats=("float8_e4m3fn", "float8_e4m3fn"),
    )  # fmt: skip
    assert got[1, 130] == want


def test_shapes() -> None:
    w, batch = torch.randn(5, 16), torch.randn(3, 5, 16)
    cast = {"a": "bfloat16/cast", "w": "bfloat16/cast", "datapath": "tpu_bf16"}
    for x, y, shape in [
        (torch.randn(16), w, (5,)),
        (torch.randn(2, 4, 16), w, (2, 4, 5)),
        (torch.randn(2, 1, 4, 16), batch, (2, 3, 4, 5)),
        (torch.randn(16), batch, (3, 5)),
        (torch.randn(0, 16), w, (0, 5)),
        (torch.randn(4, 0), torch.randn(5, 0), (4, 5)),
    ]:
        assert matmul(x, y, **cast).shape == shape
        assert matmul(x, y).shape == shape
    x = torch.randn(2, 3, 4, 16)
    y = matmul(x, batch, **cast)
    assert torch.equal(y[1, 2], matmul(x[1, 2], batch[2], **cast))


def test_dtypes() -> None:
    x, w = torch.ones(2, 8, dtype=torch.bfloat16), torch.ones(3, 8)
    assert matmul(x, w, datapath="hopper_bf16").dtype == torch.bfloat16
    assert matmul(x, w).dtype == torch.bfloat16
    e4m3 = x.to(torch.float8_e4m3fn)
    assert matmul(e4m3, e4m3, datapath="hopper_fp8").dtype == torch.float32
    i8 = x.to(torch.int8)
    d = matmul(i8, i8, datapath="ampere_int8")
    assert d.dtype == torch.float64
    assert (d == 8).all()
    out = torch.empty(2, 3)
    assert matmul(x.float(), w, datapath="hopper_bf16", out=out) is out
    assert (out == 8).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"datapath": "hopper_fp16"}, "a: not all values are of float16.*a=float16/cast"),
        (
            {"a": "mxfp4/floor", "w": "mxfp4/floor", "datapath": "hopper_fp8"},
            "'mxfp4' has a scale .float8_e8m0fnu. per 32 .* 'hopper_fp8' applies no scales",
        ),
        (
            {"a": "nvfp4/amax", "w": "nvfp4/amax", "datapath": "blackwell_mxf4"},
            "'blackwell_mxf4' applies scales of float8_e8m0fnu per 32; fitting: blackwell_nvf4",
        ),
        ({"a": "int8_zp_channel/minmax", "datapath": "ampere_int8"}, "more than a scale per block"),
        ({"a": "int8/amax:channel", "datapath": "hopper_fp8"}, "elements of .* are int8"),
        ({"a": "float8_e4m3fn/cast/stochastic:8", "datapath": "hopper_fp8"}, "needs random bits"),
        ({"datapath": "hoper_fp8"}, "did you mean 'hopper_fp8"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 64, generator=g)
    with pytest.raises(LowprecError, match=message):
        matmul(x, x, **options)


@pytest.mark.parametrize(
    ("x", "w", "message"),
    [((2, 3), (2, 4), "K differs"), ((2, 2, 3), (3, 2, 3), "broadcast"), ((3,), (3,), "expected")],
)
def test_bad_shapes(x: tuple[int, ...], w: tuple[int, ...], message: str) -> None:
    with pytest.raises(LowprecError, match=message):
        matmul(torch.ones(x), torch.ones(w))


# ---- autograd and torch.compile ----


@pytest.mark.parametrize("shapes", [((6, 64), (5, 64)), ((64,), (5, 64)), ((2, 4, 64), (2, 5, 64))])
def test_the_gradient_is_the_float_matmuls(shapes: tuple[tuple[int, ...], ...]) -> None:
    g = torch.Generator().manual_seed(0)
    q = {"a": "mxfp8_e4m3/floor", "w": "mxfp4/floor"}
    gradients = []
    for datapath in (None, "blackwell_mxf8"):
        x, w = (torch.randn(s, generator=g.manual_seed(len(s))).requires_grad_() for s in shapes)
        y = matmul(x, w, **q, datapath=datapath)
        gradients.append(
            torch.autograd.grad((y * torch.arange(y.numel()).view_as(y)).sum(), (x, w))
        )
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_compiles_as_one_graph() -> None:
    def run(x: Tensor, w: Tensor) -> Tensor:
        return matmul(x, w, a="float8_e4m3fn/amax:channel", w="float8_e4m3fn/amax:channel",
                      datapath="hopper_fp8").relu()  # fmt: skip

    x, w = torch.randn(4, 64), torch.randn(5, 64)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, w), run(x, w))


def test_the_operator_is_registered_rightly() -> None:
    x, w = torch.randn(4, 64, requires_grad=True), torch.randn(5, 64, requires_grad=True)
    path = load_datapath("hopper_bf16").model_dump_json()
    q = lp.quantizer("bfloat16/cast").model_dump_json()
    torch.library.opcheck(torch.ops.lowprec.matmul, (x, w, q, q, path))
