"""The definition through torch.compile, for devices other than the CPU: one fused kernel or two.

The numbers of a format reach the compiled code as tensors, so that formats of one structure (the
same blocks, the same kind of rule and rounding) share one compilation. What has more than a scale
per block and one per tensor is compiled for itself.
"""

from __future__ import annotations

import os
from dataclasses import fields, is_dataclass, replace
from functools import cache, lru_cache
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._triton import has_triton

from lowprec.kernels.arith import is_float32
from lowprec.kernels.block import BlockNumbers, numbers_of, scaled
from lowprec.kernels.element import Projector, projector
from lowprec.kernels.word import Word, word_of
from lowprec.spec.block import BlockFormat, Level
from lowprec.spec.catalogue import load_format
from lowprec.spec.quantizer import POWER_OF_TWO_RULES, Quantizer

# Triton divides and contracts approximately unless it is told not to, and flushes subnormals.
EXACT = {
    "emulate_precision_casts": True,
    "eager_numerics.division_rounding": True,
    "eager_numerics.disable_ftz": True,
}
# Structures that are compiled before torch gives up on compiling more.
STRUCTURES = 256
# Numbers that decide what is computed, not with what.
STRUCTURAL = ("random_bits", "trailing", "exponent_bits")
TABLES = ("thresholds", "answers")
T = TypeVar("T")


@cache
def serves(device: torch.device) -> bool:
    """Whether tensors of the device are computed here rather than operation by operation.
    LOWPREC_BACKEND=torch forces the latter; both give the same bits."""
    if device.type in ("cpu", "meta") or os.environ.get("LOWPREC_BACKEND") == "torch":
        return False
    return has_triton()


def define(
    x: Tensor,
    quantizer: Quantizer,
    axis: int,
    random: Tensor | None,
    scale: Tensor | None,
    out: Tensor | None = None,
) -> Tensor:
    """`calls.define`, compiled, into `out` if given. `x` has elements."""
    word, by, structure = word_of(x.dtype), None, None
    if isinstance(quantizer.format, BlockFormat):
        by = _numbers_on(quantizer, word, x.device)
        structure = _structure(quantizer) if _is_plain(quantizer) else quantizer
    else:
        by = _projector_on(quantizer, word, x.device)
    with torch._dynamo.config.patch(recompile_limit=STRUCTURES, specialize_int=True):
        return _function()(x, structure, axis, random, scale, by, out)


def _define(
    x: Tensor,
    quantizer: Quantizer | None,
    axis: int,
    random: Tensor | None,
    scale: Tensor | None,
    by: BlockNumbers | Projector,
    out: Tensor | None,
) -> Tensor:
    wide = x.to(word_of(x.dtype).dtype)
    if isinstance(by, Projector):
        y = by(wide, random)
    else:
        assert quantizer is not None
        y = scaled(wide, quantizer, axis, random, scale, by).values
    return y.to(x.dtype) if out is None else out.copy_(y)


@cache
def _function(backend: str = "inductor") -> object:
    options = EXACT if backend == "inductor" else None
    return torch.compile(_define, fullgraph=True, dynamic=True, backend=backend, options=options)


def _is_plain(quantizer: Quantizer) -> bool:
    fmt = quantizer.format
    assert isinstance(fmt, BlockFormat)
    return fmt.is_only_scaled and quantizer.rule in (*POWER_OF_TWO_RULES, "amax")


@lru_cache(maxsize=256)
def _structure(quantizer: Quantizer) -> Quantizer:
    """A quantizer of the same blocks, of which the compiled code sees nothing else."""
    fmt = quantizer.format
    assert isinstance(fmt, BlockFormat)
    return _blocks(fmt.block, fmt.outer.block if fmt.outer else None)


@cache
def _blocks(block: object, outer: object) -> Quantizer:
    number = load_format("float32")
    level = None if outer is None else Level(scale=number, block=outer)
    fmt = BlockFormat(name="blocks", element=number, scale=number, block=block, outer=level)
    return Quantizer(format=fmt, rule="amax")


@lru_cache(maxsize=256)
def _numbers_on(quantizer: Quantizer, word: Word, device: torch.device) -> BlockNumbers:
    return _as_tensors(numbers_of(quantizer, word), word, device)


@lru_cache(maxsize=256)
def _projector_on(quantizer: Quantizer, word: Word, device: torch.device) -> Projector:
    return _as_tensors(projector(quantizer.format, quantizer.projection, word), word, device)


def _as_tensors(value: T, word: Word, device: torch.device, name: str = "") -> T:
    """A dataclass of numbers with tensors of rank 0 in their place."""
    if isinstance(value, Word | bool) or name in STRUCTURAL:
        return value
    if is_dataclass(value):
        word = getattr(value, "word", word)
        parts = {f.name: getattr(value, f.name) for f in fields(value)}
        parts = {key: _as_tensors(part, word, device, key) for key, part in parts.items()}
        return replace(value, **parts)
    if name in TABLES:
        return torch.tensor(value, dtype=word.int_dtype, device=device)
    if isinstance(value, tuple):
        return tuple(_as_tensors(part, word, device, name) for part in value)
    if isinstance(value, int):
        return torch.tensor(value, dtype=word.int_dtype, device=device)
    if isinstance(value, float):
        dtype = torch.float32 if is_float32(value) else torch.float64
        return torch.tensor(value, dtype=dtype, device=device)
    return value
