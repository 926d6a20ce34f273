"""One step of a datapath on tensors: a step's terms added to the accumulator, in int64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels.integer_sum import bit_length, exact_sum, parts, power, round_to, shift
from lowprec.spec.datapath import Aligned, Datapath, Tree, TwoStage
from lowprec.spec.format import FloatFormat, Format, IntFormat

# An exponent below all others: that of terms that are zero.
_NONE = -(1 << 20)
# Widest numbers of this file: products of two significands, fixed-point sums of a group.
_PRODUCT_BITS = 48


@dataclass(frozen=True)
class Terms:
    """The factors of a step's products, (..., n) in float64 each, and their formats: both operands
    and, where the unit applies them, both scales."""

    factors: tuple[Tensor, ...]
    formats: tuple[Format, ...]


@dataclass(frozen=True)
class Aligning:
    """Integers t in units of 2^q, aligned by their exponent e, which is _NONE if it does not
    count."""

    t: Tensor
    q: Tensor
    e: Tensor


def add(terms: Terms, accumulator: Tensor, path: Datapath) -> Tensor:
    """The accumulator, (...) in float64, after a step."""
    match path.addition:
        case Tree():
            return _tree(terms, accumulator, path, path.addition)
        case TwoStage():
            total = _two_stage(terms, accumulator, path, path.addition)
        case Aligned():
            total = _aligned(terms, accumulator, path, path.addition)
    special = _special(terms, accumulator, isinstance(path.addition, TwoStage))
    total = total if path.signed_zero else total + 0.0
    return torch.where(torch.isfinite(special), total, special)


def has_bits(x: Tensor, fmt: Format) -> bool:
    """Whether all of `x`, float64, are values of a float or integer format."""
    if isinstance(fmt, IntFormat):
        k = x * 2.0**-fmt.exponent
        inside = (k >= fmt.min_integer) & (k <= fmt.max_integer) & (k == k.round())
        return bool((inside & ~((x == 0) & x.signbit())).all())
    if not isinstance(fmt, FloatFormat):
        raise LowprecError(f"{fmt.name}: a codebook is no operand of a datapath")
    precision, emin = _fields(fmt)
    t, e = parts(x, precision, emin)
    fits = (t.to(torch.float64) * power(e - precision + 1) == x) & (x.abs() <= float(fmt.max))
    if not fmt.subnormals:
        fits &= x.abs() >= float(fmt.min_positive_exact)
        fits |= (x == 0) & fmt.zero
    if not fmt.has_negative_zero:
        fits &= ~((x == 0) & x.signbit())
    fits |= (torch.isinf(x) & fmt.infinity) | (torch.isnan(x) & fmt.has_nan)
    return bool((fits if fmt.signed else fits & ~(x < 0)).all())


def _fields(fmt: FloatFormat) -> tuple[int, int]:
    if fmt.precision > 24 or fmt.emin < -200 or fmt.emax > 200:
        raise LowprecError(f"{fmt.name}: datapaths on tensors take formats up to float32's size")
    return fmt.precision, fmt.emin


def magnitude_parts(factors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Products of one or two factors of at most 24 bits as t * 2^q."""
    pairs = [parts(x, 24, -1000) for x in factors]
    t, q = pairs[0][0], pairs[0][1] - 23
    for more, e in pairs[1:]:
        t, q = t * more, q + e - 23
    return t, q


def _special(terms: Terms, accumulator: Tensor, limited: bool) -> Tensor:
    """NaN or Inf where the sum is one whatever its roundings, else a finite number."""
    products = terms.factors[0]
    for factor in terms.factors[1:]:
        products = products * factor
    if limited:
        products = torch.where(products.abs() >= 2.0**128, products * torch.inf, products)
    products = torch.where(torch.isfinite(products), 0.0, products)
    return products.sum(-1) + torch.where(torch.isfinite(accumulator), 0.0, accumulator)


def _product(factors: Sequence[Tensor], formats: Sequence[Format]) -> tuple[Tensor, Tensor, int]:
    """t, e and p: the products are t * 2^(e - p)."""
    t, e, p = None, None, 0
    for x, fmt in zip(factors, formats, strict=True):
        if isinstance(fmt, FloatFormat):
            precision, emin = _fields(fmt)
            ti, ei = parts(x, precision, emin)
            p += precision - 1
        else:
            assert isinstance(fmt, IntFormat)
            ti = (x * 2.0**-fmt.exponent).to(torch.int64)
            ei = torch.full_like(ti, fmt.exponent)
        t, e = (ti, ei) if t is None or e is None else (t * ti, e + ei)
    assert t is not None
    assert e is not None
    if p > _PRODUCT_BITS:
        raise LowprecError(f"products of more than {_PRODUCT_BITS} bits")
    return t, e, p


def _aligning(terms: Terms, path: Datapath) -> Aligning:
    group = path.scaling.group if path.scaling and len(terms.factors) > 2 else None
    if group is None:
        t, e, p = _product(terms.factors, terms.formats)
        return Aligning(t, e - p, torch.where(t == 0, _NONE, e))
    t, e, p = _product(terms.factors[:2], terms.formats[:2])
    emin = sum(_fields(f)[1] for f in terms.formats[:2] if isinstance(f, FloatFormat))
    if int((e - emin).max()) + p + group.bit_length() > _PRODUCT_BITS:
        raise LowprecError(f"datapath {path.name!r}: a group's sum needs more than 48 bits")
    fixed = t << (e - emin)
    scale, scale_e, scale_p = _product(terms.factors[2:], terms.formats[2:])
    firsts = range(0, t.shape[-1], group)
    sums = torch.stack([fixed[..., i : i + group].sum(-1) for i in firsts], -1)
    counts = torch.stack([(t[..., i : i + group] != 0).any(-1) for i in firsts], -1)
    scale, scale_e = scale[..., ::group], scale_e[..., ::group]
    exponent = torch.where(counts & (scale != 0), scale_e, _NONE)
    return Aligning(sums * scale, emin - p + scale_e - scale_p, exponent)


def _accumulator(x: Tensor, fmt: Format) -> Aligning:
    """As one more term, (..., 1)."""
    t, e, p = _product([x[..., None]], [fmt])
    return Aligning(t, e - p, e)


def _aligned(terms: Terms, accumulator: Tensor, path: Datapath, addition: Aligned) -> Tensor:
    term, start = _aligning(terms, path), _accumulator(accumulator, path.accumulator)
    start_e = torch.where(start.t == 0, _NONE, start.e)
    t, q, e = (
        torch.cat(pair, -1) for pair in ((term.t, start.t), (term.q, start.q), (term.e, start_e))
    )
    fmt = path.result or path.accumulator
    if isinstance(fmt, IntFormat):
        return _integer(shift(t, q - fmt.exponent, "toward-zero").sum(-1), fmt, path)
    assert isinstance(fmt, FloatFormat)
    if addition.fraction_bits is None:
        return round_to(*exact_sum(t, q), fmt, path.rounding)
    largest = e.amax(-1)
    if addition.min_exponent is not None:
        largest = largest.clamp(min=addition.min_exponent)
    unit = torch.where(largest == _NONE, 0, largest) - addition.fraction_bits
    total = shift(t, q - unit[..., None], addition.rounding).sum(-1)
    return round_to(total, unit, fmt, path.rounding)


def _integer(total: Tensor, fmt: IntFormat, path: Datapath) -> Tensor:
    if path.overflow == "saturate":
        total = total.clamp(fmt.min_integer, fmt.max_integer)
    else:
        total = (total - fmt.min_integer) % (1 << fmt.bits) + fmt.min_integer
    return total.to(torch.float64) * 2.0**fmt.exponent


def _two_stage(terms: Terms, accumulator: Tensor, path: Datapath, addition: TwoStage) -> Tensor:
    term, start = _aligning(terms, path), _accumulator(accumulator, path.accumulator)
    bits, more = addition.term_bits, addition.dot_bits - addition.term_bits
    sums, tops = [], []
    for i in range(min(addition.groups, term.t.shape[-1])):
        t, q, e = (x[..., i :: addition.groups] for x in (term.t, term.q, term.e))
        tops.append(e.amax(-1))
        sums.append(shift(t, q - tops[-1][..., None] + bits, "toward-zero").sum(-1))
    top = torch.stack(tops).amax(0)
    products = sum(shift(s, e - top, "down") for s, e in zip(sums, tops, strict=True))
    start_t, start_q, start_e = start.t[..., 0], start.q[..., 0], start.e[..., 0]
    largest = torch.maximum(top, start_e)
    kept = shift(start_t, start_q - largest + bits, "down")
    if addition.groups == 2:
        kept = torch.where(start_e < largest - bits - 1, 0, kept)
    total = shift(products, top - largest + more, "down") + (kept << more)
    fmt = path.accumulator
    assert isinstance(fmt, FloatFormat)
    unit = largest - addition.dot_bits
    exponent = (unit + bit_length(total.abs()) - 1).clamp(min=fmt.emin)
    lost = (exponent - addition.sum_bits - unit).clamp(0, 62)
    return round_to((total >> lost) << lost, unit, path.result or fmt, path.rounding)


def _tree(terms: Terms, accumulator: Tensor, path: Datapath, addition: Tree) -> Tensor:
    dtypes = {(24, 127): torch.float32, (53, 1023): torch.float64}
    fmt = path.accumulator
    assert isinstance(fmt, FloatFormat)
    dtype = dtypes.get((fmt.precision, fmt.emax))
    if dtype is None or path.result or path.rounding != "nearest-even":
        raise LowprecError(f"datapath {path.name!r}: trees on tensors add in float32 or float64")

    def flushed(x: Tensor, of: Format, signed: bool = True) -> Tensor:
        if not addition.flush or not isinstance(of, FloatFormat):
            return x
        zero = torch.copysign(torch.zeros_like(x), x) if signed else torch.zeros_like(x)
        return torch.where(x.abs() < float(of.min_normal_exact), zero, x)

    a, b = (
        flushed(x.to(dtype), f, signed=False)
        for x, f in zip(terms.factors, terms.formats, strict=True)
    )
    sums = list(flushed(a * b, fmt).unbind(-1))
    while len(sums) > 1:
        pairs = [sums[i : i + 2] for i in range(0, len(sums), 2)]
        sums = [flushed(p[0] + p[1], fmt) if len(p) == 2 else p[0] for p in pairs]
    start = flushed(accumulator.to(dtype), fmt, signed=False)
    return flushed(start + sums[0], fmt).to(torch.float64)
