"""Code points: from values to them and back."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels.codebook import key_of
from lowprec.kernels.word import FLOAT64, Word, floor_log2_of, require, word_of
from lowprec.spec.format import CodebookFormat, FloatFormat, Format, IntFormat


def codes_dtype(fmt: Format) -> torch.dtype:
    """The smallest unsigned integer dtype that holds a code point."""
    widths = {8: torch.uint8, 16: torch.uint16, 32: torch.uint32, 64: torch.uint64}
    return next(dtype for bits, dtype in widths.items() if fmt.bits <= bits)


def codes_of(values: Tensor, fmt: Format) -> Tensor:
    """Code points of `values`, which are float32 or float64 values of the format, as int64.

    A NaN in a format without NaN gets 0: the caller decides what that means.
    """
    if isinstance(fmt, CodebookFormat):
        return _codebook_codes(values, fmt)
    x = values.double()
    bits = x.view(FLOAT64.int_dtype)
    pattern, minus = bits & FLOAT64.magnitude, bits < 0
    if isinstance(fmt, IntFormat):
        code = _integer_codes(pattern, fmt)
        code = torch.where(minus, -code, code)
    else:
        code = _float_codes(pattern, fmt)
        code = torch.where(minus & fmt.signed, code | (-1 << (fmt.bits - 1)), code)
    code = torch.where(pattern > FLOAT64.infinity, _nan_code(fmt), code)
    return code & _mask(fmt.bits)


def _mask(bits: int) -> int:
    """The low bits of an int64; a code point of 64 bits is the integer of the same bits."""
    return -1 if bits == 64 else (1 << bits) - 1


def _nan_code(fmt: Format) -> int:
    code = (fmt.nan_code if isinstance(fmt, FloatFormat) else None) or 0
    return code - (1 << 64) if code >> 63 else code


def _significand(pattern: Tensor) -> tuple[Tensor, Tensor]:
    """(integer, exponent) with magnitude = integer * 2^exponent."""
    implicit = 1 << FLOAT64.trailing
    integer = (pattern & (implicit - 1)) | (pattern >= implicit).long() << FLOAT64.trailing
    field = (pattern >> FLOAT64.trailing).clamp(min=1)
    return integer, field - FLOAT64.bias - FLOAT64.trailing


def _shifted(x: Tensor, by: Tensor) -> Tensor:
    return torch.where(by >= 0, x << by.clamp(0, 63), x >> (-by).clamp(0, 63))


def _integer_codes(pattern: Tensor, fmt: IntFormat) -> Tensor:
    integer, exponent = _significand(pattern)
    return _shifted(integer, exponent - fmt.exponent)


def _float_codes(pattern: Tensor, fmt: FloatFormat) -> Tensor:
    """Magnitude codes: the significand in units of its last place, plus the exponent field."""
    integer, ulp = _significand(pattern)
    binade = floor_log2_of(pattern, FLOAT64).clamp(min=fmt.emin) - fmt.emin
    code = _shifted(integer, ulp - (binade + fmt.emin - (fmt.precision - 1)))
    code = code + (binade << (fmt.precision - 1))
    if not fmt.subnormals:
        code = code - (1 << (fmt.precision - 1))
    code = torch.where(pattern == 0, 0, code)
    return torch.where(pattern == FLOAT64.infinity, fmt.max_code + 1, code)


def _codebook_codes(values: Tensor, fmt: CodebookFormat) -> Tensor:
    word = word_of(values.dtype)
    table = _Codebook.of(fmt, word)
    keys = torch.tensor(table.keys, dtype=word.int_dtype, device=values.device)
    codes = torch.tensor(table.codes, device=values.device)
    key = key_of(values, word)
    code = codes[torch.searchsorted(keys, key).clamp(max=len(table.codes) - 1)]
    if table.negative_zero is not None:
        code = torch.where((key == 0) & torch.signbit(values), table.negative_zero, code)
    return torch.where(values != values, table.nan, code)


class _Codebook:
    """Codes by ascending key; -0, which has the key of +0, and NaN aside."""

    keys: tuple[int, ...]
    codes: tuple[int, ...]

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, fmt: CodebookFormat, word: Word) -> _Codebook:
        table = cls()
        bits = [word.bits(v) for v in fmt.values]
        table.negative_zero = next((c for c, b in enumerate(bits) if b == word.sign), None)
        table.nan = next((c for c, v in enumerate(fmt.values) if v != v), 0)
        keyed = {
            (b & word.magnitude) * (-1 if b < 0 else 1): code
            for code, (b, v) in enumerate(zip(bits, fmt.values, strict=True))
            if v == v and b != word.sign
        }
        table.keys, table.codes = zip(*sorted(keyed.items()), strict=True)
        return table


def values_of(codes: Tensor, fmt: Format) -> Tensor:
    """The values of int64 code points in float64, which must hold the format; NaN codes give NaN.

    The most negative code of a symmetric integer format decodes to what it would be without
    `symmetric`, though no projection gives it.
    """
    match fmt:
        case CodebookFormat():
            return torch.tensor(fmt.values, dtype=torch.float64, device=codes.device)[codes]
        case IntFormat():
            unused = 64 - fmt.bits
            integers = (codes << unused) >> unused if fmt.signed else codes
            return integers.double() * _pow2(torch.full_like(codes, fmt.exponent))
        case FloatFormat():
            return _float_values(codes, fmt)
    raise TypeError(f"no scalar format: {fmt!r}")


def _float_values(codes: Tensor, fmt: FloatFormat) -> Tensor:
    magnitude = codes & _mask(fmt.bits - fmt.signed)
    implicit = 1 << (fmt.precision - 1)
    field = magnitude >> (fmt.precision - 1)
    hidden = field > 0 if fmt.subnormals else (magnitude > 0) | (not fmt.zero)
    significand = (magnitude & (implicit - 1)) + hidden.long() * implicit
    field = field.clamp(min=1) if fmt.subnormals else field
    exponent = field - fmt.bias - (fmt.precision - 1)
    values = significand.double() * _pow2(exponent.clamp(-1074, 1023))
    values = torch.where(magnitude > fmt.max_code, torch.nan, values)
    if fmt.infinity:
        values = torch.where(magnitude == fmt.max_code + 1, torch.inf, values)
    if fmt.signed:
        minus = codes != magnitude
        values = torch.where(minus, -values, values)
        if fmt.nan == "negative-zero":
            values = torch.where(minus & (magnitude == 0), torch.nan, values)
    return values


def _pow2(exponent: Tensor) -> Tensor:
    """2^exponent in float64 from its bits, -1074 to 1023."""
    normal = (exponent + FLOAT64.bias) << FLOAT64.trailing
    subnormal = 1 << (exponent - (FLOAT64.emin - FLOAT64.trailing)).clamp(0, FLOAT64.trailing)
    return torch.where(exponent >= FLOAT64.emin, normal, subnormal).view(torch.float64)


def check_codes(codes: Tensor, fmt: Format) -> Tensor:
    """`codes` as int64; LowprecError unless they are integers and code points of the format."""
    if codes.dtype.is_floating_point or codes.dtype.is_complex or codes.dtype == torch.bool:
        raise LowprecError(f"codes of {codes.dtype}: expected integers")
    wide = codes.view(torch.int64) if codes.dtype == torch.uint64 else codes.long()
    size = fmt.code_points
    if size < 1 << 63 and bool(((wide < 0) | (wide >= size)).any()):
        raise LowprecError(f"{fmt.name}: codes beyond its code points, 0 to {size - 1:#x}")
    require(torch.float64, fmt)
    return wide


def store_codes(codes: Tensor, fmt: Format) -> Tensor:
    """int64 code points in `codes_dtype`."""
    dtype = codes_dtype(fmt)
    return codes.view(torch.uint64) if dtype == torch.uint64 else codes.to(dtype)
