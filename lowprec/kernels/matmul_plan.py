"""Which datapaths the CPU core's matmul covers, and as which numbers it takes them.

It covers what comes out exact in float32 or float64 before a rounding that the processor has: sums
of terms cut to a common unit, sums of few-bit products, sums in the order of k.
"""

from __future__ import annotations

import ctypes
import math
from ctypes import c_float, c_int32, c_int64, c_void_p
from functools import lru_cache

from lowprec.kernels.matmul_case import Case
from lowprec.spec.datapath import Aligned, Datapath, Tree, TwoStage
from lowprec.spec.format import FloatFormat, Format

ALIGNED, TWO_STAGE, CHUNKS, IN_ORDER, GROUPED, ROUNDED = range(6)
_GROUPS = 4  # most terms of a grouped step
ROUNDINGS = {"nearest-even": 0, "down": 1, "up": 2, "toward-zero": 3}
# Of float32 and float64: bits of the significand, and exponents that constants keep to.
_SINGLE, _DOUBLE = (24, -126, 127), (53, -1000, 1000)
# In the core's bytes an exponent of -64 stands for zero.
_NO_EXPONENT = -64
# Rows and products at a time of the left operand, which stay in a second-level cache.
_ROWS, _DEEP = 504, 256
# Products of a step where the datapath leaves it open, and most of one that is summed in one go.
_STRIP, _CHUNK = 64, 256


class CTarget(ctypes.Structure):
    _fields_ = [("precision", c_int32), ("emin", c_int32), ("max", c_float)]


class CMatmul(ctypes.Structure):
    _fields_ = [
        *[(name, c_void_p) for name in ("a", "b", "d")],
        *[(name, c_int64) for name in ("k", "lda", "ldb", "ldd")],
        *[(name, c_void_p) for name in ("scale_a", "scale_b")],
        *[(name, c_int64) for name in ("lds_a", "lds_b")],
        *[
            (name, c_int32)
            for name in (
                "wide", "kind", "step", "groups", "fraction_bits", "dot_bits", "sum_bits",
                "lowest_a", "lowest_b", "lowest_accumulator", "floor", "rounding", "term_rounding",
                "signed_zero", "interval", "block", "inside", "group", "lowest_scale",
            )
        ],
        ("rows", c_int64),
        ("deep", c_int64),
        ("result", CTarget),
        ("promotion", CTarget),
    ]  # fmt: skip


@lru_cache(maxsize=1024)
def plan_of(case: Case) -> CMatmul | None:
    """None for what the core does not cover."""
    path = case.path
    if not isinstance(path.accumulator, FloatFormat) or path.rounding not in ROUNDINGS:
        return None
    if not all(_held(fmt) for fmt in (path.accumulator, case.result, path.output)):
        return None
    if sum(fmt.precision for fmt in case.formats) > _DOUBLE[0]:
        return None
    match path.addition:
        case TwoStage():
            return _two_stage(case, path.addition)
        case Tree():
            return _in_order(case, path.addition)
        case Aligned(fraction_bits=None):
            return _chunks(case)
        case Aligned():
            return _aligned(case, path.addition)
    return None


def _held(fmt: Format) -> bool:
    """Whether float32 has all values of a float format."""
    if not isinstance(fmt, FloatFormat):
        return False
    return fmt.precision <= 24 and fmt.emax <= 127 and fmt.emin - fmt.precision + 1 >= -149


def _numbers(case: Case, kind: int, wide: bool, **more: int | CTarget) -> CMatmul | None:
    """What all kinds share; None for a promotion or scales that are not covered."""
    path, result = case.path, case.result
    accumulator, promotion, scaling = path.accumulator, path.promotion, path.scaling
    assert isinstance(accumulator, FloatFormat)
    if promotion and not wide and not _promotes_in_single(case):
        return None
    if scaling and scaling.position == "inside":
        powers = all(isinstance(f, FloatFormat) and f.precision == 1 for f in scaling.formats)
        whole = path.step is not None and scaling.block % path.step == 0
        per_step = (
            kind in (ALIGNED, ROUNDED, CHUNKS) and powers and whole and wide and not scaling.group
        )
        if not (per_step or kind == GROUPED) or len(scaling.formats) > 1:
            return None
        if kind == CHUNKS and path.rounding != "nearest-even":
            return None
    numbers: dict[str, int | CTarget] = {
        "wide": wide,
        "kind": kind,
        "step": case.step,
        "groups": 1,
        "lowest_a": case.formats[0].emin,
        "lowest_b": case.formats[1].emin,
        "lowest_accumulator": accumulator.emin,
        "rounding": ROUNDINGS[path.rounding],
        "signed_zero": path.signed_zero or isinstance(path.addition, Tree),
        "interval": promotion.interval if promotion else 0,
        "block": scaling.block if scaling else 0,
        "inside": scaling is not None and scaling.position == "inside",
        "group": (scaling.group or 0) if scaling else 0,
        "lowest_scale": _lowest_scale(path),
        "rows": _ROWS,
        "result": _target(case, result),
        "promotion": _target(case, promotion.format) if promotion else CTarget(24, -126, 0),
    }
    numbers |= more
    step = numbers["step"]
    assert isinstance(step, int)
    return CMatmul(**numbers, deep=max(_DEEP // (1 + wide) // step, 1) * step)


def _lowest_scale(path: Datapath) -> int:
    """The least exponent of a scale."""
    formats = path.scaling.formats if path.scaling else ()
    return formats[0].emin if formats and isinstance(formats[0], FloatFormat) else 0


def _target(case: Case, fmt: Format) -> CTarget:
    """Without a largest value where no sum of products reaches it."""
    assert isinstance(fmt, FloatFormat)
    reached = case.path.scaling is not None or case.sum >= fmt.max_exact
    return CTarget(fmt.precision, fmt.emin, float(fmt.max_exact) if reached else math.inf)


def _is_float32(fmt: Format) -> bool:
    return isinstance(fmt, FloatFormat) and (fmt.precision, fmt.emin) == (24, -126)


def _promotes_in_single(case: Case) -> bool:
    promotion, scaling = case.path.promotion, case.path.scaling
    if promotion is None or _is_float32(promotion.format):
        return True
    assert isinstance(promotion.format, FloatFormat)
    return scaling is None and promotion.format.precision <= 22 and _is_small(case)


def _is_small(case: Case) -> bool:
    """Whether sums stay so far below 2^127 that a rounding's constants are finite in float32."""
    return case.sum < 2.0**100


def _room(case: Case, bits: int, kind: tuple[int, int, int]) -> bool:
    """Whether a step's sum of cut terms, in units of 2^(E - bits), is exact where a constant keeps
    its unit in the last place, and the constant's exponent fits."""
    significand, low, high = kind
    if 4 * case.step + 2 > 1 << max(significand - 2 - bits, 0):
        return False
    top = max(floor_log2_of(case.sum) + 2, _floor(case))
    place = significand - 1 - bits
    fine = high if significand == 53 else top + 24 - case.result.precision
    return low <= _floor(case) + place and top + place <= high and fine <= high


def _floor(case: Case) -> int:
    """No largest exponent of a step is less."""
    addition, accumulator = case.path.addition, case.path.accumulator
    assert isinstance(accumulator, FloatFormat)
    if isinstance(addition, Aligned) and addition.min_exponent is not None:
        return addition.min_exponent
    return min(case.lowest, accumulator.emin)


def _aligned(case: Case, addition: Aligned) -> CMatmul | None:
    bits = addition.fraction_bits
    assert bits is not None
    kind = ALIGNED if addition.rounding == "toward-zero" else ROUNDED
    term_rounding = ROUNDINGS[addition.rounding]
    more = {"fraction_bits": bits, "floor": _floor(case), "term_rounding": term_rounding}
    largest = max(fmt.emax for fmt in case.formats)
    scaling = case.path.scaling
    if scaling is not None and scaling.group:
        return _grouped(case, scaling.group, bits) if kind == ALIGNED else None
    narrow = sum(fmt.precision for fmt in case.formats) <= 24
    narrow &= scaling is None or scaling.position == "outside"
    bytes_hold = 2 * largest <= 127 and largest + _NO_EXPONENT < case.lowest
    if narrow and bytes_hold and _room(case, bits, _SINGLE):
        found = _numbers(case, kind, False, **more)
        if found is not None:
            return found
    return _numbers(case, kind, True, **more) if _room(case, bits, _DOUBLE) else None


def _grouped(case: Case, group: int, bits: int) -> CMatmul | None:
    """Exact sums of a group's products; significands of scales, below 2, make its term's."""
    addition, accumulator = case.path.addition, case.path.accumulator
    assert isinstance(addition, Aligned)
    assert isinstance(accumulator, FloatFormat)
    sum_bits = floor_log2_of(group * case.product) + 1
    if -(-case.step // group) > _GROUPS or sum_bits - case.quantum > 40 or sum_bits + bits > 48:
        return None
    low = addition.min_exponent
    floor = min(2 * _lowest_scale(case.path), accumulator.emin) if low is None else low
    return _numbers(case, GROUPED, True, fraction_bits=bits, floor=floor)


def _two_stage(case: Case, addition: TwoStage) -> CMatmul | None:
    bits = addition.term_bits
    if not _room(case, bits, _DOUBLE) or case.product >= 2.0**128 or case.path.scaling:
        return None
    if addition.dot_bits - bits > 16 or addition.dot_bits > 40:
        return None
    return _numbers(
        case, TWO_STAGE, True, fraction_bits=bits, dot_bits=addition.dot_bits,
        sum_bits=addition.sum_bits, groups=addition.groups, floor=_floor(case),
    )  # fmt: skip


def _in_order(case: Case, addition: Tree) -> CMatmul | None:
    """A tree of one product is a sum in the order of k; products that float32 holds make it one of
    fused operations."""
    path = case.path
    exact = sum(fmt.precision for fmt in case.formats) <= 24 and case.quantum >= -149
    if path.step != 1 or addition.flush or not _is_float32(path.accumulator) or path.order:
        return None
    if not exact or case.product >= 2.0**127 or path.result or path.rounding != "nearest-even":
        return None
    promotion = path.promotion
    if promotion and promotion.interval <= 128 and path.scaling is None:
        # Each sum, from zero on, is added to an accumulator: the total.
        total = _target(case, promotion.format)
        return _numbers(case, CHUNKS, False, step=promotion.interval, interval=0, result=total)
    interval = promotion.interval if promotion else _STRIP
    return _numbers(
        case, IN_ORDER, False, step=math.gcd(interval, _STRIP) if interval > 128 else interval
    )


def _chunks(case: Case) -> CMatmul | None:
    """Exact sums of a step's products, by what their largest and least bits are."""
    sum_bits = floor_log2_of(case.step * case.product) + 1 - case.quantum
    result, rounding = case.result, case.path.rounding
    fits = result.precision <= 22 or (result.precision == 24 and rounding == "nearest-even")
    if sum_bits <= 24 and case.quantum >= -149 and fits and _is_small(case):
        found = _numbers(case, CHUNKS, False)
        if found is not None:
            return found
    return _numbers(case, CHUNKS, True) if sum_bits <= 53 else None


def floor_log2_of(x: float) -> int:
    return math.frexp(x)[1] - 1 if x else 0
