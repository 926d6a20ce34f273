"""Block formats of several levels: sizes worked out by hand, values, and what cannot be one."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import gguf
import pytest
from gguf.quants import IQ4_NL

from lowprec.errors import LowprecError
from lowprec.exact import value_table
from lowprec.spec import BlockFormat, CodebookFormat, load_format, load_quantizer
from lowprec.spec.load import build


def block(name: str) -> BlockFormat:
    fmt = load_format(name)
    assert isinstance(fmt, BlockFormat)
    return fmt


# ---- sizes ----


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("nvint4", 4 + 8 / 16),
        ("nvfp4_16x16", 4 + 8 / 256),
        ("float8_e4m3fn_128x128", 8 + 32 / 16384),
        ("mx9", 8 + 8 / 16 + 1 / 2),
        ("mx6", 5 + 8 / 16 + 1 / 2),
        ("mx4", 3 + 8 / 16 + 1 / 2),
        ("hif4", 4 + 8 / 64 + 1 / 8 + 1 / 4),
        ("vsquant_int4_s4", 4 + 4 / 16),
        ("vsquant_int4_s6", 4 + 6 / 16),
        ("mxfp4_plus", 4 + (8 + 8) / 32),
        ("gguf_q4_1", 4 + (16 + 16) / 32),
        ("gguf_q2_k", 2 + (4 + 4) / 16 + (16 + 16) / 256),
        ("gguf_q3_k", 3 + 6 / 16 + 16 / 256),
        ("uint4_zp_g128_float16", 4 + (16 + 4) / 128),
        ("uint8_zp_channel", 8.0),
    ],
)
def test_bits_per_element(name: str, bits: float) -> None:
    assert block(name).bits_per_element == bits


@pytest.mark.parametrize(
    ("name", "shape", "axis", "bits"),
    [
        ("mx9", (3, 17), -1, 51 * 8 + 3 * 2 * 8 + 3 * 9),
        ("mx9", (17, 3), 0, 51 * 8 + 3 * 2 * 8 + 3 * 9),
        ("hif4", (2, 70), -1, 140 * 4 + 2 * 2 * 8 + 2 * 9 + 2 * 18),
        ("vsquant_int4_s4", (3, 33), -1, 99 * 4 + 3 * 3 * 4 + 3 * 32),
        ("vsquant_int4_s4", (3, 33), 0, 99 * 4 + 33 * 4 + 33 * 32),
        ("nvint4", (3, 17), -1, 51 * 4 + 3 * 2 * 8 + 32),
        ("nvfp4_16x16", (40, 20), -1, 800 * 4 + 3 * 2 * 8 + 32),
        ("nvfp4_16x16", (2, 40, 20), -1, 1600 * 4 + 2 * 3 * 2 * 8 + 32),
        ("float8_e4m3fn_128x128", (300, 257), -1, 77100 * 8 + 3 * 3 * 32),
        ("float8_e4m3fn_1x128_e8m0", (2, 129), -1, 258 * 8 + 2 * 2 * 8),
        ("gguf_q4_1", (2, 40), -1, 80 * 4 + 2 * 2 * (16 + 16)),
        ("gguf_q4_k", (2, 300), -1, 600 * 4 + 2 * 10 * (6 + 6) + 2 * 2 * (16 + 16)),
        ("gguf_q6_k", (1, 257), -1, 257 * 6 + 17 * 8 + 2 * 16),
        ("uint4_zp_g128_float16", (5, 200), -1, 1000 * 4 + 5 * 2 * (16 + 4)),
        ("uint8_zp_tensor", (5, 7), -1, 35 * 8 + 32 + 8),
        ("int8_zp_channel", (5, 7), -1, 35 * 8 + 5 * (32 + 8)),
        ("mxfp4_plus", (2, 40), -1, 80 * 4 + 2 * 2 * (8 + 8)),
        ("mxfp4_plus", (0, 40), -1, 0),
        ("hif4", (2, 0), -1, 0),
    ],
)
def test_storage_of_ragged_shapes(name: str, shape: tuple[int, ...], axis: int, bits: int) -> None:
    assert block(name).storage_bits_of(shape, axis) == bits


def test_every_level_has_a_shape_of_its_own() -> None:
    mx9, hif4, q4_k = block("mx9"), block("hif4"), block("gguf_q4_k")
    assert mx9.scale_shape((3, 17)) == (3, 2)
    assert mx9.scale_shape((3, 17), block=mx9.inner[0].block) == (3, 9)
    assert mx9.scale_shape((17, 3), 0, mx9.inner[0].block) == (9, 3)
    assert [hif4.scale_shape((2, 70), block=i.block) for i in hif4.inner] == [(2, 9), (2, 18)]
    assert q4_k.outer is not None
    assert q4_k.scale_shape((2, 300)) == (2, 10)
    assert q4_k.scale_shape((2, 300), block=q4_k.outer.block) == (2, 2)
    assert q4_k.scale_shape((300, 2), 0, q4_k.outer.block) == (2, 2)


@pytest.mark.parametrize(("name", "shape"), [("vsquant_int4_s6", (3, 1)), ("nvint4", (1, 1))])
def test_outer_scales_per_channel_and_tensor(name: str, shape: tuple[int, int]) -> None:
    fmt = block(name)
    assert fmt.outer is not None
    assert fmt.scale_shape((3, 33), block=fmt.outer.block) == shape


def test_parts_name_every_scalar_format() -> None:
    assert list(block("hif4").parts) == ["element", "scale", "inner.0.scale", "inner.1.scale"]
    assert list(block("gguf_q2_k").parts) == ["element", "scale", "outer.scale", "offset"]
    assert list(block("uint8_zp_tensor").parts) == ["element", "scale", "zero_point"]
    assert list(block("mxfp4_plus").parts) == ["element", "scale", "outlier.element"]


GGUF = {name: f"gguf_{name.lower()}" for name in (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ4_NL", "IQ4_XS", "TQ2_0",
)}  # fmt: skip


@pytest.mark.parametrize("theirs", GGUF)
def test_gguf_blocks_have_its_bytes(theirs: str) -> None:
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[theirs]]
    fmt = block(GGUF[theirs])
    assert fmt.storage_bits_of((1, elements)) == size * 8
    assert fmt.bits_per_element == size * 8 / elements


# ---- values ----


def test_iq4_nl_has_the_values_of_gguf() -> None:
    assert value_table(block("gguf_iq4_nl").element) == IQ4_NL.kvalues
    assert block("gguf_iq4_xs").element == block("gguf_iq4_nl").element


@pytest.mark.parametrize(
    ("name", "bits"),
    [("msfp12", 4), ("msfp16", 8), ("bfp2_b", 2), ("mx9", 8), ("mx6", 5), ("mx4", 3)],
)
def test_block_floating_point_is_sign_and_magnitude_below_two(name: str, bits: int) -> None:
    """A magnitude code k is k / 2^(bits - 2), so that the topmost bit is worth 1."""
    element = block(name).element
    magnitudes = [Fraction(k, 1 << (bits - 2)) for k in range(1 << (bits - 1))]
    table = list(value_table(element))
    assert element.bits == bits
    assert element.emax == 0
    assert table[: len(magnitudes)] == magnitudes
    assert table[len(magnitudes) :] == [-m for m in magnitudes]


def test_microexponents_are_single_bits() -> None:
    for name in ("mx9", "mx6", "mx4"):
        (level,) = block(name).inner
        assert value_table(level.scale) == (Fraction(1, 2), 1)
    for level in block("hif4").inner:
        assert value_table(level.scale) == (1, 2)
    assert block("mx9").elements_max == 1.984375
    assert block("hif4").elements_max == 7.0


@pytest.mark.parametrize(
    ("name", "emax", "largest"),
    [("mxfp4_plus", 2, 7.5), ("mxfp6_e2m3_plus", 2, 7.875), ("mxfp8_e4m3_plus", 8, 510.0)],
)
def test_outliers_are_all_mantissa(name: str, emax: int, largest: float) -> None:
    fmt = block(name)
    assert fmt.outlier is not None
    outlier = fmt.outlier.element
    assert isinstance(outlier, CodebookFormat)
    bits = fmt.element.bits
    assert (outlier.bits, outlier.max, fmt.element.emax) == (bits, largest, emax)
    mantissas = 1 << (bits - 1)
    for code, found in enumerate(outlier.values):
        sign, mantissa = divmod(code, mantissas)
        assert found == (-1) ** sign * 2.0**emax * (mantissas + mantissa) / mantissas
    assert len(outlier.values) == 2 * mantissas


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("msfp12", "floor"),
        ("mx9", "floor"),
        ("hif4", "amax"),
        ("mxfp4_plus", "floor"),
        ("nvfp4_16x16", "four_over_six"),
        ("nvint4", "amax"),
        ("vsquant_int4_s6", "amax"),
        ("float8_e4m3fn_128x128_e8m0", "rceil"),
        ("gguf_q4_0", "signed"),
        ("gguf_iq4_nl", "signed"),
        ("gguf_q6_k", "signed"),
        ("gguf_q5_1", "minmax"),
        ("gguf_q4_k", "minmax"),
        ("uint4_zp_g128_float16", "minmax"),
    ],
)
def test_formats_take_the_rule_of_their_source(name: str, rule: str) -> None:
    assert load_quantizer(f"{name}/{rule}").format == block(name)


# ---- what cannot be a block format ----

E2M1, E4M3, E8M0, FLOAT32, INT4 = (
    load_format(name).model_dump()
    for name in ("float4_e2m1fn", "float8_e4m3fn", "float8_e8m0fnu", "float32", "int4")
)
UP = block("hif4").inner[0].scale.model_dump()
FIXED4 = {**INT4, "exponent": -2}
WIDE = {"name": "int17", "kind": "int", "bits": 17}
LEVEL8, LEVEL4, LEVEL3 = ({"scale": UP, "block": (n,)} for n in (8, 4, 3))
OUTLIER = {"element": E2M1, "index_bits": 8}
POINT: dict[str, Any] = {"element": INT4, "zero_point": INT4}


def outer(size: object) -> dict[str, Any]:
    return {"scale": FLOAT32, "block": size}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"outer": outer((24,))}, "outer: block 24 is not made of whole blocks 16"),
        ({"outer": outer((8,))}, "outer: block 8 is not made of whole blocks 16"),
        ({"outer": outer((16, 32))}, "outer: block 16x32 is not made of whole blocks 16"),
        (
            {"block": (16, 16), "outer": outer((256,))},
            "outer: block 256 is not made of whole blocks 16x16",
        ),
        (
            {"block": (16, 16), "outer": outer("channel")},
            "outer: block 'channel' is not made of whole blocks 16x16",
        ),
        (
            {"block": "channel", "outer": outer("channel")},
            "outer: block 'channel' is not made of whole blocks 'channel'",
        ),
        (
            {"block": "channel", "outer": outer((256,))},
            "outer: block 256 is not made of whole blocks 'channel'",
        ),
        (
            {"block": "tensor", "outer": outer("tensor")},
            "outer: block 'tensor' is not made of whole blocks 'tensor'",
        ),
        ({"inner": (LEVEL3,)}, "inner: blocks 16 are not made of 3"),
        ({"inner": (LEVEL4, LEVEL8)}, "inner: blocks 4 are not made of 8"),
        ({"block": (16, 16), "inner": (LEVEL8,)}, "inner: blocks 16x16 are not made of 8"),
        ({"block": "channel", "inner": (LEVEL8,)}, "inner: blocks 'channel' are not made of 8"),
        ({"inner": ({"scale": UP, "block": "channel"},)}, "blocks 16 are not made of 'channel'"),
        ({"inner": ({"scale": E4M3, "block": (8,)},)}, "inner: 'float8_e4m3fn' is no float of"),
        ({"inner": ({"scale": INT4, "block": (8,)},)}, "inner: 'int4' is no float of precision 1"),
        ({"inner": ({"scale": {**UP, "zero": True}, "block": (8,)},)}, "without zero"),
        ({"zero_point": INT4}, "zero_point needs integers without exponent, it and the element"),
        ({**POINT, "zero_point": E4M3}, "zero_point needs integers without exponent"),
        ({**POINT, "element": FIXED4}, "zero_point needs integers without exponent"),
        ({**POINT, "zero_point": WIDE}, "zero_point needs integers of at most 16 bits"),
        ({**POINT, "offset": E4M3}, "zero_point and offset exclude each other"),
        ({**POINT, "inner": (LEVEL8,)}, "zero_point and inner exclude each other"),
        ({"offset": E4M3, "outlier": OUTLIER}, "offset and outlier exclude each other"),
        ({"outlier": OUTLIER, "inner": (LEVEL8,)}, "outlier and inner exclude each other"),
        (
            {"outlier": {**OUTLIER, "element": E4M3}},
            "outlier: float8_e4m3fn has 8 bits; expected the element's 4",
        ),
        # 16 elements and "none" are 17 answers.
        ({"outlier": {**OUTLIER, "index_bits": 4}}, "outlier: index_bits=4 do not count a block"),
        ({"block": "channel", "outlier": OUTLIER}, "outlier: index_bits=8 do not count a block"),
        ({"outlier": {**OUTLIER, "index_bits": 17}}, "outlier.index_bits: Input should be less"),
        ({"outer": {"scale": FLOAT32}}, "outer.block: Field required"),
        ({"outer": {**outer("tensor"), "bias": 1}}, "outer.bias: unknown key"),
    ],
)
def test_impossible_combinations_say_why_in_one_line(
    changes: dict[str, Any], complaint: str
) -> None:
    data = {"name": "x", "element": E2M1, "scale": E8M0, "block": (16,)}
    build(BlockFormat, data, "x.toml")
    with pytest.raises(LowprecError) as caught:
        build(BlockFormat, {**data, **changes}, "x.toml")
    assert complaint in str(caught.value)
    assert str(caught.value).startswith("x.toml: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"outer": outer((32,))},
        {"outer": outer("channel")},
        {"block": "channel", "outer": outer("tensor")},
        {"block": (16, 16), "outer": outer("tensor")},
        {"inner": (LEVEL8, LEVEL4), "outer": outer("tensor")},
        {"outlier": {**OUTLIER, "index_bits": 5}},
        {**POINT, "outer": outer("tensor")},
        {"offset": E4M3, "outer": outer((256,))},
    ],
)
def test_possible_combinations_construct_and_survive_json(changes: dict[str, Any]) -> None:
    data = {"name": "x", "element": E2M1, "scale": E8M0, "block": (16,), **changes}
    fmt = build(BlockFormat, data, "x.toml")
    assert BlockFormat.model_validate_json(fmt.model_dump_json()) == fmt
