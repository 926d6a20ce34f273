"""Exact products on the processor's bfloat16 units.

Values of at most 8 significant bits times a power of two are bfloat16 values, and the product of
two is a float32 value: units that multiply bfloat16 and add in float32 (AMX, AVX512-BF16) then
lose nothing that a float32 matmul keeps. Only the order of the sums differs. These units take
subnormals for zero, so no product may lie below 2^-126.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, lru_cache
from threading import Lock

import torch
from torch import Tensor

from lowprec.spec import BlockFormat, CodebookFormat, FloatFormat, IntFormat, Quantizer, Rule
from lowprec.spec.quantizer import POWER_OF_TWO_RULES

SIGNIFICANT_BITS = 8  # of bfloat16
SMALLEST = 2.0**-126  # normal float32
_setting = Lock()


@cache
def has_bfloat16_units() -> bool:
    """Whether this processor multiplies bfloat16 with float32 sums, and torch can tell it to."""
    supported = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return torch.backends.mkldnn.is_available() and supported


@lru_cache(maxsize=256)
def fits_bfloat16(quantizer: Quantizer | None) -> bool:
    """Whether every value the quantizer gives that is not below 2^-126 is a bfloat16 value."""
    if quantizer is None:
        return False
    element, fmt = quantizer.format, quantizer.format
    if isinstance(fmt, BlockFormat):
        if quantizer.rule not in POWER_OF_TWO_RULES or fmt.outer is not None:
            return False
        element = fmt.element
    match element:
        case FloatFormat():
            return element.precision <= SIGNIFICANT_BITS
        case IntFormat():
            return element.bits - element.signed <= SIGNIFICANT_BITS
        case CodebookFormat():
            return all(v != v or _significant_bits(v) <= SIGNIFICANT_BITS for v in element.values)
    return False


def _significant_bits(value: float) -> int:
    if abs(value) == float("inf"):
        return 1
    numerator, _ = abs(value).as_integer_ratio()
    return (numerator // (numerator & -numerator)).bit_length() if numerator else 0


def smallest(x: Tensor) -> float:
    """The smallest magnitude of a float32 tensor that is not zero; Inf where there is none."""
    if not x.numel():
        return float("inf")
    # Zero becomes the largest integer, every other pattern one less than itself.
    below = ((x.view(torch.int32) & 0x7FFFFFFF) - 1) & 0x7FFFFFFF
    pattern = int(below.amin()) + 1
    return float(torch.tensor(min(pattern, 0x7F800000), dtype=torch.int32).view(torch.float32))


def exactly(rule: Rule, x: Tensor, weight: Tensor) -> AbstractContextManager[None]:
    """Multiply these quantized operands on the processor's bfloat16 units, where it has them and
    they lose nothing; else as ever."""
    if torch.compiler.is_compiling() or not has_bfloat16_units() or x.device.type != "cpu":
        return nullcontext()
    if x.dtype != torch.float32 or not (
        fits_bfloat16(rule.weight) and fits_bfloat16(rule.activation)
    ):
        return nullcontext()
    exact = smallest(weight) * smallest(x) >= SMALLEST
    return bfloat16_products() if exact else nullcontext()


@contextmanager
def bfloat16_products() -> Iterator[None]:
    """Let float32 matmuls multiply in bfloat16. The setting is the process's own: a float32 matmul
    of another thread at this moment is multiplied so, too."""
    backend = torch.backends.mkldnn.matmul
    with _setting:
        before = backend.fp32_precision
        backend.fp32_precision = "bf16"
        try:
            yield
        finally:
            backend.fp32_precision = before
