"""Row-wise inner products under a datapath: `lowprec.spec.Datapath` in int64 arithmetic on bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels.datapath_step import Terms, add, has_bits, magnitude_parts
from lowprec.kernels.integer_sum import exact_sum, parts, round_to
from lowprec.spec import load_datapath, load_format
from lowprec.spec.datapath import Datapath
from lowprec.spec.format import FloatFormat, Format

FormatPair = tuple[Format | str, Format | str]


@dataclass(frozen=True)
class Operands:
    """Both operands, (..., K) in float64, and their scales, (..., blocks); with their formats."""

    values: tuple[Tensor, Tensor]
    formats: tuple[Format, Format]
    scales: tuple[Tensor, Tensor] | None = None
    scale_format: Format | None = None


def dot(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    datapath: Datapath | str,
    formats: FormatPair | None = None,
    scales: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """d = c + sum a_k b_k along the last axis, bit for bit as `datapath` computes it.

    a, b: values of the datapath's inputs in any dtype that holds them, of shapes (..., K) that
    broadcast. c: the accumulator input, of shape (...), zero if None; it is rounded to nearest to
    the datapath's output format. The result, of shape (...), is float32, or float64 where float32
    does not hold that format (int32). No gradient.

    formats: those of a and b; by default, of each, the datapath's first input that holds all its
    values. (They matter for subnormals, which are not normalised before they are aligned.)
    scales: those of a and b per block of the datapath's scaling, as values, (..., ceil(K / block)).
    See `lowprec.spec.Datapath` for NaN, Inf, -0 and overflow. LowprecError for values that their
    format does not have, and shapes, formats and scales that do not fit.
    """
    path = load_datapath(datapath) if isinstance(datapath, str) else datapath
    operands = _operands(a.detach(), b.detach(), path, formats, scales)
    rows, size = operands.values[0].shape[:-1], operands.values[0].shape[-1]
    start = torch.zeros((), dtype=torch.float64, device=a.device) if c is None else c.detach()
    try:
        total = _rounded(start.to(torch.float64).expand(rows).contiguous(), path.output)
    except RuntimeError:
        raise LowprecError(f"c of shape {list(start.shape)}: expected {list(rows)}") from None
    if path.promotion is None:
        total = _accumulate(operands, range(size), total, path)
    else:
        for first in range(0, size, path.promotion.interval):
            ks = range(first, min(first + path.promotion.interval, size))
            partial = _accumulate(operands, ks, torch.zeros_like(total), path)
            total = _promote(operands, first, total, partial, path)
    single = total.to(torch.float32)
    return single if _in_float32(path.output) else total


def _in_float32(fmt: Format) -> bool:
    if isinstance(fmt, FloatFormat):
        lowest = fmt.emin - fmt.precision + 1
        return fmt.precision <= 24 and fmt.emax <= 127 and lowest >= -149
    return fmt.bits <= 24


def _rounded(x: Tensor, fmt: Format) -> Tensor:
    """float64 numbers, rounded to nearest even; Inf beyond the largest finite float."""
    if isinstance(fmt, FloatFormat):
        t, e = parts(x, 53, -1022)
        y = torch.where(x == 0, x, round_to(t, e - 52, fmt, "nearest-even"))
        return torch.where(torch.isfinite(x), y, x)
    if not has_bits(x, fmt):
        raise LowprecError(f"c: not all its values are of {fmt.name}")
    return x


def _operands(
    a: Tensor,
    b: Tensor,
    path: Datapath,
    formats: FormatPair | None,
    scales: tuple[Tensor, Tensor] | None,
) -> Operands:
    try:
        values = torch.broadcast_tensors(a.to(torch.float64), b.to(torch.float64))
    except RuntimeError:
        raise LowprecError(f"shapes {list(a.shape)} and {list(b.shape)} do not broadcast") from None
    if values[0].dim() == 0:
        raise LowprecError("operands without axes; expected shapes (..., K)")
    known = _known(path, formats)
    pair = _format_of(values[0], known[0], "a"), _format_of(values[1], known[1], "b")
    if (scales is None) != (path.scaling is None):
        raise LowprecError(
            f"datapath {path.name!r} {'needs' if path.scaling else 'takes no'} scales"
        )
    if scales is None or path.scaling is None:
        return Operands((values[0], values[1]), pair)
    shape = (*values[0].shape[:-1], -(-values[0].shape[-1] // path.scaling.block))
    try:
        factors = tuple(s.detach().to(torch.float64).expand(shape) for s in scales)
    except RuntimeError:
        raise LowprecError(f"scales: expected the shape {list(shape)}") from None
    scale_format = _format_of(torch.stack(factors), path.scaling.formats, "scales")
    return Operands((values[0], values[1]), pair, (factors[0], factors[1]), scale_format)


def _known(path: Datapath, formats: FormatPair | None) -> tuple[Sequence[Format], Sequence[Format]]:
    if formats is None:
        return path.inputs, path.inputs
    given = [load_format(f) if isinstance(f, str) else f for f in formats]
    found = [[fmt for fmt in path.inputs if fmt == each] for each in given]
    if len(found) != 2 or not all(found):
        names = ", ".join(fmt.name for fmt in path.inputs)
        raise LowprecError(f"datapath {path.name!r} takes formats {names}")
    return found[0], found[1]


def _format_of(x: Tensor, known: Sequence[Format], what: str) -> Format:
    for fmt in known:
        if has_bits(x, fmt):
            return fmt
    names = " or ".join(fmt.name for fmt in known)
    raise LowprecError(f"{what}: not all its values are of {names}")


def _steps(ks: range, path: Datapath) -> Iterator[list[int]]:
    """The k of each step that has any."""
    size = path.step or max(len(ks), 1)
    order = path.order or tuple(range(size))
    for start in range(ks.start, ks.stop, len(order)):
        for first in range(0, len(order), size):
            found = [start + i for i in order[first : first + size] if start + i < ks.stop]
            if found:
                yield found


def _accumulate(operands: Operands, ks: range, start: Tensor, path: Datapath) -> Tensor:
    for step in _steps(ks, path):
        index = torch.tensor(step, device=start.device)
        sides = [x.index_select(-1, index) for x in operands.values]
        formats = list(operands.formats)
        if path.scaling and path.scaling.position == "inside" and operands.scales:
            blocks = index // path.scaling.block
            sides += [s.index_select(-1, blocks) for s in operands.scales]
            formats += [operands.scale_format or formats[0]] * 2
        start = add(Terms(tuple(sides), tuple(formats)), start, path)
    return start


def _promote(
    operands: Operands, first: int, total: Tensor, partial: Tensor, path: Datapath
) -> Tensor:
    """The promoted sum after one more partial sum: a multiply-add with one rounding."""
    fmt = path.output
    if not isinstance(fmt, FloatFormat):
        raise TypeError("a promotion adds floats")
    scale = torch.ones_like(total)
    if operands.scales and path.scaling and path.scaling.position == "outside":
        pair = tuple(s[..., first // path.scaling.block] for s in operands.scales)
        scale = _fused((pair,), fmt)
    return _fused(((total,), (partial, scale)), fmt)


def _fused(products: Sequence[tuple[Tensor, ...]], fmt: FloatFormat) -> Tensor:
    """The sum of products of values of at most 24 bits, with one rounding to nearest even."""
    pairs = [magnitude_parts(factors) for factors in products]
    t = torch.stack([t for t, _ in pairs], -1)
    q = torch.stack([q for _, q in pairs], -1)
    y = round_to(*exact_sum(t, q), fmt, "nearest-even")
    # Zeros and special values have the signs and rules of float64's own arithmetic.
    plain = sum((torch.stack(f).prod(0) for f in products[1:]), torch.stack(products[0]).prod(0))
    zeros = (t == 0).all(-1)
    return torch.where(zeros | ~torch.isfinite(plain), plain, y)
