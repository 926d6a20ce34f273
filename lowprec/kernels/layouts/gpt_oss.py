"""MXFP4 as the gpt-oss checkpoints store it, and transformers reads it (integrations/mxfp4.py)."""

from __future__ import annotations

from torch import Tensor

from lowprec.kernels.layouts.common import (
    qtensor,
    require_bytes,
    require_rank,
    require_shipped,
    require_whole,
)
from lowprec.kernels.packing import pack_bits, unpack_bits
from lowprec.kernels.qtensor import QTensor
from lowprec.spec import load_format

_BLOCK = 32


def to_gpt_oss(q: QTensor) -> tuple[Tensor, Tensor]:
    """``*_blocks`` (..., groups, 16) and ``*_scales`` (..., groups) of an mxfp4 tensor, uint8.

    The first of two codes is the low nibble; a scale is its E8M0 code. LowprecError for another
    format, another axis than the last, or a ragged last block.
    """
    require_shipped(q, "gpt-oss", "mxfp4")
    require_whole(q.shape[-1], _BLOCK, "gpt-oss")
    return pack_bits(q.codes, 4).reshape(*q.scales.shape, _BLOCK // 2), q.scales


def from_gpt_oss(blocks: Tensor, scales: Tensor) -> QTensor:
    """The mxfp4 tensor (..., groups * 32) of a checkpoint's blocks and scales.

    Its `dequantize` is transformers' `convert_moe_packed_tensors` before that transposes, except
    at scale code 255: a NaN here, 2^128 there. LowprecError unless both are uint8 and of such
    shapes.
    """
    require_rank(scales.shape, 1, "gpt-oss scales")
    require_bytes(scales, tuple(scales.shape), "gpt-oss scales")
    require_bytes(blocks, (*scales.shape, _BLOCK // 2), "gpt-oss blocks")
    codes = unpack_bits(blocks, 4, 2 * blocks.numel())
    shape = (*scales.shape[:-1], scales.shape[-1] * _BLOCK)
    return qtensor(load_format("mxfp4"), codes.reshape(shape), scales)
