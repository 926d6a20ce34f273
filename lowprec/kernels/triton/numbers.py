"""Formats and rules as the numbers that Triton kernels are compiled with."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from lowprec.errors import LowprecError
from lowprec.kernels.arith import is_float32
from lowprec.kernels.block import numbers_of
from lowprec.kernels.element import projector
from lowprec.kernels.grid import Grid
from lowprec.kernels.word import FLOAT32, require
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import CodebookFormat, FloatFormat, Format, IntFormat
from lowprec.spec.projection import Projection
from lowprec.spec.quantizer import POWER_OF_TWO_RULES, Quantizer

# A program's elements, and those of a row that is one block.
TILE = 2048
MAX_BLOCK = 1 << 16


class GridNumbers(NamedTuple):
    """`lowprec.kernels.grid.Grid`, and its `Nearest` where there is one (else magic is 0)."""

    rounding: str
    random_bits: int
    precision: int
    quantum: int
    least: int
    half: int
    half_is_tie: bool
    least_significand: int
    least_exponent: int
    has_zero: bool
    has_code_bias: bool
    code_bias: int
    bound: tuple[int, int]
    overflow: tuple[int, int]
    infinity: tuple[int, int]
    zero: tuple[int, int]
    magic: float
    fixed: int
    shift: int
    half_unit: int
    kept: int


class CodeNumbers(NamedTuple):
    """How code points follow from values, and values from code points. `step` is the exponent of
    an integer's unit, or of the least subnormal; nan: its code point, 0 where there is none."""

    is_integer: bool
    bits: int
    signed: bool
    precision: int
    emin: int
    bias: int
    step: int
    subnormals: bool
    zero: bool
    max_code: int
    infinity: bool
    has_nan: bool
    nan_is_minus_zero: bool
    nan: int


class RuleNumbers(NamedTuple):
    """`lowprec.kernels.scale.ScaleRule`."""

    power_of_two: bool
    divides: bool
    largest: float
    carry: int
    emax: int
    lowest: int
    highest: int
    has_inverse: bool
    onto: GridNumbers


class Numbers(NamedTuple):
    """A quantizer. block: elements of a block; 0 where blocks are rows, or no scale is found by
    the kernel: in a scalar format (rule None) and with a scale for the whole tensor."""

    element: GridNumbers
    element_code: CodeNumbers
    rule: RuleNumbers | None
    scale_code: CodeNumbers | None
    block: int
    has_outer: bool
    is_whole: bool


@lru_cache(maxsize=256)
def numbers(quantizer: Quantizer) -> Numbers:
    """LowprecError for what the kernels do not cover: codebooks, rules that search, and blocks
    that are tiles or have more than a scale, with one for the tensor at most."""
    fmt, name = quantizer.format, quantizer.spell()
    if not isinstance(fmt, BlockFormat):
        return Numbers(
            _grid(fmt, quantizer.projection, name), code_numbers(fmt), None, None, 0, False, False
        )
    outer_is_tensor = fmt.outer is None or fmt.outer.block == "tensor"
    if not fmt.is_only_scaled or not outer_is_tensor or _is_tile(fmt):
        raise LowprecError(
            f"triton: {name}: expected one scale per block along an axis, with one for the tensor "
            f"at most"
        )
    if quantizer.rule not in (*POWER_OF_TWO_RULES, "amax"):
        known = ", ".join((*POWER_OF_TWO_RULES, "amax"))
        raise LowprecError(f"triton: {name}: rule {quantizer.rule!r}; expected one of {known}")
    block = 0 if isinstance(fmt.block, str) else int(fmt.block[0])
    return Numbers(
        _grid(fmt.element, quantizer.projection, name), code_numbers(fmt.element),
        _rule(quantizer, name), code_numbers(fmt.scale), block, fmt.outer is not None,
        fmt.block == "tensor",
    )  # fmt: skip


def _is_tile(fmt: BlockFormat) -> bool:
    return not isinstance(fmt.block, str) and len(fmt.block) != 1


def _grid(fmt: Format, projection: Projection, name: str) -> GridNumbers:
    require(FLOAT32.dtype, fmt)
    grid = projector(fmt, projection, FLOAT32).numbers
    if not isinstance(grid, Grid):
        raise LowprecError(f"triton: {name}: {fmt.name!r} is a codebook; expected floats, integers")
    return grid_numbers(grid)


def grid_numbers(grid: Grid) -> GridNumbers:
    near, ends = grid.nearest, grid.ends
    by = (near.magic, near.fixed, near.shift, near.half, near.kept) if near else (0.0, 0, 0, 0, 0)
    return GridNumbers(
        grid.rounding, grid.random_bits or 0, grid.precision, grid.quantum, grid.least, grid.half,
        grid.half_is_tie, grid.least_significand, grid.least_exponent, grid.has_zero,
        grid.code_bias is not None, grid.code_bias or 0,
        _pair(ends.bound), _pair(ends.overflow), _pair(ends.infinity), _pair(ends.zero),
        *by,
    )  # fmt: skip


def _pair(bits: tuple[int, ...]) -> tuple[int, int]:
    positive, negative = bits
    return positive, negative


def code_numbers(fmt: Format) -> CodeNumbers:
    """LowprecError for a codebook, and for what float32 does not hold."""
    require(FLOAT32.dtype, fmt)
    if isinstance(fmt, IntFormat):
        return CodeNumbers(
            True, fmt.bits, fmt.signed, 1, 0, 0, fmt.exponent, True, True, 0, False, False, False, 0
        )
    if isinstance(fmt, CodebookFormat) or not isinstance(fmt, FloatFormat):
        raise LowprecError(f"triton: {fmt.name!r} is a codebook; expected floats, integers")
    return CodeNumbers(
        False, fmt.bits, fmt.signed, fmt.precision, fmt.emin, fmt.bias,
        fmt.emin - (fmt.precision - 1), fmt.subnormals, fmt.zero, fmt.max_code, fmt.infinity,
        fmt.has_nan, fmt.nan == "negative-zero", fmt.nan_code or 0,
    )  # fmt: skip


def _rule(quantizer: Quantizer, name: str) -> RuleNumbers:
    rule = numbers_of(quantizer).rule
    onto = rule.onto_scale.numbers
    if not isinstance(onto, Grid):
        raise LowprecError(f"triton: {name}: the scale is a codebook; expected floats, integers")
    if rule.divides and not is_float32(rule.largest):
        raise LowprecError(f"triton: {name}: the largest value {rule.largest!r} is no float32")
    return RuleNumbers(
        rule.power_of_two, rule.divides, rule.largest, rule.carry, rule.emax, *rule.exponents,
        rule.has_inverse, grid_numbers(onto),
    )  # fmt: skip
