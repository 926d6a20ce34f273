"""Blocks: scales, elements and values of small tensors, ragged tails, tiles and the ends."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest

from lowprec.errors import LowprecError
from lowprec.exact import (
    Block,
    Outer,
    code_of,
    fake_quantize,
    identical,
    outer_scales,
    quantize_block,
)
from lowprec.spec import BlockFormat, Quantizer, load_format, load_quantizer
from lowprec.spec.format import pow2

INF, NAN = math.inf, math.nan


def block(values: list[float], quantizer: str) -> Block:
    return quantize_block(values, load_quantizer(quantizer))


def same(found: list[float] | tuple[float, ...], expected: list[float]) -> bool:
    return len(found) == len(expected) and all(map(identical, found, expected))


def numbers(count: int, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    spread = (rng.gauss(0, 1) * 2.0 ** rng.randint(-6, 6) for _ in range(count))
    return [float(np.float32(x)) for x in spread]


def with_block(name: str, size: tuple[int, ...] | str) -> Quantizer:
    """mxfp4 and the like with another block, to see many blocks in little."""
    quantizer = load_quantizer(name)
    fmt = quantizer.format.model_copy(update={"block": size})
    return quantizer.model_copy(update={"format": fmt})


def test_mxfp4_block_by_hand() -> None:
    """floor(log2 7) = 2 = emax: scale 1, and 7 saturates; ceil: scale 2, elements x / 2."""
    values = [7.0, -2.5, 0.2, 0.25, -0.0, 5.0]
    floor = block(values, "mxfp4/floor")
    assert floor.scale == 1
    assert floor.codes == (7, 0b1100, 0, 0, 0b1000, 6)
    assert same(floor.values, [6.0, -2.0, 0.0, 0.0, -0.0, 4.0])
    ceil = block(values, "mxfp4/ceil")
    assert ceil.scale == 2
    assert ceil.codes == (6, 0b1010, 0, 0, 0b1000, 4)
    assert same(ceil.values, [8.0, -2.0, 0.0, 0.0, -0.0, 4.0])


def test_nvfp4_tensor_by_hand() -> None:
    """A_T = 2688: t = 1. The first block's scale is 448, the second's 0.1 / 6 in E4M3."""
    q = load_quantizer("nvfp4/amax")
    values = [2688.0] + [0.0] * 15 + [0.1, -0.02] + [0.0] * 14
    found = fake_quantize(values, (1, 32), q)
    s = 9 / 512
    assert same(found, [2688.0] + [0.0] * 15 + [6 * s, -1.0 * s] + [0.0] * 14)
    beside = Outer(Fraction(1))
    first = quantize_block(values[:16], q, beside)
    second = quantize_block(values[16:], q, beside)
    assert (first.scale, first.outer) == (448, Outer(Fraction(1)))
    assert (second.scale, second.codes[:2]) == (Fraction(9, 512), (7, 0b1010))


def test_nvfp4_tiny_blocks_are_not_clamped() -> None:
    """0.05 beside 2688: the scale 0.05 / 6 is subnormal in E4M3, 4 * 2^-9, and kept."""
    values = [2688.0] + [0.0] * 15 + [0.05, 0.025] + [0.0] * 14
    second = quantize_block(values[16:], load_quantizer("nvfp4/amax"), Outer(Fraction(1)))
    assert second.scale == Fraction(4, 512)
    assert second.codes[:2] == (7, 5)


def test_int8_channel_uses_the_quotient_in_float32() -> None:
    values = numbers(40)
    q = load_quantizer("int8/amax:channel")
    found = fake_quantize(values, (40,), q)
    scale = np.float32(max(map(abs, values))) / np.float32(127)
    codes = np.rint(np.array(values, np.float32) / scale)
    assert same(found, [float(np.float32(c) * scale) + 0.0 for c in codes])


@pytest.mark.parametrize("name", ["mxfp4/floor", "mxfp8_e4m3/rceil", "mxint8/floor", "nvfp4/amax"])
def test_zero_blocks(name: str) -> None:
    """Under a power-of-two rule the smallest scale, under amax 0: all values 0 with their sign."""
    found = block([0.0, -0.0, 0.0], name)
    fmt = load_quantizer(name).format
    assert isinstance(fmt, BlockFormat)
    assert code_of(found.scale, fmt.scale) == 0
    minus = -0.0 if fmt.element.has_negative_zero else 0.0
    assert same(found.values, [0.0, minus, 0.0])


def test_a_zero_scale_makes_zeros_of_numbers_with_their_sign() -> None:
    """Beside 3e38 the block's scale underflows E4M3; and t itself underflows for 2^-149."""
    q = load_quantizer("nvfp4/amax")
    found = quantize_block([1.0, -1.0, 0.0], q, outer_scales([[float(np.float32(3e38))]], q))
    assert found.scale == 0
    assert same(found.values, [0.0, -0.0, 0.0])
    tiny = quantize_block([2.0**-149, -(2.0**-149)], q)
    assert (tiny.scale, tiny.outer.scale) == (0, 0)
    assert same(tiny.values, [0.0, -0.0])


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_nan_and_inf_take_the_block_or_with_a_tensor_scale_the_tensor(bad: float) -> None:
    values = [1.0, 2.0, 3.0, 4.0, bad, 5.0, 6.0, 7.0]
    only_its_block = fake_quantize(values, (8,), with_block("mxfp4/floor", (4,)))
    assert same(only_its_block, [1.0, 2.0, 3.0, 4.0, *[NAN] * 4])
    whole = fake_quantize(values, (8,), with_block("nvfp4/amax", (4,)))
    assert same(whole, [NAN] * 8)
    found = block([bad, 1.0], "mxfp4/floor")
    assert found.scale != found.scale
    assert found.codes == (0, 0)
    assert block([bad, 1.0], "mxfp8_e4m3/floor").codes == (0x7F, 0x7F)


def test_ragged_tails_are_short_blocks_of_their_own_row() -> None:
    values = numbers(2 * 11)
    q = with_block("mxfp4/floor", (4,))
    expected = []
    for row in (values[:11], values[11:]):
        for start in (0, 4, 8):
            expected += quantize_block(row[start : start + 4], q).values
    assert same(fake_quantize(values, (2, 11), q), expected)


@pytest.mark.parametrize("size", [(4,), "channel", "tensor", (2, 3)])
def test_axis_blocks_the_transposed_tensor(size: tuple[int, ...] | str) -> None:
    """A tensor blocked along its first axis is its transpose blocked along the last."""
    q = with_block("mxfp6_e3m2/floor", size)
    values = np.array(numbers(5 * 7)).reshape(5, 7)
    along_first = fake_quantize([float(x) for x in values.ravel()], (5, 7), q, axis=0)
    along_last = fake_quantize([float(x) for x in values.T.ravel()], (7, 5), q)
    assert same(along_first, [float(x) for x in np.array(along_last).reshape(7, 5).T.ravel()])


@pytest.mark.parametrize(
    ("size", "axis", "tiles"),
    [
        ((2, 3), -1, [(slice(r, r + 2), slice(c, c + 3)) for r in (0, 2, 4) for c in (0, 3, 6)]),
        ((2, 3), 0, [(slice(r, r + 3), slice(c, c + 2)) for r in (0, 3) for c in (0, 2, 4, 6)]),
        ("channel", 1, [(slice(r, r + 1), slice(0, 7)) for r in range(5)]),
        ("channel", 0, [(slice(0, 5), slice(c, c + 1)) for c in range(7)]),
        ("tensor", 0, [(slice(0, 5), slice(0, 7))]),
    ],
)
def test_granularities(
    size: tuple[int, ...] | str, axis: int, tiles: list[tuple[slice, slice]]
) -> None:
    q = with_block("mxfp4/floor", size)
    values = np.array(numbers(5 * 7)).reshape(5, 7)
    expected = np.empty_like(values)
    for tile in tiles:
        part = values[tile]
        found = quantize_block([float(x) for x in part.ravel()], q)
        expected[tile] = np.array(found.values).reshape(part.shape)
    flat = [float(x) for x in values.ravel()]
    assert same(fake_quantize(flat, (5, 7), q, axis), [float(x) for x in expected.ravel()])
    assert isinstance(q.format, BlockFormat)
    assert math.prod(q.format.scale_shape((5, 7), axis)) == len(tiles)


def test_tiles_run_over_the_last_two_axes() -> None:
    q = with_block("mxfp4/floor", (2, 2))
    values = numbers(2 * 3 * 4)
    halves = [fake_quantize(values[i : i + 12], (3, 4), q) for i in (0, 12)]
    assert same(fake_quantize(values, (2, 3, 4), q), halves[0] + halves[1])
    with pytest.raises(LowprecError, match="rank 2"):
        fake_quantize(values, (24,), q)


def test_power_of_two_scales_commute_with_powers_of_two() -> None:
    values = numbers(32)
    for name in ("mxfp8_e4m3/floor", "mxfp4/rceil", "mxint8/even", "mxfp6_e2m3/ceil"):
        q = load_quantizer(name)
        once = fake_quantize(values, (32,), q)
        scaled = fake_quantize([x * 2.0**40 for x in values], (32,), q)
        assert same(scaled, [y * 2.0**40 for y in once])


def test_values_near_the_top_and_the_bottom_of_float32() -> None:
    """ceil takes 2^126 for the largest blocks, of which the largest number is 4 and its value,
    2^128, no float32: Inf. The lowest scale is a float32 subnormal."""
    top = float(np.float32(3.4028235e38))
    found = block([top, 1e38], "mxfp4/ceil")
    assert found.scale == pow2(126)
    assert same(found.values, [INF, 2.0**126])
    low = block([2.0**-127, 2.0**-128, 2.0**-149], "mxfp4/floor")
    assert low.scale == pow2(-127)
    assert same(low.values, [2.0**-127, 2.0**-128, 0.0])


def test_a_cast_has_no_blocks() -> None:
    q = load_quantizer("float8_e4m3fn/cast/nearest-even/OvfInf")
    assert same(fake_quantize([1.06, -0.0, 500.0, NAN], (2, 2), q), [1.0, -0.0, NAN, NAN])
    with pytest.raises(LowprecError, match="no scale"):
        quantize_block([1.0], q)
    with pytest.raises(LowprecError, match="3 values do not fill"):
        fake_quantize([1.0, 2.0, 3.0], (2, 2), q)


def test_empty_and_scalar_tensors() -> None:
    q = load_quantizer("mxfp4/floor")
    assert fake_quantize([], (0, 4), q) == []
    assert fake_quantize([], (3, 0), q) == []
    assert fake_quantize([1.1], (), load_quantizer("float8_e4m3fn/amax:tensor")) == [
        1.100000023841858
    ]


def test_stochastic_rounding_takes_one_number_per_value() -> None:
    q = load_quantizer("mxfp4/floor/stochastic:2")
    values = [4.0, 1.125, 1.125, 1.125, 1.125]
    assert fake_quantize(values, (5,), q, random=[0, 0, 1, 2, 3]) == [4.0, 1.0, 1.0, 1.0, 1.5]
    with pytest.raises(LowprecError, match="random"):
        fake_quantize(values, (5,), q)


def test_the_element_is_of_the_quotient_rounded_to_float32() -> None:
    """x / S is 2.5 + 2^-25 * 5 or so, which float32 makes 2.5, a tie."""
    q = load_quantizer("float4_e2m1fn/amax:tensor")
    fmt = load_format("float4_e2m1fn_tensor")
    assert q.format == fmt
    rng = random.Random(3)
    for _ in range(300):
        values = [float(np.float32(rng.uniform(0.1, 1))) for _ in range(4)]
        s = np.float32(max(values)) / np.float32(6)
        values += [float(s * np.float32(tie)) for tie in (0.25, 0.75, 1.75, 2.5, 3.5)]
        quotients = np.array(values, np.float32) / s
        table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
        expected = []
        for quotient in quotients:
            gaps = np.abs(table.astype(float) - float(quotient))
            nearest = [i for i in range(8) if gaps[i] == gaps.min()]
            expected.append(next((i for i in nearest if i % 2 == 0), nearest[0]))
        assert quantize_block(values, q).codes == tuple(expected)
