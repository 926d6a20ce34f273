"""The weights of compressed-tensors checkpoints (vLLM, LLM Compressor), by its names of formats.

A layout is a dictionary of what the library calls ``weight_packed``, ``weight_scale`` and so on,
as version 0.20.1 writes them. Weights are (..., N, K), blocked along K in whole blocks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels.layouts.common import (
    format_of,
    qtensor,
    require_bytes,
    require_rank,
    require_shipped,
    require_whole,
)
from lowprec.kernels.packing import pack_bits, unpack_bits
from lowprec.kernels.qtensor import QTensor
from lowprec.spec import load_format
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import IntFormat

State = dict[str, Tensor]
_SCALES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def to_pack_quantized(q: QTensor) -> State:
    """The layout "pack-quantized": integers of 1 to 8 bits, each row densely in int32 words.

    Stored is k + 2^(bits - 1) of a two's complement k, and an unsigned code as it is. Zero points
    are packed along N. Scales keep their dtype: float32, bfloat16 or float16. LowprecError for
    formats that are not of this kind: blocks (g,) or "channel"; without zero point signed
    elements; with one, a zero point of the element's bits and sign.
    """
    fmt = format_of(q, "pack-quantized")
    dtype = _check_integers(fmt)
    bits, shape = fmt.element.bits, tuple(q.shape)
    _check_shape(fmt, shape)
    state = {
        "weight_packed": _words(_stored(q.codes, fmt), bits),
        "weight_scale": q.scales.view(dtype),
        "weight_shape": torch.tensor(shape),
    }
    if fmt.zero_point:
        zero_point = _words(_stored(q.offset, fmt).mT, bits)
        state["weight_zero_point"] = zero_point.mT.contiguous()
    return state


def from_pack_quantized(state: State, fmt: BlockFormat | str) -> QTensor:
    """The weight of a "pack-quantized" state dictionary, whose format is `fmt`.

    LowprecError where the two do not fit: a key, dtype, shape, or bits that are not zero behind
    the end of a row.
    """
    fmt = load_format(fmt) if isinstance(fmt, str) else fmt
    dtype = _check_integers(fmt)
    keys = {"weight_packed", "weight_scale", "weight_shape"}
    keys |= {"weight_zero_point"} if fmt.zero_point else set()
    if set(state) != keys:
        raise LowprecError(
            f"pack-quantized: {', '.join(sorted(state))}; expected {', '.join(sorted(keys))}"
        )
    shape = tuple(state["weight_shape"].tolist())
    _check_shape(fmt, shape)
    each = fmt.scale_shape(shape)
    scales = state["weight_scale"]
    if scales.dtype != dtype or tuple(scales.shape) != each:
        raise LowprecError(
            f"pack-quantized: weight_scale of {scales.dtype}, {tuple(scales.shape)}; "
            f"{fmt.name!r} has {dtype}, {each}"
        )
    offset = None
    if fmt.zero_point:
        words = state["weight_zero_point"].mT
        turned = (*each[:-2], each[-1], each[-2])
        offset = _stored(_codes(words, fmt.element.bits, turned), fmt).mT.contiguous()
    return qtensor(
        fmt,
        _stored(_codes(state["weight_packed"], fmt.element.bits, shape), fmt),
        scales.view({2: torch.uint16, 4: torch.uint32}[scales.itemsize]),
        offset=offset,
    )


def to_nvfp4_pack_quantized(q: QTensor) -> State:
    """The layout "nvfp4-pack-quantized": two E2M1 codes per byte, the first in the low nibble,
    E4M3 scales, and a global scale that *divides*: RN(1 / t) of our tensor scale t, a float32.

    So values are e * (s / g) there and e * (s * t) here, equal to within float32's rounding. An
    all-zero tensor has g = 1. LowprecError for another format than nvfp4 and for a t whose
    reciprocal is not finite.
    """
    require_shipped(q, "nvfp4-pack-quantized", "nvfp4")
    require_whole(q.shape[-1], 16, "nvfp4-pack-quantized")
    t = q.outer_scale
    empty = bool(t == 0) and not bool(q.scales.any())
    return {
        "weight_packed": _pairs(q),
        "weight_scale": q.scales.view(torch.float8_e4m3fn),
        "weight_global_scale": _reciprocal(torch.ones_like(t) if empty else t).reshape(1),
    }


def from_nvfp4_pack_quantized(state: State) -> QTensor:
    """The nvfp4 weight of such a state dictionary; t = RN(1 / g)."""
    codes, scale, g = _fp4(state, ("weight_global_scale",), torch.float8_e4m3fn, 16)
    if g.dtype != torch.float32 or g.numel() != 1:
        raise LowprecError(
            f"nvfp4-pack-quantized: weight_global_scale of {g.dtype}, {tuple(g.shape)}; expected "
            f"one torch.float32"
        )
    t = _reciprocal(g.reshape(()))
    return qtensor(load_format("nvfp4"), codes, scale.view(torch.uint8), outer_scale=t)


def to_mxfp4_pack_quantized(q: QTensor) -> State:
    """The layout "mxfp4-pack-quantized": two E2M1 codes per byte, the first in the low nibble, and
    the E8M0 codes of the scales as uint8. LowprecError for another format than mxfp4."""
    require_shipped(q, "mxfp4-pack-quantized", "mxfp4")
    require_whole(q.shape[-1], 32, "mxfp4-pack-quantized")
    return {"weight_packed": _pairs(q), "weight_scale": q.scales}


def from_mxfp4_pack_quantized(state: State) -> QTensor:
    """The mxfp4 weight of such a state dictionary. Scale code 255 is a NaN here and 2^128 there."""
    codes, scale = _fp4(state, (), torch.uint8, 32)
    return qtensor(load_format("mxfp4"), codes, scale)


def _check_integers(fmt: BlockFormat) -> torch.dtype:
    """The dtype of the scales of a format that pack-quantized has; LowprecError for others."""
    element, zero = fmt.element, fmt.zero_point
    integers = isinstance(element, IntFormat) and element.bits <= 8 and not element.exponent
    if zero is None:
        integers = integers and element.signed
    else:
        integers = integers and (zero.bits, zero.signed) == (element.bits, element.signed)
    rows = fmt.block == "channel" or (fmt.block != "tensor" and len(fmt.block) == 1)
    dtype = next((d for name, d in _SCALES.items() if load_format(name) == fmt.scale), None)
    if not (integers and rows and dtype) or fmt.outer or fmt.inner or fmt.offset or fmt.outlier:
        raise LowprecError(
            f"pack-quantized: format {fmt.name!r}; expected integers of up to 8 bits (signed, or "
            f"with zero points of the same bits and sign) with float32, bfloat16 or float16 "
            f"scales per group or channel"
        )
    return dtype


def _check_shape(fmt: BlockFormat, shape: tuple[int, ...]) -> None:
    require_rank(shape, 2, "pack-quantized")
    if fmt.block != "channel":
        require_whole(shape[-1], fmt.block[0], "pack-quantized")


def _stored(codes: Tensor, fmt: BlockFormat) -> Tensor:
    """Two's complement plus half the range, and back; unsigned codes as they are."""
    return codes ^ (1 << (fmt.element.bits - 1)) if fmt.element.signed else codes


def _words(codes: Tensor, bits: int) -> Tensor:
    """Each row as a little-endian stream of bits in int32 words, the last filled with zeros."""
    count = codes.shape[-1]
    rows = F.pad(codes, (0, -count % 32))
    words = pack_bits(rows, bits).view(torch.int32).reshape(*rows.shape[:-1], -1)
    return words[..., : -(-count * bits // 32)].contiguous()


def _codes(words: Tensor, bits: int, shape: tuple[int, ...]) -> Tensor:
    expected = (*shape[:-1], -(-shape[-1] * bits // 32))
    if words.dtype != torch.int32 or tuple(words.shape) != expected:
        raise LowprecError(
            f"pack-quantized: words of {words.dtype}, {tuple(words.shape)}; expected torch.int32 "
            f"of {expected}"
        )
    whole = F.pad(words, (0, -words.shape[-1] % bits)).contiguous()
    rows = unpack_bits(whole.view(torch.uint8).reshape(-1), bits, whole.numel() * 32 // bits)
    rows = rows.reshape(*shape[:-1], -1)
    if bool(rows[..., shape[-1] :].any()):
        raise LowprecError("pack-quantized: bits behind the end of a row are not zero")
    return rows[..., : shape[-1]].contiguous()


def _pairs(q: QTensor) -> Tensor:
    return pack_bits(q.codes, 4).reshape(*q.shape[:-1], q.shape[-1] // 2)


def _fp4(state: State, more: tuple[str, ...], dtype: torch.dtype, block: int) -> list[Tensor]:
    """Codes, scales and what else of a state dictionary with two 4-bit codes to a byte."""
    keys = ("weight_packed", "weight_scale", *more)
    if set(state) != set(keys):
        raise LowprecError(f"{', '.join(sorted(state))}: expected {', '.join(sorted(keys))}")
    packed, scale, *others = (state[key] for key in keys)
    require_rank(scale.shape, 2, "weight_scale")
    shape = (*scale.shape[:-1], scale.shape[-1] * block)
    require_bytes(packed, (*shape[:-1], shape[-1] // 2), "weight_packed")
    if scale.dtype != dtype:
        raise LowprecError(f"weight_scale of {scale.dtype}: expected {dtype}")
    return [unpack_bits(packed, 4, 2 * packed.numel()).reshape(shape), scale, *others]


def _reciprocal(x: Tensor) -> Tensor:
    y = 1 / x
    if bool(y.isinf()):
        raise LowprecError(f"nvfp4-pack-quantized: a scale of {float(x)} has no finite reciprocal")
    return y
