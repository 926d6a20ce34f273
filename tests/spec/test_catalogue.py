"""Every scalar file against what its source says and against independent implementations."""

from __future__ import annotations

import math
import struct
from collections import Counter
from fractions import Fraction
from pathlib import Path
from statistics import NormalDist

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest

from lowprec.errors import LowprecError
from lowprec.exact import identical, value, value_table
from lowprec.exact.check import check_facts
from lowprec.spec import (
    BlockFormat,
    CodebookFormat,
    FloatFormat,
    Format,
    data_dir,
    list_formats,
    load_facts,
    load_format,
)
from lowprec.spec.format import pow2

SCALARS = sorted(path.stem for path in (data_dir("formats") / "scalar").glob("*.toml"))
BLOCKS = sorted(path.stem for path in (data_dir("formats") / "block").glob("*.toml"))


def scalar(name: str) -> Format:
    fmt = load_format(name)
    assert isinstance(fmt, Format)
    return fmt


def test_every_scalar_file_is_listed_and_bears_its_name() -> None:
    assert len(SCALARS) >= 38
    assert set(SCALARS) <= set(list_formats())
    assert [scalar(name).name for name in SCALARS] == SCALARS


@pytest.mark.parametrize("name", SCALARS)
def test_facts_agree_with_the_parameters(name: str) -> None:
    facts = load_facts(name)
    assert facts.max is not None
    assert facts.codes
    assert check_facts(scalar(name), facts) == []


def test_every_block_file_is_listed_and_bears_its_name() -> None:
    assert len(BLOCKS) >= 58
    assert sorted(SCALARS + BLOCKS) == list_formats()
    assert [load_format(name).name for name in BLOCKS] == BLOCKS


@pytest.mark.parametrize("name", BLOCKS)
def test_block_files_state_what_their_source_says(name: str) -> None:
    fmt, facts = load_format(name), load_facts(name)
    assert isinstance(fmt, BlockFormat)
    assert facts.bits_per_element is not None
    assert facts.max is not None
    assert (facts.elements_per_scale is None) == isinstance(fmt.block, str)
    assert check_facts(fmt, facts) == []
    wrong = facts.model_copy(update={"bits_per_element": facts.bits_per_element + 2**-20})
    assert len(check_facts(fmt, wrong)) == 1


def test_a_wrong_fact_is_found() -> None:
    facts = load_facts("float8_e4m3fn").model_copy(update={"max": 480.0, "codes": {"0x7E": 447.0}})
    problems = check_facts(scalar("float8_e4m3fn"), facts)
    assert len(problems) == 2
    assert all("448" in problem for problem in problems)


# ---- ml_dtypes and numpy: every code point ----

ML_FLOATS = [
    "bfloat16",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e4m3b11fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float4_e2m1fn",
]


def differences(fmt: Format, theirs: np.ndarray) -> list[tuple[str, object, float]]:
    ours = value_table(fmt)
    assert len(ours) == len(theirs)
    pairs = zip(ours, theirs.tolist(), strict=True)
    return [(hex(i), a, b) for i, (a, b) in enumerate(pairs) if not same(a, b)]


def same(ours: Fraction | float, theirs: float) -> bool:
    if theirs == 0 and math.copysign(1, theirs) > 0:
        return identical(ours, Fraction(0))
    return identical(ours, Fraction(theirs) if math.isfinite(theirs) and theirs else theirs)


@pytest.mark.parametrize("name", [*ML_FLOATS, "float16"])
def test_all_code_points_equal_ml_dtypes_and_numpy(name: str) -> None:
    fmt = scalar(name)
    dtype = np.dtype(np.float16 if name == "float16" else getattr(ml_dtypes, name))
    codes = np.arange(1 << fmt.bits, dtype=np.uint16 if fmt.bits == 16 else np.uint8)
    with np.errstate(invalid="ignore"):  # numpy warns of signalling NaNs
        theirs = codes.view(dtype).astype(np.float64)
    assert differences(fmt, theirs) == []


@pytest.mark.parametrize("name", [*ML_FLOATS, "float16", "float32", "float64"])
def test_limits_equal_finfo(name: str) -> None:
    fmt = scalar(name)
    assert isinstance(fmt, FloatFormat)
    info = ml_dtypes.finfo(getattr(ml_dtypes, name, None) or np.dtype(name))
    assert fmt.max_exact == Fraction(float(info.max))
    assert fmt.min_exact == Fraction(float(info.min))
    assert fmt.min_normal_exact == Fraction(float(info.smallest_normal))
    if fmt.subnormals:
        assert fmt.min_positive_exact == Fraction(float(info.smallest_subnormal))
    assert (fmt.bits, fmt.precision) == (info.bits, info.nmant + 1)


@pytest.mark.parametrize("name", ["int2", "int4", "uint1", "uint2", "uint4"])
def test_small_integers_equal_ml_dtypes(name: str) -> None:
    fmt = scalar(name)
    codes = np.arange(1 << fmt.bits, dtype=np.uint8)
    theirs = codes.view(getattr(ml_dtypes, name)).astype(np.float64)
    assert differences(fmt, theirs) == []


@pytest.mark.parametrize("name", ["int8", "int16", "uint8", "uint16"])
def test_integers_equal_numpy(name: str) -> None:
    codes = np.arange(1 << scalar(name).bits, dtype=f"uint{scalar(name).bits}")
    assert differences(scalar(name), codes.view(name).astype(np.float64)) == []


@pytest.mark.parametrize(("name", "code"), [("float32", "I f"), ("float64", "Q d")])
def test_wide_floats_equal_the_machine(name: str, code: str) -> None:
    fmt, (integer, real) = scalar(name), code.split()
    assert isinstance(fmt, FloatFormat)
    step = 1 << (fmt.precision - 1)
    random = np.random.default_rng(0).integers(0, 1 << fmt.bits, 2000, dtype=np.uint64).tolist()
    edges = [base + k for base in range(0, 1 << fmt.bits, step) for k in (0, 1, step - 1)]
    for bits in random + edges:
        (theirs,) = struct.unpack(f"<{real}", struct.pack(f"<{integer}", bits))
        assert same(value(bits, fmt), theirs), hex(bits)


# ---- gfloat: every code point ----

GFLOAT = {
    "bfloat16": gfloat.formats.format_info_bfloat16,
    "float16": gfloat.formats.format_info_binary16,
    "float8_e5m2": gfloat.formats.format_info_ocp_e5m2,
    "float8_e4m3fn": gfloat.formats.format_info_ocp_e4m3,
    "float8_e8m0fnu": gfloat.formats.format_info_ocp_e8m0,
    "float6_e3m2fn": gfloat.formats.format_info_ocp_e3m2,
    "float6_e2m3fn": gfloat.formats.format_info_ocp_e2m3,
    "float4_e2m1fn": gfloat.formats.format_info_ocp_e2m1,
}


@pytest.mark.parametrize("name", sorted(GFLOAT))
def test_all_code_points_equal_gfloat(name: str) -> None:
    fmt = scalar(name)
    # Of the 16-bit formats every 37th code: gfloat decodes one code at a time.
    for code in range(0, 1 << fmt.bits, 37 if fmt.bits == 16 else 1):
        theirs = float(gfloat.decode_float(GFLOAT[name], code).fval)
        assert same(value(code, fmt), theirs), hex(code)


# ---- formats that are float32 cut short ----


@pytest.mark.parametrize("name", ["bfloat16", "float22_e8m13", "pxr24", "tfloat32"])
def test_prefixes_of_float32(name: str) -> None:
    fmt = scalar(name)
    random = np.random.default_rng(1).integers(0, 1 << fmt.bits, 3000).tolist()
    edges = [e << (fmt.bits - 9) | k for e in range(512) for k in (0, 1, 2)]
    for code in random + edges:
        (theirs,) = struct.unpack("<f", struct.pack("<I", code << (32 - fmt.bits)))
        assert same(value(code, fmt), theirs), hex(code)


# ---- single sources ----


def test_dlfloat16_decodes_as_ibm_has_it() -> None:
    for code, ours in enumerate(value_table(scalar("dlfloat16"))):
        sign, magnitude = -1 if code >> 15 else 1, code & 0x7FFF
        if magnitude == 0x7FFF:
            assert ours != ours
        elif magnitude == 0:
            assert identical(ours, -0.0 if sign < 0 else Fraction(0))
        else:
            exponent, fraction = divmod(magnitude, 512)
            assert ours == sign * (512 + fraction) * pow2(exponent - 31 - 9)


def test_fp24_packs_as_mesa_does() -> None:
    fmt = scalar("fp24")
    random = np.random.default_rng(2).standard_normal(500).tolist()
    for x in [*random, 1.0, 0.5, 3.0, -(2.0**40)]:
        mantissa, exponent = math.frexp(x)
        fraction = int((abs(mantissa) * 2 - 1) * 2**16)
        code = (mantissa < 0) << 23 | (exponent + 62) << 16 | fraction
        expected = math.copysign((1 + fraction / 2**16) * 2.0 ** (exponent - 1), x)
        assert value(code, fmt) == Fraction(expected)


def test_ufloat8_e4m3_is_the_half_of_e4m3fn_without_sign() -> None:
    ours, signed = value_table(scalar("ufloat8_e4m3")), value_table(scalar("float8_e4m3fn"))
    assert all(identical(a, b) for a, b in zip(ours, signed[:128], strict=True))
    assert scalar("ufloat8_e4m3").storage_bits == 8


@pytest.mark.parametrize(
    ("name", "exponent_bits", "bias"),
    [("ufloat8_e5m3", 5, 15), ("ufloat8_e6m2", 6, 48), ("ufloat8_e4m4", 4, 7)],
)
def test_unsigned_scales(name: str, exponent_bits: int, bias: int) -> None:
    fmt = scalar(name)
    assert isinstance(fmt, FloatFormat)
    assert (fmt.exponent_bits, fmt.bias, fmt.nan_code) == (exponent_bits, bias, 0xFF)
    assert min(v for v in value_table(fmt) if v == v) >= 0


def test_hifloat8_has_the_binades_its_paper_counts() -> None:
    """7 exponents with 3-bit mantissa, 8 with 2, 16 with 1, and 7 denormal powers of two."""
    fmt = scalar("hifloat8")
    assert isinstance(fmt, CodebookFormat)
    positive = [v for v in fmt.values if v > 0]
    finite = [v for v in positive if v != math.inf]
    binades = Counter(math.frexp(v)[1] - 1 for v in finite)
    assert {e: n for e, n in binades.items() if n == 8} == dict.fromkeys(range(-3, 4), 8)
    assert sorted(e for e, n in binades.items() if n == 4) == [*range(-7, -3), *range(4, 8)]
    # The larger value of the topmost binade is Inf.
    assert sorted(e for e, n in binades.items() if n == 2) == [*range(-15, -7), *range(8, 15)]
    assert sorted(e for e, n in binades.items() if n == 1) == [*range(-22, -15), 15]
    assert len(binades) == 38
    assert sorted(-v for v in fmt.values if v < 0) == sorted(positive)
    assert sum(v == 0 for v in fmt.values) == sum(v != v for v in fmt.values) == 1


def test_hifloat8_code_points_by_its_fields() -> None:
    """Sign, dot field, exponent with its sign first and leading one implicit, mantissa."""
    values = scalar("hifloat8").values  # type: ignore[attr-defined]
    fields = {
        "0 11 0000 0": 2.0**8,
        "0 11 1000 0": 2.0**-8,
        "0 11 1111 1": 1.5 * 2.0**-15,
        "0 11 0110 1": 1.5 * 2.0**14,
        "0 10 011 11": 1.75 * 2.0**7,
        "0 10 100 01": 1.25 * 2.0**-4,
        "1 01 01 101": -1.625 * 2.0**3,
        "0 01 10 000": 2.0**-2,
        "0 001 0 001": 1.125 * 2.0,
        "0 001 1 000": 2.0**-1,
        "1 0001 100": -1.5,
        "0 0000 111": 2.0**-16,
        "1 0000 001": -(2.0**-22),
    }
    assert {bits: values[int(bits.replace(" ", ""), 2)] for bits in fields} == fields


def test_nf4_are_the_quantiles_of_its_paper() -> None:
    """Eight negative and nine positive quantiles of N(0, 1) at even probabilities, sharing 0."""
    top = 0.9677083
    quantile = NormalDist().inv_cdf
    falling = [quantile(top + (0.5 - top) * k / 8) for k in range(8)]
    rising = [-quantile(top + (0.5 - top) * k / 7) for k in range(7)]
    expected = sorted(v / falling[0] for v in [*falling, 0.0, *rising])
    # The published values went through float32.
    assert scalar("nf4").values == pytest.approx(expected, abs=1e-6)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["af4", "nf4"])
def test_normal_floats_rise_from_minus_one_to_one(name: str) -> None:
    values = scalar(name).values  # type: ignore[attr-defined]
    assert list(values) == sorted(set(values))
    assert (values[0], values[7], values[-1]) == (-1.0, 0.0, 1.0)


def test_lns8_values_are_eighth_powers_of_two_rounded_once() -> None:
    values = scalar("lns8").values  # type: ignore[attr-defined]
    assert [-v for v in values[:128]] == list(values[128:])
    for k, v in enumerate(values[:128]):
        half = Fraction(math.ulp(v)) / 2
        assert (Fraction(v) - half) ** 8 <= 1 << k <= (Fraction(v) + half) ** 8


def test_few_valued_formats() -> None:
    assert scalar("ternary").values == (-1.0, 0.0, 1.0)  # type: ignore[attr-defined]
    assert scalar("binary").values == (-1.0, 1.0)  # type: ignore[attr-defined]


# ---- names, files and errors ----


def test_a_file_of_ones_own_is_a_format(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\nkind = "float"\nbits = 5\nprecision = 3\nbias = 1\n'
        '[facts]\nsource = "drawn up for this test"\nmax = 7.0\ncodes = { 0x0F = 7.0 }\n'
    )
    fmt = load_format(path)
    assert isinstance(fmt, FloatFormat)
    assert fmt.max == 7.0
    assert check_facts(fmt, load_facts(path)) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "other"\nkind = "int"\nbits = 4', "differs from the file's 'mine'"),
        ('name = "mine"\nkind = "flaot"\nbits = 4', "did you mean 'float'?"),
        ('name = "mine"\nbits = 4', "kind: missing; expected one of float, int, codebook"),
        ('name = "mine"\nkind = "int"\nbits = 4\nsymetric = true', "did you mean 'symmetric'?"),
        ('name = "mine"\nkind = "float"\nbits = 5\nprecision = 5\nbias = 1', "exponent bits"),
        ('name = "mine"\nkind = "codebook"\nbits = 1\nvalues = [0.0, 1.0, 2.0]', "do not fit"),
        ('name = "mine"\nkind = "codebook"\nbits = 2\nvalues = [1.0, 1.0]', "the same value"),
        ('name = "mine"\nkind = "int"\nbits = ', "mine.toml: "),
    ],
)
def test_errors_of_a_file_name_it_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text + '\n[facts]\nsource = "drawn up for this test"\n')
    with pytest.raises(LowprecError) as caught:
        load_format(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_without_facts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nkind = "int"\nbits = 4\n')
    with pytest.raises(LowprecError, match=r"mine\.toml: facts: missing"):
        load_format(path)


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(LowprecError, match=r"key: unknown format 'float8_e4m3fm'.*float8_e4m3fn'"):
        load_format("float8_e4m3fm", "key")


@pytest.mark.parametrize("name", ["nf4_g64", "lns8_channel", "dlfloat16_tensor", "hifloat8_g32"])
def test_granularity_of_any_scalar(name: str) -> None:
    fmt = load_format(name)
    assert isinstance(fmt, BlockFormat)
    assert fmt.element == load_format(name.rpartition("_")[0])
    assert fmt.scale == load_format("float32")
