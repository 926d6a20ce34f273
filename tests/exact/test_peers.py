"""Projection against ml_dtypes, numpy, C and gfloat, where semantics agree.

Where they do not, the difference is written down here as what each side answers.
"""

from __future__ import annotations

import itertools
import math
import random
import struct
from fractions import Fraction

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest

from lowprec.exact import exact, identical, project, value_table
from lowprec.spec import FloatFormat, Format, Projection, load_format
from tests.peers.gfloats import GFLOAT, GFLOAT_MODES

IEEE = Projection(saturation="OvfInf")


def scalar(name: str) -> Format:
    fmt = load_format(name)
    assert isinstance(fmt, Format)
    return fmt


def dtype(name: str) -> np.dtype:
    return np.dtype(np.float16 if name == "float16" else getattr(ml_dtypes, name))


def hard_inputs(fmt: Format, count: int = 1500) -> np.ndarray:
    """Values, the middles between them, their float32 neighbours, random bit patterns, the ends."""
    rng = random.Random(fmt.name)
    table = sorted(float(v) for v in value_table(fmt) if math.isfinite(v))
    gaps = list(itertools.pairwise(table))
    gaps = gaps if len(gaps) <= count else rng.sample(gaps, count) + gaps[:8] + gaps[-8:]
    last = table[-1] - table[-2]
    ends = [table[-1] + last / 2, table[-1] + last, -table[-1] - last / 2, table[-1] * 2]
    with np.errstate(over="ignore"):
        middles = np.array([x for a, b in gaps for x in (a, (a + b) / 2)] + ends, np.float32)
    patterns = np.array([rng.getrandbits(32) for _ in range(count)], np.uint32).view(np.float32)
    specials = np.array([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45], np.float32)
    around = [
        middles,
        np.nextafter(middles, np.float32(9e9)),
        np.nextafter(middles, np.float32(-9e9)),
    ]
    return np.concatenate([*around, patterns, specials])


def differences(name: str) -> list[tuple[float, float, float]]:
    """(input, ours, theirs) of a conversion from float32, OvfInf."""
    inputs = hard_inputs(scalar(name))
    with np.errstate(all="ignore"):
        theirs = inputs.astype(dtype(name)).astype(np.float64)
    ours = [project(float(x), scalar(name), IEEE) for x in inputs]
    return [
        (float(x), float(a), float(b))
        for x, a, b in zip(inputs, ours, theirs, strict=True)
        if not identical(a, exact(float(b)))
    ]


SAME = [
    "bfloat16",
    "float16",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
]


@pytest.mark.parametrize("name", SAME)
def test_ml_dtypes_and_numpy_convert_alike(name: str) -> None:
    assert differences(name) == []


@pytest.mark.parametrize("name", ["float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"])
def test_ml_dtypes_turns_nan_into_zero_where_there_is_no_nan(name: str) -> None:
    found = differences(name)
    assert found
    assert all(x != x and ours != ours and theirs == 0 for x, ours, theirs in found)


def test_ml_dtypes_rounds_e8m0_up_at_ties_and_early_at_the_bottom() -> None:
    """Ours ties to the even code. Theirs takes the larger value, beyond the largest NaN, and
    between 2^-127 and 2^-126, float32 subnormals, it leaves 2^-127 well before the middle."""
    found = differences("float8_e8m0fnu")
    ties = [(x, ours, theirs) for x, ours, theirs in found if math.frexp(x)[0] == 0.75]
    assert {theirs / ours for _, ours, theirs in ties if theirs == theirs} == {2.0}
    assert [x for x, _, theirs in ties if theirs != theirs] == [1.5 * 2.0**127]
    assert len(ties) >= 100
    rest = [found_one for found_one in found if found_one not in ties]
    assert rest
    for x, ours, theirs in rest:
        assert 2.0**-127 < x < 1.5 * 2.0**-127
        assert (ours, theirs) == (2.0**-127, 2.0**-126)


def test_float32_equals_the_machines_own_conversion() -> None:
    """From float64, in struct: C's conversion, to nearest even."""
    fmt, rng = scalar("float32"), random.Random(0)
    doubles = [rng.gauss(0, 1) * 2.0 ** rng.randint(-151, 127) for _ in range(2000)]
    ties = [math.ldexp(2 * rng.getrandbits(24) + 1, rng.randint(-174, 60)) for _ in range(500)]
    tiny = [math.ldexp(k, -151) for k in range(32)]
    for x in [*doubles, *ties, *tiny, -0.0, math.inf, math.nan]:
        (expected,) = struct.unpack("f", struct.pack("f", x))
        assert identical(project(x, fmt, IEEE), exact(expected))


@pytest.mark.parametrize("name", GFLOAT)
def test_gfloat_rounds_alike(name: str) -> None:
    """All its deterministic modes. Without NaN it refuses NaN, and Inf and overflow where they
    ask for one: those inputs are left out."""
    fmt, info = scalar(name), GFLOAT[name]
    inputs = [float(x) for x in hard_inputs(fmt, 60)]
    cases = itertools.product(GFLOAT_MODES, ("SatFinite", "OvfInf"), inputs)
    for rounding, saturation, x in cases:
        try:
            theirs = gfloat.round_float(
                info, x, GFLOAT_MODES[rounding], sat=saturation == "SatFinite"
            )
        except ValueError:
            assert not fmt.has_nan
            continue
        projection = Projection.model_validate({"rounding": rounding, "saturation": saturation})
        ours = project(x, fmt, projection)
        assert identical(ours, exact(float(theirs))), (rounding, saturation, x, ours, theirs)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "binary8p3se"])
@pytest.mark.parametrize("bits", [1, 4])
def test_gfloat_rounds_stochastically_alike(name: str, bits: int) -> None:
    """Its StochasticFastest is P3109's StochasticA."""
    fmt, info = scalar(name), GFLOAT[name]
    projection = Projection(rounding="stochastic", bits=bits)
    inputs = [float(x) for x in hard_inputs(fmt, 40)]
    for x, r in itertools.product(inputs, range(1 << bits)):
        mode = gfloat.RoundMode.StochasticFastest
        theirs = gfloat.round_float(info, x, mode, sat=True, srbits=r, srnumbits=bits)
        assert identical(project(x, fmt, projection, r), exact(float(theirs))), (x, r)


def test_gfloat_also_ties_e8m0_to_the_even_code() -> None:
    fmt, info = scalar("float8_e8m0fnu"), gfloat.formats.format_info_ocp_e8m0
    assert isinstance(fmt, FloatFormat)
    for exponent in range(-126, 127):
        x = 1.5 * 2.0**exponent
        assert project(x, fmt) == Fraction(gfloat.round_float(info, x, sat=True))
