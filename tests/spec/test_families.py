"""Formats by name alone: P3109, integers, CFloats, posits, takums."""

from __future__ import annotations

import math
from itertools import pairwise

import gfloat
import pytest
from gfloat.formats import format_info_p3109
from gfloat.types import Domain, Signedness

from lowprec.errors import LowprecError
from lowprec.exact import exact, identical, value
from lowprec.spec import (
    BlockFormat,
    CodebookFormat,
    FloatFormat,
    IntFormat,
    list_formats,
    load_format,
)
from lowprec.spec.families import family_names, resolve
from lowprec.spec.format import pow2


def codebook(name: str) -> CodebookFormat:
    fmt = load_format(name)
    assert isinstance(fmt, CodebookFormat)
    return fmt


# ---- posits ----


def posit_standard(code: int, bits: int, es: int) -> float:
    """The printed formula of the Posit Standard (2022), section 3.1, for any ES:
    ((1 - 3 s) + f) * 2^((1 - 2 s) * (2^es r + e + s)), on the bits of the code, negative ones as
    they stand."""
    if code == 0:
        return 0.0
    if code == 1 << (bits - 1):
        return math.nan
    word = [code >> i & 1 for i in reversed(range(bits))] + [0] * (es + 1)
    sign, first = word[0], word[1]
    end = next((i for i in range(1, bits) if word[i] != first), bits)
    regime = end - 2 if first else 1 - end
    field = word[end + 1 : end + 1 + es]
    exponent = sum(bit << (es - 1 - i) for i, bit in enumerate(field))
    fraction = sum(bit * 2.0 ** -(i + 1) for i, bit in enumerate(word[end + 1 + es :]))
    return ((1 - 3 * sign) + fraction) * 2.0 ** (
        (1 - 2 * sign) * ((regime << es) + exponent + sign)
    )


@pytest.mark.parametrize("es", range(4))
@pytest.mark.parametrize("bits", [3, 4, 5, 6, 7, 8, 10, 13])
def test_posits_equal_the_standards_formula(bits: int, es: int) -> None:
    values = codebook(f"posit{bits}_{es}").values
    expected = [posit_standard(code, bits, es) for code in range(1 << bits)]
    assert all(identical(exact(a), exact(b)) for a, b in zip(values, expected, strict=True))


@pytest.mark.parametrize(
    ("name", "largest"), [("posit8_0", 2**6), ("posit16_1", 2**28), ("posit16_2", 2**56)]
)
def test_posit_limits(name: str, largest: int) -> None:
    """maxPos = 2^(2^es (N - 2)), minPos its reciprocal."""
    values = codebook(name).values
    assert max(v for v in values if v == v) == largest
    assert min(v for v in values if v > 0) == 1 / largest


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [
        # J. Gustafson's example of a 16-bit posit with es = 3.
        ("posit16_3", 0b0000110111011101, 477 / 134217728),
        # Code points as SoftPosit 0.3.4 decodes them.
        ("posit8_0", 0x41, 1.03125),
        ("posit8_0", 0x3F, 0.984375),
        ("posit8_0", 0xC1, -0.984375),
        ("posit16_1", 0x4001, 1.000244140625),
        ("posit8_2", 0x01, 2.0**-24),
        ("posit8_2", 0x02, 2.0**-20),
        ("posit16_2", 0x0003, 2.0**-50),
    ],
)
def test_posit_golden_values(name: str, code: int, expected: float) -> None:
    assert codebook(name).values[code] == expected


# ---- takums ----


def takum_definition(code: int, bits: int) -> float:
    """Definition 8 of arXiv 2404.18603 as printed, on the bits of the code, which are taken to
    be followed by zeros: ((1 - 3 S) + f) * 2^e with e = (-1)^S (c + S)."""
    if code == 0:
        return 0.0
    if code == 1 << (bits - 1):
        return math.nan
    word = f"{code:0{bits}b}" + "0" * 12
    sign, direction, regime = int(word[0]), int(word[1]), int(word[2:5], 2)
    r = regime if direction else 7 - regime
    field = int("0" + word[5 : 5 + r], 2)
    c = 2**r - 1 + field if direction else -(2 ** (r + 1)) + 1 + field
    mantissa = word[5 + r :]
    f = int(mantissa, 2) / 2 ** len(mantissa)
    return ((1 - 3 * sign) + f) * 2.0 ** ((-1) ** sign * (c + sign))


@pytest.mark.parametrize("bits", [8, 16])
def test_takums_equal_the_definition(bits: int) -> None:
    for code, ours in enumerate(codebook(f"takum{bits}").values):
        expected = takum_definition(code, bits)
        assert ours == expected or (ours != ours and expected != expected), hex(code)


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [
        ("takum8", 0x40, 1.0),
        ("takum8", 0xC0, -1.0),
        ("takum8", 0x47, 1.875),
        ("takum8", 0x48, 2.0),
        ("takum8", 0x3F, 0.9375),
        ("takum8", 0x38, 0.5),
        ("takum8", 0x7F, 2.0**239),
        ("takum8", 0x01, 2.0**-239),
        ("takum16", 0x4000, 1.0),
        ("takum16", 0x4001, 1 + 2.0**-11),
        ("takum16", 0x7FFF, (2 - 2.0**-4) * 2.0**254),
        ("takum16", 0x0001, (1 + 2.0**-4) * 2.0**-255),
    ],
)
def test_takum_golden_values(name: str, code: int, expected: float) -> None:
    assert codebook(name).values[code] == expected


@pytest.mark.parametrize("name", ["posit8_0", "posit8_1", "posit8_3", "posit16_2", "takum16"])
def test_tapered_formats_order_and_negate_as_two_s_complement(name: str) -> None:
    fmt = codebook(name)
    values, half = fmt.values, 1 << (fmt.bits - 1)
    assert values[0] == 0
    assert math.copysign(1, values[0]) == 1
    assert values[half] != values[half]
    assert all(low < high for low, high in pairwise(values[half + 1 :] + values[:half]))
    assert all(values[-code] == -values[code] for code in range(1, half))
    assert (fmt.has_nan, fmt.has_infinity, fmt.has_negative_zero) == (True, False, False)


# ---- integers ----


@pytest.mark.parametrize("bits", range(2, 17))
def test_integers(bits: int) -> None:
    full, symmetric = load_format(f"int{bits}"), load_format(f"int{bits}_sym")
    unsigned = load_format(f"uint{bits}")
    assert isinstance(full, IntFormat)
    assert isinstance(symmetric, IntFormat)
    assert isinstance(unsigned, IntFormat)
    top = 2 ** (bits - 1)
    assert (full.min, full.max) == (-top, top - 1)
    assert (symmetric.min, symmetric.max) == (1 - top, top - 1)
    assert (unsigned.min, unsigned.max) == (0, 2**bits - 1)


def test_a_file_and_its_family_are_one_format() -> None:
    for name in set(list_formats()):
        if (fmt := resolve(name)) is not None:
            assert load_format(name) == fmt


# ---- CFloats ----


@pytest.mark.parametrize(
    ("name", "least", "largest"),
    [
        # Tables 4 and 5 of the Dojo guide: the range of the normal numbers.
        ("cfloat8_1_4_3_b0", 1, 15),
        ("cfloat8_1_4_3_b1", 0, 14),
        ("cfloat8_1_4_3_b3", -2, 12),
        ("cfloat8_1_4_3_b31", -30, -16),
        ("cfloat8_1_4_3_b63", -62, -48),
        ("cfloat8_1_5_2_b0", 1, 31),
        ("cfloat8_1_5_2_b2", -1, 29),
        ("cfloat8_1_5_2_b31", -30, 0),
        ("cfloat8_1_5_2_b62", -61, -31),
        ("cfloat8_1_5_2_b63", -62, -32),
    ],
)
def test_cfloat8_ranges(name: str, least: int, largest: int) -> None:
    fmt = load_format(name)
    assert isinstance(fmt, FloatFormat)
    assert fmt.min_normal_exact == pow2(least)
    assert fmt.max_exact == (2 - pow2(1 - fmt.precision)) * pow2(largest)
    assert (fmt.has_nan, fmt.has_infinity) == (False, False)


@pytest.mark.parametrize("name", ["cfloat8_1_4_3", "cfloat8_1_5_2", "cfloat16_shp"])
def test_cfloat_files_are_members_of_the_family(name: str) -> None:
    fmt = load_format(name)
    assert isinstance(fmt, FloatFormat)
    member = load_format(f"{name}_b{fmt.bias}")
    assert member.model_copy(update={"name": name}) == fmt


# ---- P3109 against gfloat ----


@pytest.mark.parametrize("kind", ["se", "sf", "ue", "uf"])
@pytest.mark.parametrize("k", [3, 4, 5, 6, 8])
def test_p3109_equals_gfloat(k: int, kind: str) -> None:
    signedness = Signedness.Signed if kind[0] == "s" else Signedness.Unsigned
    domain = Domain.Extended if kind[1] == "e" else Domain.Finite
    for p in range(1, k if kind[0] == "s" else k + 1):
        fmt = load_format(f"binary{k}p{p}{kind}")
        assert isinstance(fmt, FloatFormat)
        info = format_info_p3109(k, p, signedness, domain)
        for code in range(1 << k):
            theirs = exact(float(gfloat.decode_float(info, code).fval))
            assert identical(value(code, fmt), theirs), (fmt.name, hex(code))


# ---- names ----


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("binary17p3se", "key: P3109 has K = 3 to 16"),
        ("binary8p8se", "key: P3109 has K = 3 to 16"),
        ("binary2p1uf", "got K = 2, P = 1"),
        ("int1", "expected N = 2 to 16 bits, got 1"),
        ("uint17", "expected N = 1 to 16 bits, got 17"),
        ("uint8_sym", "an unsigned integer has no symmetric form"),
        ("int99_g32", "expected N = 2 to 16 bits, got 99"),
        ("posit2_0", "got N = 2, ES = 0"),
        ("posit8_4", "got N = 8, ES = 4"),
        ("takum12", "expected takum8 or takum16, got takum12"),
        ("cfloat8_1_4_3_b64", "expected a bias B = 0 to 63, got 64"),
        ("posit08_1", "unknown format 'posit08_1'"),
        ("int_g32", "unknown format 'int_g32'"),
    ],
)
def test_numbers_out_of_range_are_named(name: str, message: str) -> None:
    with pytest.raises(LowprecError) as caught:
        load_format(name, "key")
    assert str(caught.value).startswith("key: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["int3_g32", "posit8_2_channel", "int8_sym_g128", "uint4_tensor"])
def test_families_with_a_granularity(name: str) -> None:
    fmt = load_format(name)
    assert isinstance(fmt, BlockFormat)
    assert fmt.element == load_format(name.rpartition("_")[0])


def test_resolve_leaves_other_names_alone() -> None:
    assert resolve("float8_e4m3fn") is None
    assert resolve("nonsense") is None


def test_family_names_are_short_lines() -> None:
    names = family_names()
    assert len({spelled for spelled, _ in names}) == len(names) == 5
    assert all(line and len(f"{spelled} {line}") < 140 for spelled, line in names)
