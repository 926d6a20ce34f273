"""Scale rules against the bytes that each rule's own implementations give, and its definition."""

from __future__ import annotations

import math
import random
import struct
from fractions import Fraction

import numpy as np
import pytest

from lowprec.errors import LowprecError
from lowprec.exact import FLOAT32, Outer, Value, candidates, code_of, exact, identical, outer_scales
from lowprec.spec import (
    BlockFormat,
    CodebookFormat,
    Level,
    Quantizer,
    build,
    load_format,
    load_quantizer,
)
from lowprec.spec.format import pow2

INF, NAN = math.inf, math.nan
UP, DOWN = np.float32(INF), np.float32(0)


def block_scale(amax: Value, q: Quantizer, tensor: Value | None = None) -> Value:
    """s of a block whose largest magnitude is `amax`."""
    (scale,) = candidates([float(amax)], q, Outer(tensor))
    return scale


def tensor_scale(amax: Value, q: Quantizer) -> Value | None:
    return outer_scales([[float(amax)]], q).scale


def float32(x: float) -> float:
    return float(np.float32(x))


def scale_bytes(quantizer: str, magnitudes: tuple[float, ...]) -> str:
    q = load_quantizer(quantizer)
    assert isinstance(q.format, BlockFormat)
    scales = [block_scale(Fraction(float32(a)), q) for a in magnitudes]
    return " ".join(str(code_of(s, q.format.scale)) for s in scales)


MXFP4 = (5.5, 6, 6.0000005, 7, 7.5, 8, 3, 3.5, 2.0**-126, 0, 7.3e-40, 1)
MXFP8 = (1, 447, 448, 448.00003, 480, 500, 511.99997, 255.999985, 896, 957)
# The bytes of torchao 0.18 (all four rules), Quark (floor, ceil, even) and ModelOpt (rceil).
PUBLISHED = {
    ("mxfp4", "floor"): "127 127 127 127 127 128 126 126 0 0 0 125",
    ("mxfp4", "ceil"): "128 128 128 128 128 128 127 127 0 0 0 125",
    ("mxfp4", "even"): "127 127 127 128 128 128 126 127 0 0 0 125",
    ("mxfp4", "rceil"): "127 127 128 128 128 128 126 127 0 0 0 125",
    ("mxfp8_e4m3", "floor"): "119 127 127 127 127 127 127 126 128 128",
    ("mxfp8_e4m3", "ceil"): "119 128 128 128 128 128 128 127 129 129",
    ("mxfp8_e4m3", "even"): "119 127 127 127 127 128 128 127 128 128",
    ("mxfp8_e4m3", "rceil"): "119 127 127 128 128 128 128 127 128 129",
}


@pytest.mark.parametrize(("fmt", "rule"), PUBLISHED)
def test_published_bytes(fmt: str, rule: str) -> None:
    inputs = MXFP4 if fmt == "mxfp4" else MXFP8
    assert scale_bytes(f"{fmt}/{rule}", inputs) == PUBLISHED[fmt, rule]


@pytest.mark.parametrize("fmt", ["mxfp4", "mxfp6_e3m2", "mxfp8_e5m2", "mxint8"])
def test_floor_and_ceil_beside_every_power_of_two(fmt: str) -> None:
    """One float32 below and above 2^k, where a logarithm in floating point goes wrong."""
    block = load_format(fmt)
    assert isinstance(block, BlockFormat)
    emax = block.element.emax
    for k in range(-126, 128):
        below, at, above = (float(x) for x in beside(k))
        byte = 127 + k - emax
        clamp = [str(min(max(b, 0), 254)) for b in (byte - 1, byte, byte + 1)]
        assert scale_bytes(f"{fmt}/floor", (below, at, above)).split() == [*clamp[:2], clamp[1]]
        assert scale_bytes(f"{fmt}/ceil", (below, at, above)).split() == [clamp[1], *clamp[1:]]


def beside(k: int) -> tuple[np.float32, np.float32, np.float32]:
    at = np.float32(math.ldexp(1.0, k))
    return np.nextafter(at, DOWN), at, np.nextafter(at, UP)


def test_rceil_is_the_smallest_power_of_two_that_covers_the_rounded_quotient() -> None:
    q = load_quantizer("mxfp6_e2m3/rceil")
    rng = random.Random(1)
    for _ in range(500):
        a = float32(rng.uniform(1, 2) * 2.0 ** rng.randint(-110, 120))
        (quotient,) = struct.unpack("f", struct.pack("f", a / 7.5))
        mantissa, exponent = math.frexp(quotient)
        expected = exponent - 1 if mantissa == 0.5 else exponent
        assert block_scale(Fraction(a), q) == pow2(expected)


def test_even_of_integers_rounds_to_their_magnitude_bits() -> None:
    """int8 has 7: from 127.5 / 64 on, the block would need 2.0."""
    values = (1.984375, 1.9921874, 1.9921875, 1.0)
    assert scale_bytes("mxint8/even", values) == "127 127 128 127"


def test_ends() -> None:
    for rule in ("floor", "ceil", "even", "rceil"):
        q = load_quantizer(f"mxfp4/{rule}")
        assert block_scale(Fraction(0), q) == pow2(-127)
        assert block_scale(Fraction(1, 1 << 149), q) == pow2(-127)
        assert block_scale(NAN, q) != block_scale(NAN, q)
    largest = Fraction(float32(3.4028235e38))
    assert block_scale(largest, load_quantizer("mxfp4/ceil")) == pow2(126)
    small = Quantizer(format=tiny_elements(), rule="ceil")
    assert block_scale(largest, small) == pow2(127)
    assert block_scale(largest, small.model_copy(update={"rule": "rceil"})) == pow2(127)


def tiny_elements() -> BlockFormat:
    """Elements of at most 7 * 2^-10, whose quotients leave float32."""
    mxfp4, int4 = load_format("mxfp4"), load_format("int4")
    return mxfp4.model_copy(update={"element": int4.model_copy(update={"exponent": -10})})


def test_amax_projects_the_float32_quotient() -> None:
    q = load_quantizer("float8_e4m3fn/amax:channel")
    for a in (448.0, 1.0, 0.1, 3e38, 1e-42, 2.0**-149):
        assert block_scale(Fraction(float32(a)), q) == Fraction(
            float(np.float32(a) / np.float32(448))
        )
    assert block_scale(Fraction(0), q) == 0
    onto_e8m0 = load_quantizer("mxfp4/amax")
    assert block_scale(Fraction(0), onto_e8m0) == pow2(-127)
    # 1.5 is a tie between the codes 127 and 128.
    assert block_scale(Fraction(9), onto_e8m0) == 2
    assert block_scale(Fraction(8), onto_e8m0) == 1


def test_tensor_scale_and_what_it_does_to_the_blocks() -> None:
    q = load_quantizer("nvfp4/amax")
    assert tensor_scale(Fraction(2688), q) == 1
    t = tensor_scale(Fraction(6), q)
    assert t == Fraction(float(np.float32(6) / np.float32(2688)))
    assert block_scale(Fraction(6), q, t) == 448
    assert block_scale(Fraction(0), q, t) == 0
    assert block_scale(Fraction(1, 10), q, Fraction(1)) == Fraction(9, 512)
    assert tensor_scale(Fraction(0), q) == 0
    assert block_scale(Fraction(0), q, Fraction(0)) == 0
    assert block_scale(Fraction(1, 1 << 149), q, Fraction(0)) == 0
    assert identical(tensor_scale(NAN, q), NAN)
    assert identical(block_scale(Fraction(1), q, NAN), NAN)
    assert tensor_scale(Fraction(1), load_quantizer("mxfp4/floor")) is None


def test_what_has_no_scale_says_so() -> None:
    with pytest.raises(LowprecError, match="has no scale"):
        block_scale(Fraction(1), load_quantizer("float8_e4m3fn"))
    book = CodebookFormat(name="book", kind="codebook", bits=1, values=(-1.0, 1.0))
    fmt = load_format("mxfp4").model_copy(update={"element": book})
    with pytest.raises(LowprecError, match="the codebook 'book' has none"):
        build(Quantizer, {"format": fmt, "rule": "even"}, "q")
    level = Level(scale=load_format("float32"), block="tensor")
    fmt = load_format("mxfp4").model_copy(update={"outer": level})
    with pytest.raises(LowprecError, match="'floor' knows no outer scale"):
        build(Quantizer, {"format": fmt, "rule": "floor"}, "q")


def test_float32_products_and_quotients_equal_numpy() -> None:
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 1 << 32, 400, dtype=np.uint32).view(np.float32)
    ends = np.array([0.0, -0.0, INF, -INF, NAN, 1e-45, -1e-45, 3.4028235e38, 1.0], np.float32)
    pairs = [(a, b) for a in ends for b in ends]
    pairs += list(zip(patterns[::2], patterns[1::2], strict=True))
    for a, b in pairs:
        with np.errstate(all="ignore"):
            product, quotient = float(a * b), float(a / b)
            total, difference = float(a + b), float(a - b)
        x, y = exact(float(a)), exact(float(b))
        assert identical(FLOAT32.multiply(x, y), exact(product)), (a, b)
        assert identical(FLOAT32.divide(x, y), exact(quotient)), (a, b)
        assert identical(FLOAT32.add(x, y), exact(total)), (a, b)
        assert identical(FLOAT32.subtract(x, y), exact(difference)), (a, b)
