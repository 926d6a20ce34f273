"""Estimates of 2^x, 1/x and 1/sqrt(x): their errors, their bits, and the ends of the range."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import numpy as np
import pytest
import torch

from lowprec import LowprecError
from lowprec.nn.operations import approximation
from lowprec.nn.operations.approximation import estimate, fused
from lowprec.nn.operations.coefficients import coefficients, minimax
from lowprec.spec import load_estimate

EXACT = {"exp2": torch.exp2, "reciprocal": torch.reciprocal, "rsqrt": torch.rsqrt}
INF, NAN = float("inf"), float("nan")


def reduced(function: str, step: int) -> torch.Tensor:
    """Every `step`-th float32 of an interval on which the estimate's error repeats."""
    ends = torch.tensor([1.0, 4.0 if function == "rsqrt" else 2.0]).view(torch.int32)
    return torch.arange(int(ends[0]), int(ends[1]), step, dtype=torch.int32).view(torch.float32)


def error(function: str, how: str, x: torch.Tensor) -> float:
    """The largest relative error."""
    y, exact = estimate(x, function, how).double(), EXACT[function](x.double())
    return float(((y - exact) / exact).abs().max())


# log2 of the largest relative error over every float32 of the interval, as the module states it.
ERRORS = {
    (function, how): float(bits)
    for function, text in re.findall(
        r"^(\w+): (.*?)\.\n", approximation.__doc__ + "\n", re.S | re.M
    )
    for how, bits in (item.split() for item in text.split(","))
}


def test_the_module_states_errors_of_every_method():
    assert {function for function, _ in ERRORS} == set(EXACT)
    assert len(ERRORS) == 23


@pytest.mark.parametrize(("function", "how"), ERRORS)
def test_the_largest_error_is_the_stated_one(function, how):
    found = math.log2(error(function, how, reduced(function, 257)))
    assert ERRORS[function, how] - 0.5 < found <= ERRORS[function, how]


@pytest.mark.slow
@pytest.mark.parametrize(("function", "how"), ERRORS)
def test_the_largest_error_over_every_float32_is_the_stated_one(function, how):
    found = math.log2(error(function, how, reduced(function, 1)))
    assert ERRORS[function, how] - 0.011 < found <= ERRORS[function, how]


@pytest.mark.parametrize("function", EXACT)
def test_every_bfloat16_input_has_its_bits(function):
    """bits:24 is the float64 value rounded to float32, and then to bfloat16 where that is asked.
    (A subnormal result is rounded twice, and x - floor(x) may be inexact: not these.)"""
    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    exact = EXACT[function](x.double()).to(torch.float32)
    y = estimate(x.float(), function, "bits:24")
    assert torch.equal(y.isnan(), exact.isnan())
    there = ~exact.isnan()
    if function == "exp2":
        wide = x.double()
        t = wide - wide.floor()
        there &= (t == t.float()) | (x.abs() > 1e30)
    there &= (exact.abs() >= 2.0**-126) | (exact == 0)
    assert there.sum() > 30000
    assert torch.equal(y[there].view(torch.int32), exact[there].view(torch.int32))
    half = estimate(x, function, "bits:24")
    assert half.dtype == torch.bfloat16
    assert torch.equal(half[there].view(torch.int16), exact[there].bfloat16().view(torch.int16))


def looked_up(function: str, x: float, bits: int) -> float:
    """``table:bits`` of a positive number (any, of exp2), by its definition."""
    size = 1 << bits
    if function == "exp2":
        n = math.floor(x)
        t = float(np.float32(x - n))
        entry = 2.0 ** (min(math.floor(t * size), size - 1) / size)
        return float(np.ldexp(np.float32(entry), n))
    m, e = math.frexp(x)
    m, e = 2 * m, e - 1
    left = math.floor((m - 1) * size) / size + 1
    if function == "reciprocal":
        return float(np.ldexp(np.float32(1 / left), -e))
    odd = e & 1
    return float(np.ldexp(np.float32(1 / math.sqrt(left * (1 + odd))), -(e >> 1)))


@pytest.mark.parametrize("function", EXACT)
def test_tables_hold_the_function_at_the_left_ends(function):
    x = torch.randn(500, generator=torch.Generator().manual_seed(0)) * 8
    x = x if function == "exp2" else x.abs()
    expected = torch.tensor([looked_up(function, float(v), 5) for v in x], dtype=torch.float32)
    y = estimate(x, function, "table:5")
    assert torch.allclose(y, expected, rtol=2**-23, atol=0)  # a table's float64 may round apart
    assert (y == expected).float().mean() > 0.99


def test_a_polynomial_is_evaluated_with_fused_steps():
    x = torch.rand(300, generator=torch.Generator().manual_seed(0))
    terms = [Fraction(float(c)) for c in coefficients("exp2", load_estimate("poly:3"))[0]]
    expected = []
    for t in map(Fraction, x.tolist()):
        y = terms[3]
        for term in (terms[2], terms[1], terms[0]):
            y = nearest(y * t + term)
        expected.append(float(y))
    assert estimate(x, "exp2", "poly:3").tolist() == expected


def nearest(value: Fraction) -> Fraction:
    """A normal float32, ties to even."""
    if not value:
        return value
    exponent = math.floor(math.log2(abs(value)))
    exponent += (abs(value) >= Fraction(2) ** (exponent + 1)) - (
        abs(value) < Fraction(2) ** exponent
    )
    unit = Fraction(2) ** (exponent - 23)
    return round(value / unit) * unit


def test_fused_rounds_once():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 4000, generator=generator)
    near = -(a * b) * (1 + torch.randint(-2, 3, (4000,), generator=generator) * 2.0**-23)
    far = torch.randn(4000, generator=generator) * 2.0 ** torch.randint(-30, 30, (4000,))
    for c in (near, far):
        rows = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
        exact = [float(nearest(Fraction(p) * Fraction(q) + Fraction(r))) for p, q, r in rows]
        assert fused(a, b, c).tolist() == exact


def test_fused_where_rounding_twice_is_wrong():
    # 1 + 2^-24 + 2^-60: float64 loses the last term, and the tie then goes to 1.
    a = torch.tensor([2.0**-30]), torch.tensor([2.0**-30])
    c = fused(*a, torch.tensor([0.0]))
    assert float(fused(torch.tensor([1.0]), torch.tensor([1.0]), c)) == 1.0
    one = torch.tensor([1.0 + 2.0**-12])  # squared: 1 + 2^-11 + 2^-24
    assert float(fused(one, one, torch.tensor([2.0**-60]))) == 1 + 2.0**-11 + 2.0**-23
    assert float(fused(one, one, torch.tensor([-(2.0**-60)]))) == 1 + 2.0**-11


@pytest.mark.parametrize("how", ["table:7", "poly:3", "bits:8", "table:4/poly:2"])
def test_the_ends_of_exp2(how):
    x = torch.tensor([NAN, -INF, INF, 128.0, -127.0, -149.0, -151.0, 3e38, -3e38, 0.0, -0.0, 5.0])
    y = estimate(x, "exp2", how).tolist()
    assert math.isnan(y[0])
    assert y[1:] == [0.0, INF, INF, 2.0**-127, 2.0**-149, 0.0, INF, 0.0, 1.0, 1.0, 32.0]


@pytest.mark.parametrize("how", ["table:7", "bits:8", "table:7/newton:1"])
def test_the_ends_of_reciprocal_and_rsqrt(how):
    x = torch.tensor([NAN, 0.0, -0.0, INF, -INF, 2.0**-149, 2.0**127, -4.0, 2.0**-126, 0.25])
    y = estimate(x, "reciprocal", how)
    assert math.isnan(y[0])
    assert y[1:].tolist() == [INF, -INF, 0.0, 0.0, INF, 2.0**-127, -0.25, 2.0**126, 4.0]
    assert torch.signbit(y[3:5]).tolist() == [False, True]
    y = estimate(x, "rsqrt", how).tolist()
    assert [math.isnan(v) for v in y] == [
        True,
        *[False] * 3,
        True,
        *[False] * 2,
        True,
        False,
        False,
    ]
    assert y[1:4] == [INF, -INF, 0.0]
    assert y[8:] == [2.0**63, 2.0]


def test_subnormal_results_are_rounded_once():
    x = torch.tensor([-130.3, -140.7, -148.51, -149.49])
    n = x.floor()
    unit = torch.exp2((x - n).double()).float()  # bits:24 of a number in [1, 2)
    assert torch.equal(
        estimate(x, "exp2", "bits:24"), torch.ldexp(unit.double(), n.double()).float()
    )


def test_the_polynomial_is_minimax():
    """No other with the same constant term has a smaller largest error: it alternates between
    degree + 1 equal extrema (de la Vallee Poussin)."""
    t = np.linspace(0, 1, 20001)
    for degree in (1, 2, 3, 4):
        relative = np.polyval(minimax(np.exp2, 1.0, degree)[::-1], t) / np.exp2(t) - 1
        largest = np.abs(relative).max()
        extrema = relative[np.abs(relative) > 0.999 * largest]
        signs = np.sign(extrema)
        assert 1 + np.count_nonzero(np.diff(signs)) == degree + 1


def test_poly_3_is_as_good_as_the_published_coefficients():
    """Those of FlashAttention-4 (flash_attn/cute/utils.py at fa4-v4.0.0.beta4)."""
    published = [1.0, 0.695146143436431884765625, 0.227564394474029541015625,
                 0.077119089663028717041015625]  # fmt: skip
    ours = coefficients("exp2", load_estimate("poly:3"))[0]
    t = np.linspace(0, 1, 10001)
    worst = [
        np.abs(np.polyval(np.array(c, dtype=np.float64)[::-1], t) / np.exp2(t) - 1).max()
        for c in (published, ours)
    ]
    assert worst[1] <= worst[0] < 1.1 * worst[1]
    assert np.allclose(ours, published, atol=1e-4)


@pytest.mark.parametrize("function", EXACT)
def test_the_gradient_is_the_function_s_own(function):
    x = torch.rand(50) + 0.5
    x.requires_grad_()
    upstream = torch.randn(50)
    estimate(x, function, "table:4").backward(upstream)
    mine, x.grad = x.grad, None
    EXACT[function](x).backward(upstream)
    torch.testing.assert_close(mine, x.grad, rtol=1e-6, atol=0)


def test_it_runs_compiled_and_on_the_meta_device():
    x = torch.randn(40)
    compiled = torch.compile(
        lambda x: estimate(x, "exp2", "poly:3"), fullgraph=True, backend="eager"
    )
    assert torch.equal(compiled(x), estimate(x, "exp2", "poly:3"))
    assert estimate(x.to("meta"), "rsqrt", "bits:8").shape == (40,)
    assert estimate(torch.zeros(0, 3), "reciprocal", "table:3").shape == (0, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tables:7", "unknown method 'tables'; did you mean 'table'?"),
        ("table", "'table': expected each method once, as in 'table:7'"),
        ("table:3/table:4", "expected each method once"),
        ("bits:8/table:2", "an estimate is bits, or else table, poly or both"),
        ("newton:1", "an estimate is bits, or else table, poly or both"),
        ("table:9/poly:1", "expected table up to 8"),
        ("bits:25", "bits"),
    ],
)
def test_a_bad_text_is_an_error(text, message):
    with pytest.raises(LowprecError) as caught:
        load_estimate(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_no_unit_computes_is_an_error():
    with pytest.raises(LowprecError, match=r"not in torch\.float64"):
        estimate(torch.zeros(1, dtype=torch.float64), "exp2", "table:7")
    with pytest.raises(LowprecError, match="unknown function 'sqrt'; did you mean 'rsqrt'"):
        estimate(torch.zeros(1), "sqrt", "table:7")
