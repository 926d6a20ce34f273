"""Projection and code points of every scalar format against the oracle, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from lowprec import LowprecError, exact, kernels
from lowprec import format as load_format
from lowprec.eval.conformance.comparison import INTEGERS
from lowprec.eval.conformance.scalars import DETERMINISTIC, dtype_for, project
from lowprec.eval.hard_inputs import edges, every_bfloat16, every_float16, random_bits
from lowprec.spec import Format, IntFormat, Projection
from tests import strategies
from tests.kernels.oracle import SCALARS, assert_same_bits
from tests.kernels.table_oracle import project_by_table

FAMILIES = [
    load_format(name)
    for name in (
        "binary8p3se", "binary8p3sf", "binary8p4ue", "binary8p1uf", "binary8p1se", "binary3p1sf",
        "binary3p1ue", "binary6p2se", "binary4p3ue", "binary8p7se", "uint4", "int2", "int3_sym",
        "int16", "uint8", "posit8_2", "posit6_0", "takum8", "cfloat8_1_4_3_b60",
    )
]  # fmt: skip
NAMED = {"ids": lambda value: value.name if isinstance(value, Format) else value.spell()}
# Long formats whose every bfloat16 is tested by default.
COMMON = ("bfloat16", "float16", "float32", "tfloat32")
EVERY = [*SCALARS, *FAMILIES]
NEAREST = Projection()


def check(x: Tensor, fmt: Format, projection: Projection, random: int | None = None) -> None:
    bits = None if random is None else torch.full(x.shape, random)
    found = kernels.cast(x, fmt, projection.rounding, projection.saturation, projection.bits, bits)
    assert_same_bits(found, project(x, fmt, projection, random), x)


@pytest.mark.parametrize("fmt", EVERY, **NAMED)
def test_nearest_even_of_every_bfloat16(fmt: Format) -> None:
    x = every_bfloat16().to(dtype_for(fmt))
    if fmt.bits > 10 and fmt.name not in COMMON:
        x = x[::16]  # the rest in the slow test: the oracle takes seconds for so many values
    check(x, fmt, NEAREST)


@pytest.mark.parametrize("fmt", EVERY, **NAMED)
def test_every_projection_at_edges_and_random_bits(fmt: Format) -> None:
    dtype = dtype_for(fmt)
    most = 20 if fmt.bits <= 8 else 12
    x = torch.cat([edges(fmt, dtype, most), random_bits(most, dtype)])
    for projection in DETERMINISTIC:
        check(x, fmt, projection)


@pytest.mark.slow
@pytest.mark.parametrize("projection", DETERMINISTIC, **NAMED)
@pytest.mark.parametrize("fmt", EVERY, **NAMED)
def test_every_projection_of_every_16_bit_float(fmt: Format, projection: Projection) -> None:
    dtype = dtype_for(fmt)
    check(every_bfloat16().to(dtype), fmt, projection)
    check(every_float16().to(dtype), fmt, projection)
    check(random_bits(100_000, dtype, seed=1), fmt, projection)
    check(edges(fmt, dtype, most=1 << 16), fmt, projection)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", EVERY, **NAMED)
def test_ten_million_random_bits(fmt: Format) -> None:
    """All exponents, under every projection; 10,000 of formats that have no table of values, since
    the oracle has to be asked about each."""
    dtype = dtype_for(fmt)
    count = 10_000_000 if fmt.bits <= exact.TABLE_BITS else 10_000
    x = random_bits(count, dtype, seed=7).view(INTEGERS[dtype]).unique().view(dtype)
    by_table = 10 < fmt.bits <= exact.TABLE_BITS
    for projection in DETERMINISTIC:
        found = kernels.cast(x, fmt, projection.rounding, projection.saturation)
        expected = project_by_table(x, fmt, projection) if by_table else project(x, fmt, projection)
        assert_same_bits(found, expected, x)


@pytest.mark.parametrize("bits", [1, 32])
@pytest.mark.parametrize("fmt", EVERY, **NAMED)
def test_stochastic(fmt: Format, bits: int) -> None:
    dtype = dtype_for(fmt)
    x = torch.cat([edges(fmt, dtype, most=12), random_bits(20, dtype)])
    for random in {0, 1, (1 << bits) // 3, (1 << bits) - 1}:
        saturation = "OvfInf" if random else "SatFinite"
        check(x, fmt, Projection(rounding="stochastic", saturation=saturation, bits=bits), random)


@pytest.mark.parametrize("fmt", [f for f in EVERY if f.bits <= 16], **NAMED)
def test_codes_are_the_oracles(fmt: Format) -> None:
    """decode is the value table, and encode gives the oracle's code back."""
    table = exact.value_table(fmt)
    codes = torch.arange(0, len(table), 1 if len(table) <= 1024 else 37)
    table = [table[code] for code in codes.tolist()]
    values = kernels.decode(codes, fmt, dtype_for(fmt))
    assert_same_bits(values, torch.tensor([float(v) for v in table], dtype=values.dtype))
    held = torch.tensor([not (isinstance(fmt, IntFormat) and v < fmt.min_exact) for v in table])
    expected = [exact.code_of(v, fmt) for v, kept in zip(table, held.tolist(), strict=True) if kept]
    projection = "SatPropagate" if fmt.has_infinity else "SatFinite"
    codes = kernels.encode(values[held], fmt, saturation=projection)
    assert codes.long().tolist() == expected


@pytest.mark.parametrize("fmt", [f for f in SCALARS if f.bits > 16], **NAMED)
def test_long_codes_are_the_oracles(fmt: Format) -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 1 << min(fmt.bits, 62), (300,), generator=generator)
    codes = torch.cat([codes, codes ^ (-1 << 62)]) if fmt.bits == 64 else codes
    unsigned = [code % (1 << 64) for code in codes.tolist()]
    dtype = dtype_for(fmt)
    expected = torch.tensor([float(exact.value(code, fmt)) for code in unsigned], dtype=dtype)
    values = kernels.decode(codes, fmt, dtype)
    assert_same_bits(values, expected)
    back = kernels.encode(values, fmt, saturation="OvfInf").tolist()
    assert back == [exact.code_of(exact.value(code, fmt), fmt) for code in unsigned]


@pytest.mark.parametrize("fmt", [f for f in EVERY if not f.has_nan], **NAMED)
def test_nan_without_a_code_is_an_error(fmt: Format) -> None:
    with pytest.raises(LowprecError, match="NaN"):
        kernels.encode(torch.tensor([1.0, float("nan")], dtype=dtype_for(fmt)), fmt)


def test_codes_beyond_the_format_are_an_error() -> None:
    for codes, name in (([16], "float4_e2m1fn"), ([-1], "int8"), ([3], "ternary")):
        with pytest.raises(LowprecError, match="code points"):
            kernels.decode(torch.tensor(codes), name)
    with pytest.raises(LowprecError, match="integers"):
        kernels.decode(torch.tensor([1.0]), "int8")


def test_stochastic_rounds_up_in_proportion() -> None:
    """Over all random bits, the share that goes away from zero is floor(fraction * 2^n) / 2^n."""
    for name in ("float4_e2m1fn", "int4", "nf4"):
        x = torch.rand(200, generator=torch.Generator().manual_seed(0)) * 2 - 1
        low = kernels.cast(x, name, "toward-zero")
        high = kernels.cast(x, name, "up").where(x >= 0, kernels.cast(x, name, "down"))
        fraction = (x.double() - low) / (high.double() - low)
        random = torch.arange(64).expand(200, 64)
        rounded = kernels.cast(
            x[:, None].expand(200, 64), name, "stochastic", bits=6, random=random
        )
        went = (rounded == high[:, None]).double().mean(1)
        torch.testing.assert_close(went, (fraction * 64).floor() / 64, rtol=0, atol=0)


@settings(max_examples=25)
@given(fmt=strategies.formats())
def test_any_format(fmt: Format) -> None:
    """Formats nobody has named: any precision, bias, specials, up to 16 bits; any codebook."""
    dtype = dtype_for(fmt)
    x = torch.cat([edges(fmt, dtype, most=12), random_bits(20, dtype)])
    for projection in DETERMINISTIC:
        check(x, fmt, projection)
