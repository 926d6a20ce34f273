"""Rows of a tensor as bytes: the code points of each row's elements and of its scales, so that rows
can be added, moved and dropped alone, as a KV cache needs it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import QTensor, decode, encode, pack_bits, quantize, unpack_bits
from lowprec.nn.calibration.scales import given
from lowprec.spec import BlockFormat, Quantizer
from lowprec.spec.block import Block
from lowprec.spec.quantizer import GIVEN_RULES


def is_rowwise(quantizer: Quantizer) -> bool:
    """Whether a row, along the last axis, is quantized by what is in it alone."""
    fmt = quantizer.format
    if not isinstance(fmt, BlockFormat):
        return True
    levels = [fmt.block, *(level.block for level in fmt.inner)]
    levels += [fmt.outer.block] if fmt.outer else []
    known = quantizer.rule in GIVEN_RULES
    return all(_within_row(b) or (known and b == "tensor") for b in levels)


def check_rowwise(quantizer: Quantizer, where: str) -> None:
    """LowprecError unless `is_rowwise`."""
    if not is_rowwise(quantizer):
        raise LowprecError(
            f"{where}: {quantizer.spell()} has a scale for several rows, which a later one would "
            "change; expected blocks along a row, or a scale that is given (static, fixed)"
        )


def _within_row(block: Block) -> bool:
    return block != "tensor" and (block == "channel" or len(block) == 1 or block[0] == 1)


def row_bytes(quantizer: Quantizer, size: int) -> int:
    """Bytes of a row of `size` elements; every kind of codes begins with a new byte."""
    return sum(-(-count * bits // 8) for _, count, bits in _streams(quantizer, size))


def encode_rows(
    x: Tensor, quantizer: Quantizer, scale: Tensor | None = None, seed: int | None = None
) -> Tensor:
    """`x` (..., D) as bytes (..., row_bytes): codes of elements and scales of each row, as
    `lowprec.pack_bits` orders them. No gradient. scale: of a
    static quantizer, as `lowprec.nn.calibration.scales.given` takes it.

    LowprecError where a scale is shared by several rows and depends on them, and for NaN that has
    no code point.
    """
    check_rowwise(quantizer, "rows of codes")
    if torch.compiler.is_compiling() or x.is_meta:
        return _encoded(x, _text(quantizer), scale, seed)
    return _encode(x, quantizer, scale, seed)


def decode_rows(
    rows: Tensor,
    quantizer: Quantizer,
    size: int,
    dtype: torch.dtype,
    scale: Tensor | None = None,
) -> Tensor:
    """The values (..., size) of `encode_rows`: those that `fake_quantize` gives in that dtype."""
    if torch.compiler.is_compiling() or rows.is_meta:
        return _decoded(rows, _text(quantizer), size, dtype, scale)
    return _decode(rows, quantizer, size, dtype, scale)


def _streams(quantizer: Quantizer, size: int) -> list[tuple[str, int, int]]:
    """Name, codes and bits of each kind of codes that a row has."""
    fmt = quantizer.format
    if not isinstance(fmt, BlockFormat):
        return [("codes", size, fmt.bits)]
    found = [("codes", size, fmt.element.bits)]

    def level(name: str, block: Block, bits: int) -> None:
        if block != "tensor":
            found.append((name, fmt.scale_shape((1, size), -1, block)[-1], bits))

    level("scales", fmt.block, fmt.scale.bits)
    for i, inner in enumerate(fmt.inner):
        level(f"inner.{i}", inner.block, inner.scale.bits)
    offset = fmt.zero_point or fmt.offset
    if offset:
        level("offset", fmt.block, offset.bits)
    if fmt.outlier:
        level("outlier", fmt.block, fmt.outlier.index_bits)
    if fmt.outer:
        level("outer_scale", fmt.outer.block, fmt.outer.scale.bits)
        if offset:
            level("outer_offset", fmt.outer.block, fmt.outer.scale.bits)
    return found


def _encode(x: Tensor, quantizer: Quantizer, scale: Tensor | None, seed: int | None) -> Tensor:
    if scale is not None:
        scale = given(scale, quantizer, tuple(x.shape), -1)
    q = quantize(x.contiguous(), quantizer, scale=scale, random=seed)
    parts = []
    for name, count, bits in _streams(quantizer, x.shape[-1]):
        codes = _part(q, name)
        if name.startswith("outer"):
            codes = encode(codes, quantizer.format.outer.scale)
        width = -(-count * bits // 8)
        if count * bits % 8:
            codes = F.pad(codes, (0, -count % 8))
            stream = pack_bits(codes, bits).view(*x.shape[:-1], -1)[..., :width]
        else:
            stream = pack_bits(codes, bits).view(*x.shape[:-1], width)
        parts.append(stream)
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _part(q: QTensor, name: str) -> Tensor:
    return q.inner[int(name[6:])] if name.startswith("inner.") else getattr(q, name)


def _decode(
    rows: Tensor, quantizer: Quantizer, size: int, dtype: torch.dtype, scale: Tensor | None
) -> Tensor:
    fmt, shape = quantizer.format, rows.shape[:-1]
    found: dict[str, Tensor] = {}
    first = 0
    for name, count, bits in _streams(quantizer, size):
        width = -(-count * bits // 8)
        stream = rows[..., first : first + width]
        whole = count + -count % 8 if count * bits % 8 else count
        stream = F.pad(stream, (0, whole * bits // 8 - width)).reshape(-1)
        codes = unpack_bits(stream, bits, rows[..., 0].numel() * whole)
        found[name] = codes.view(*shape, whole)[..., :count]
        if name.startswith("outer"):
            found[name] = decode(found[name], fmt.outer.scale)
        first += width
    if isinstance(fmt, BlockFormat):
        found |= _shared(rows, quantizer, dtype, scale)
    inner = tuple(found[name] for name in found if name.startswith("inner."))
    q = QTensor(
        codes=found["codes"].contiguous(),
        scales=found.get("scales"),
        outer_scale=found.get("outer_scale"),
        quantizer=quantizer,
        axis=-1,
        inner=inner,
        offset=found.get("offset"),
        outer_offset=found.get("outer_offset"),
        outlier=found.get("outlier"),
    )
    return q.dequantize(torch.float64 if dtype == torch.float64 else torch.float32).to(dtype)


def _shared(
    rows: Tensor, quantizer: Quantizer, dtype: torch.dtype, scale: Tensor | None
) -> dict[str, Tensor]:
    """What all rows share, and no row has: scales that are given."""
    fmt = quantizer.format
    assert isinstance(fmt, BlockFormat)
    levels = {"scales": fmt.block, "outer_scale": fmt.outer.block if fmt.outer else None}
    names = [name for name, block in levels.items() if block == "tensor"]
    if not names:
        return {}
    one = rows.new_zeros((1,) * rows.dim(), dtype=dtype)
    if scale is not None:
        scale = given(scale, quantizer, tuple(one.shape), -1)
    q = quantize(one, quantizer, scale=scale)
    return {name: getattr(q, name) for name in names}


@torch.compiler.assume_constant_result
def _text(quantizer: Quantizer) -> str:
    return quantizer.model_dump_json()


@torch.library.custom_op("lowprec::encode_rows", mutates_args=())
def _encoded(x: Tensor, quantizer: str, scale: Tensor | None, seed: int | None) -> Tensor:
    return _encode(x, Quantizer.model_validate_json(quantizer), scale, seed)


@_encoded.register_fake
def _(x: Tensor, quantizer: str, *_: Any) -> Tensor:
    width = row_bytes(Quantizer.model_validate_json(quantizer), x.shape[-1])
    return x.new_empty((*x.shape[:-1], width), dtype=torch.uint8)


@torch.library.custom_op("lowprec::decode_rows", mutates_args=())
def _decoded(
    rows: Tensor, quantizer: str, size: int, dtype: torch.dtype, scale: Tensor | None
) -> Tensor:
    return _decode(rows, Quantizer.model_validate_json(quantizer), size, dtype, scale)


@_decoded.register_fake
def _(rows: Tensor, _quantizer: str, size: int, dtype: torch.dtype, *_: Any) -> Tensor:
    return rows.new_empty((*rows.shape[:-1], size), dtype=dtype)
