"""Datapaths on tensors: real tensor cores, and the oracle on what is hard."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.exact import dot as exact_dot
from lowprec.kernels import cast
from lowprec.kernels.dot import dot
from lowprec.kernels.integer_sum import bit_length, exact_sum, parts, shift
from lowprec.spec import Aligned, Datapath, Tree, list_datapaths, load_datapath, load_format
from lowprec.spec.format import FloatFormat, Format, IntFormat
from tests.exact.recordings import RECORDED, excerpt, whole
from tests.exact.test_dot import CORNERS

NAMES = list_datapaths()


def same(a: Tensor, b: Tensor) -> Tensor:
    """Equal, -0 told from +0 and NaN taken for NaN."""
    return ((a == b) & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan())


def draw_values(
    fmt: Format, shape: tuple[int, ...], spread: int, g: torch.Generator, centre: int = 0
) -> Tensor:
    """Values of a format about 2^centre, zeros and powers of two among them."""
    if isinstance(fmt, IntFormat):
        low, high = fmt.min_integer, fmt.max_integer
        return torch.randint(low, high + 1, shape, generator=g).to(torch.float32)
    assert isinstance(fmt, FloatFormat)
    x = torch.randn(shape, generator=g, dtype=torch.float64)
    exponent = centre + torch.randint(-spread, spread + 1, shape, generator=g)
    x = (x * torch.exp2(exponent.double())).float()
    round_numbers = torch.rand(shape, generator=g) < 0.3
    x = torch.where(round_numbers, torch.exp2(exponent.float()).copysign(x), x)
    x = torch.where(torch.rand(shape, generator=g) < 0.1, 0.0, x)
    return cast(x, fmt).nan_to_num(0.0)


def operands(
    path: Datapath, rows: int, spread: int, seed: int, special: bool = False, tiny: bool = False
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    g = torch.Generator().manual_seed(seed)
    # A whole number of steps and a short one.
    size = 2 * max(path.step or 8, len(path.order)) + 3
    if path.promotion:
        size = max(size, path.promotion.interval + 5)
    # tiny: products at the lower end of the accumulator, where subnormals and the floor are.
    low = path.output.emin // 2 - 3 if tiny and isinstance(path.output, FloatFormat) else 0
    a, b = (draw_values(path.inputs[0], (rows, size), spread, g, low) for _ in "ab")
    c = draw_values(path.output, (rows,), min(2 * spread, 100), g, 2 * low)
    # What cancels shows the bits that a result of 24 bits hides.
    c[::2] = -(a.double() * b.double()).sum(-1).float()[::2]
    if isinstance(path.output, FloatFormat):
        c = cast(c, path.output)
    scales = None
    if path.scaling:
        blocks = -(-size // path.scaling.block)
        first = path.scaling.formats[0]
        pair = (draw_values(first, (rows, blocks), spread, g) for _ in "ab")
        signed = isinstance(first, FloatFormat) and first.precision > 4
        scales = tuple(s if signed else s.abs() for s in pair)
    if special:
        for x in (a, b):
            hit = torch.rand(x.shape, generator=g) < 0.02
            x[hit] = math.nan if path.inputs[0].has_nan else 0.0
            hit = torch.rand(x.shape, generator=g) < 0.02
            x[hit] = math.inf if path.inputs[0].has_infinity else 0.0
        if isinstance(path.output, FloatFormat):
            c[0], c[1], c[2] = math.inf, math.nan, -0.0
    return a, b, c, scales


def differing(
    path: Datapath, a: Tensor, b: Tensor, c: Tensor, scales: Any = None
) -> list[tuple[int, float, float]]:
    """Rows in which the kernel and the oracle differ."""
    fmt = (path.inputs[0], path.inputs[0])
    got = dot(a, b, c, datapath=path, formats=fmt, scales=scales).double()
    want = torch.tensor(
        [
            float(
                exact_dot(
                    a[i].tolist(),
                    b[i].tolist(),
                    c[i].item(),
                    path,
                    fmt,
                    scales and (scales[0][i].tolist(), scales[1][i].tolist()),
                )
            )
            for i in range(len(a))
        ],
        dtype=torch.float64,
    )
    bad = (~same(got, want)).nonzero()[:, 0].tolist()
    return [(i, got[i].item(), want[i].item()) for i in bad]


# ---- recordings ----


@pytest.mark.parametrize(("recording", "name"), RECORDED, ids=[r for r, _ in RECORDED])
def test_recorded_lines(recording: str, name: str) -> None:
    lines = excerpt(recording)
    a, b, c = map(torch.tensor, (lines.a, lines.b, lines.c))
    d = dot(a, b, c, datapath=name, formats=(lines.format, lines.format))
    assert d.dtype == torch.float32
    assert (d.view(torch.int32) == torch.tensor(lines.d.astype("int32"))).all()


@pytest.mark.parametrize(("recording", "name"), RECORDED, ids=[r for r, _ in RECORDED])
def test_all_recorded_lines(recording: str, name: str) -> None:
    lines = whole(recording)
    a, b, c = map(torch.tensor, (lines.a, lines.b, lines.c))
    d = dot(a, b, c, datapath=name)
    assert int((d.view(torch.int32) != torch.tensor(lines.d.view("int32"))).sum()) == 0


# ---- the oracle ----


@pytest.mark.parametrize("name", NAMES)
def test_equals_the_oracle(name: str) -> None:
    path = load_datapath(name)
    for seed, spread in enumerate((1, 12)):
        assert differing(path, *operands(path, 4, spread, seed)) == []
    assert differing(path, *operands(path, 4, 2, 2, tiny=True)) == []
    assert differing(path, *operands(path, 4, 60, 3, special=True)) == []


@pytest.mark.parametrize(("name", "a", "b", "c", "d"), CORNERS)
def test_corners(name: str, a: list[float], b: list[float], c: float, d: float) -> None:
    got = dot(torch.tensor(a), torch.tensor(b), torch.tensor(c), datapath=name)
    assert same(got, torch.tensor(d)).item()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_equals_the_oracle_on_many(name: str) -> None:
    path = load_datapath(name)
    for seed, spread in enumerate((0, 1, 4, 12, 30, 60, 100)):
        assert differing(path, *operands(path, 20, spread, 100 + seed)) == []
        assert differing(path, *operands(path, 10, spread, 200 + seed, special=True)) == []
        assert differing(path, *operands(path, 10, spread, 300 + seed, tiny=True)) == []


@st.composite
def datapaths(draw: st.DrawFn) -> Datapath:
    """Units that nobody has built."""
    step = draw(st.integers(1, 9))
    order = tuple(draw(st.permutations(range(step * draw(st.integers(1, 3))))))
    tree = draw(st.integers(0, 5)) == 0
    accumulator = load_format("float32") if tree else draw(st.sampled_from(ACCUMULATORS))
    roundings = ["toward-zero", "nearest-even", "nearest-away", "up", "down", "to-odd"]
    promotion = {"interval": len(order) * draw(st.integers(1, 2)), "format": load_format("float32")}
    return Datapath(
        name="drawn",
        inputs=(draw(st.sampled_from(INPUTS)),),
        accumulator=accumulator,
        addition=Tree(kind="tree", flush=draw(st.booleans())) if tree else draw(aligned()),
        step=step,
        order=order if draw(st.booleans()) else (),
        rounding="nearest-even" if tree else draw(st.sampled_from(roundings)),
        promotion=promotion if draw(st.booleans()) else None,
    )


@st.composite
def aligned(draw: st.DrawFn) -> Aligned:
    return Aligned(
        kind="aligned",
        fraction_bits=draw(st.none() | st.integers(1, 40)),
        rounding=draw(st.sampled_from(["toward-zero", "down", "nearest-even"])),
        min_exponent=draw(st.none() | st.integers(-60, 3)),
    )


INPUTS = [load_format(n) for n in ("float8_e4m3fn", "float8_e5m2fnuz", "bfloat16", "float6_e2m3fn")]
ACCUMULATORS = [load_format(n) for n in ("float32", "bfloat16", "float16", "fp24")]


@settings(max_examples=60)
@given(datapaths(), st.integers(0, 1000), st.sampled_from([1, 6, 40]), st.booleans())
def test_units_nobody_has_built(path: Datapath, seed: int, spread: int, special: bool) -> None:
    assert differing(path, *operands(path, 3, spread, seed, special)) == []


# ---- the interface ----


def test_shapes_broadcast_and_c_is_optional() -> None:
    a, b = torch.ones(3, 1, 5), torch.full((2, 5), 2.0, dtype=torch.bfloat16)
    d = dot(a, b, datapath="hopper_bf16")
    assert d.shape == (3, 2)
    assert (d == 10).all()
    assert (
        dot(a, b, torch.tensor([1.0, 2.0]), datapath="hopper_bf16")[0]
        == d[0] + d.new_tensor([1, 2])
    ).all()
    assert dot(torch.ones(0, 5), torch.ones(0, 5), datapath="hopper_bf16").shape == (0,)
    assert (dot(torch.ones(2, 0), torch.ones(2, 0), datapath="hopper_bf16") == 0).all()


def test_float8_dtypes_are_read() -> None:
    a = torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn)
    assert dot(a, a, datapath="hopper_fp8").item() == 5


def test_integers_come_back_exactly() -> None:
    a = torch.full((1, 64), 127, dtype=torch.int8)
    d = dot(a, a, torch.tensor([2.0**31 - 1], dtype=torch.float64), datapath="ampere_int8")
    assert d.dtype == torch.float64
    assert d.item() == 64 * 127 * 127 - 1 - 2**31


def test_c_is_rounded_to_the_accumulator_first() -> None:
    one, c = torch.ones(1, 1), torch.tensor([2049.0])
    assert dot(one, one, c, datapath="ampere_fp16_fp16").item() == 2048
    assert dot(one, one, torch.tensor([65520.0]), datapath="ampere_fp16_fp16").item() == math.inf


@pytest.mark.parametrize(
    ("a", "options", "message"),
    [
        (torch.full((1, 2), 1.03), {}, "a: not all its values are of float8_e4m3fn or float8_e5m2"),
        (torch.ones(1, 3), {}, r"shapes \[1, 3\] and \[1, 2\] do not broadcast"),
        (torch.ones(1, 2), {"c": torch.ones(2)}, r"c of shape \[2\]: expected \[1\]"),
        (torch.ones(1, 2), {"formats": ("int8", "int8")}, "takes formats float8_e4m3fn, float8_e5"),
        (torch.ones(1, 2), {"scales": (torch.ones(1, 1),) * 2}, "'hopper_fp8' takes no scales"),
        (torch.ones(1, 2), {"datapath": "hoper_fp8"}, "did you mean 'hopper_fp8"),
        (torch.ones(1, 2), {"datapath": "blackwell_mxf8"}, "'blackwell_mxf8' needs scales"),
    ],
)
def test_bad_arguments(a: Tensor, options: dict[str, Any], message: str) -> None:
    with pytest.raises(LowprecError, match=message):
        dot(a, torch.ones(1, 2), **({"datapath": "hopper_fp8"} | options))


def test_a_value_outside_its_format_is_refused() -> None:
    for name, x in [("hopper_fp16", 65520.0), ("cdna3_fp8", -0.0), ("ampere_int8", 0.5)]:
        with pytest.raises(LowprecError, match="not all its values"):
            dot(torch.tensor([x]), torch.ones(1), datapath=name)


# ---- integers ----


@given(st.lists(st.tuples(st.integers(-(2**48), 2**48), st.integers(-300, 250)), min_size=1))
def test_exact_sum_keeps_what_rounding_needs(terms: list[tuple[int, int]]) -> None:
    t, q = (torch.tensor([list(column)]) for column in zip(*terms, strict=True))
    s, u = exact_sum(t, q)
    low = min(x[1] for x in terms)
    total = sum(x << (e - low) for x, e in terms)
    s0, shift_by = int(s), int(u) - low
    assert abs(s0) < 1 << 59
    if shift_by <= 0:
        assert total << -shift_by == s0
        return
    cut = abs(total) >> shift_by
    assert abs(s0) == cut | (cut << shift_by != abs(total))
    assert (s0 < 0) == (total < 0) or s0 == 0
    assert total == 0 or s0.bit_length() >= 27


@given(st.integers(-(2**61), 2**61), st.integers(-70, 0))
def test_shift_rounds(t: int, by: int) -> None:
    unit = 1 << -by
    for rounding, want in [
        ("down", t // unit),
        ("toward-zero", (abs(t) // unit) * (1 if t >= 0 else -1)),
    ]:
        assert int(shift(torch.tensor(t), torch.tensor(by), rounding)) == want
    nearest = int(shift(torch.tensor(t), torch.tensor(by), "nearest-even"))
    floor, rest = divmod(t, unit)
    assert nearest == floor + (2 * rest > unit or (2 * rest == unit and floor % 2 == 1))


@given(st.integers(0, 2**62))
def test_bit_length(n: int) -> None:
    assert int(bit_length(torch.tensor(n))) == n.bit_length()


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_parts_are_the_number(x: float) -> None:
    t, e = parts(torch.tensor(x, dtype=torch.float64), 24, -126)
    assert math.ldexp(int(t), int(e) - 23) == x
    assert abs(int(t)) < 1 << 24
