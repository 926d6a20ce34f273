"""Operands of a matmul under a datapath: values on a grid, and what they are scaled by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels.calls import call, compute
from lowprec.kernels.datapath_step import has_bits
from lowprec.kernels.qtensor import QTensor, decode_tensor, quantize_tensor
from lowprec.kernels.word import holds
from lowprec.spec import list_datapaths, load_datapath
from lowprec.spec.block import BlockFormat
from lowprec.spec.datapath import Datapath
from lowprec.spec.format import Format
from lowprec.spec.projection import Projection
from lowprec.spec.quantizer import Quantizer


@dataclass(frozen=True)
class Operand:
    """values: (..., R, K), float32. scales: (..., R, blocks) for the datapath's scaling, or None.
    factors: what multiplies the result, of shapes that broadcast to (..., R, 1)."""

    values: Tensor
    format: Format
    scales: Tensor | None = None
    factors: tuple[Tensor, ...] = ()


def operand(x: Tensor | QTensor, quantizer: Quantizer | None, path: Datapath, what: str) -> Operand:
    """`x` for a datapath; LowprecError where it has no such values or scales."""
    if isinstance(x, QTensor):
        return _of_codes(x, path, what)
    if quantizer is None:
        return _on_a_grid(x, None, path, what)
    c = call(x, quantizer, -1)
    if isinstance(quantizer.format, BlockFormat):
        return _of_codes(quantize_tensor(x, c), path, what)
    return _on_a_grid(compute(x.detach(), c), quantizer.format, path, what)


def _on_a_grid(x: Tensor, fmt: Format | None, path: Datapath, what: str, hint: str = "") -> Operand:
    """Values of one of the datapath's inputs."""
    values = x.detach().to(torch.float32)
    if x.dtype == torch.float64 and not torch.equal(values.double(), x):
        values = x.detach() if bool(x.isnan().any()) else values
    if fmt is not None and fmt in path.inputs:
        return Operand(values, fmt)
    for known in path.inputs:
        if x.dtype == torch.float64 and not has_bits(x.detach(), known):
            continue
        if _all_of(values, known):
            return Operand(values, known)
    names = " or ".join(f.name for f in path.inputs)
    kept = f"{what}=None keeps the operand as it is; " if fmt is None and not hint else ""
    raise LowprecError(
        f"matmul: {what}: not all values are of {names}, which the datapath {path.name!r} takes; "
        f"{kept}{hint or f'a cast is spelled {what}={path.inputs[0].name + chr(47) + chr(99)}ast'}"
    )


def _all_of(values: Tensor, fmt: Format) -> bool:
    """Whether all of float32 `values` are of a format: a cast leaves those as they are."""
    if holds(torch.float32, fmt) and values.is_cpu and values.numel():
        cast = compute(values.contiguous(), call(values, _cast(fmt), -1))
        if torch.equal(cast.view(torch.int32), values.contiguous().view(torch.int32)):
            return True
    return all(has_bits(part.double(), fmt) for part in values.reshape(-1).split(1 << 20))


@lru_cache(maxsize=256)
def _cast(fmt: Format) -> Quantizer:
    return Quantizer(format=fmt, rule="cast", projection=Projection(saturation="SatPropagate"))


def _of_codes(q: QTensor, path: Datapath, what: str) -> Operand:
    fmt, shape = q.quantizer.format, tuple(q.shape)
    if q.axis != -1 and len(shape) > 1:
        raise LowprecError(f"matmul: {what}: blocks run along axis {q.axis}; expected K, the last")
    if not isinstance(fmt, BlockFormat):
        return _on_a_grid(decode_tensor(q.codes, fmt, torch.float32), fmt, path, what)
    if not fmt.is_only_scaled or q.scales is None:
        raise LowprecError(
            f"matmul: {what}: {fmt.name!r} has more than a scale per block (inner scales, zero "
            f"points, offsets or outliers), which no datapath applies; dequantize it first"
        )
    found = _on_a_grid(
        decode_tensor(q.codes, fmt.element, torch.float32), fmt.element, path, what,
        f"elements of {fmt.name!r} are {fmt.element.name}",
    )  # fmt: skip
    scale = decode_tensor(q.scales, fmt.scale, torch.float32)
    factors = []
    if fmt.outer is not None and q.outer_scale is not None:
        factors.append(_per_row(q.outer_scale.float(), fmt, fmt.outer.block, shape, path, what))
    scale = _rows(scale, fmt.block, shape)
    length = 0 if isinstance(fmt.block, str) else int(fmt.block[-1])
    if not length or (scale.shape[-1] <= 1 and not _takes(path, fmt.scale, length)):
        factors.append(_per_row(scale, fmt, fmt.block, shape, path, what))
        return Operand(found.values, found.format, None, tuple(factors))
    if not _takes(path, fmt.scale, length):
        raise _no_scaling(fmt, length, path, what)
    assert path.scaling is not None
    blocks = -(-shape[-1] // path.scaling.block)
    scale = scale.repeat_interleave(length // path.scaling.block, -1)[..., :blocks]
    return Operand(found.values, found.format, scale, tuple(factors))


def _takes(path: Datapath, scale: Format, length: int) -> bool:
    """Whether a datapath applies scales of that format, one for `length` elements."""
    scaling = path.scaling
    if scaling is None or length % scaling.block:
        return False
    return any(_within(scale, fmt) for fmt in scaling.formats)


@lru_cache(maxsize=256)
def _within(fmt: Format, other: Format) -> bool:
    """Whether `other` is known to have every value of `fmt`."""
    if fmt == other:
        return True
    if other.name == "float32":
        return holds(torch.float32, fmt)
    if fmt.bits > 8 or not holds(torch.float32, fmt):
        return False
    codes = torch.arange(fmt.code_points, dtype=torch.uint8)
    return has_bits(decode_tensor(codes, fmt, torch.float64), other)


def _no_scaling(fmt: BlockFormat, length: int, path: Datapath, what: str) -> LowprecError:
    scaling = path.scaling
    has = (
        "applies no scales"
        if scaling is None
        else f"applies scales of {' or '.join(f.name for f in scaling.formats)} per {scaling.block}"
    )
    fitting = [
        name
        for name in list_datapaths()
        if (other := load_datapath(name)) and _takes(other, fmt.scale, length)
        and fmt.element in other.inputs
    ]  # fmt: skip
    fits = f"fitting: {', '.join(fitting)}" if fitting else "no built-in datapath fits"
    return LowprecError(
        f"matmul: {what}: {fmt.name!r} has a scale ({fmt.scale.name}) per {length} elements of K, "
        f"and the datapath {path.name!r} {has}; {fits}"
    )


def _rows(scale: Tensor, block: object, shape: tuple[int, ...]) -> Tensor:
    """Scales of the rows of (..., R, K) where blocks are tiles of several rows or everything."""
    if block == "tensor":
        return scale.reshape((1,) * max(len(shape), 1))
    if isinstance(block, tuple) and len(block) == 2:
        return scale.repeat_interleave(int(block[0]), -2)[..., : shape[-2], :]
    return scale


def _per_row(
    scale: Tensor,
    fmt: BlockFormat,
    block: object,
    shape: tuple[int, ...],
    path: Datapath,
    what: str,
) -> Tensor:
    """A factor of the result: scales that are the same all along K, (..., R, 1) or one for all."""
    if scale.dim() == 0:
        return scale.reshape((1,) * max(len(shape), 1))
    scale = _rows(scale, block, shape)
    if scale.shape[-1] > 1:
        length = int(block[-1]) if isinstance(block, tuple) else 0
        raise _no_scaling(fmt, length, path, what)
    return scale
