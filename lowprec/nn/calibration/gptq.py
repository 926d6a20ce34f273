"""GPTQ: weights rounded column by column, each column's error made up for by those after it.

Frantar et al., arXiv 2210.17323. With H = x.T x over the calibrated rows x, `damping` of its mean
diagonal added to the diagonal, and U the upper Cholesky factor of H^-1, column j of w (N, K) is
rounded, and the columns after it lose (w_j - w'_j) / U_jj * U_j,after. Columns go in their own
order (no "act-order"). Scales, and all else that elements share, are those of the unmodified
weight; an element that the corrections drive beyond them saturates. A channel that is zero in every
row is rounded to nearest.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import QTensor, quantize
from lowprec.kernels.fixed import Fixed, fixed
from lowprec.kernels.ops import text_of
from lowprec.spec import Quantizer

_COLUMNS = 128  # corrected at once beyond themselves: matmuls instead of vectors


@dataclass(frozen=True)
class Rounded:
    """GPTQ's elements for one matrix: code points of its own shape; digest: CRC-32 of the bytes of
    the weight that they are for."""

    codes: Tensor
    digest: int


def gptq(
    weight: Tensor,
    hessian: Tensor,
    quantizer: Quantizer,
    damping: float,
    scale: Tensor | None = None,
    where: str = "",
) -> Tensor:
    """Code points of `weight` (N, K) rounded against `hessian` (K, K), under the scales of
    ``quantize(weight, quantizer)``, so that ``(w - w') H (w - w').T`` is small.

    LowprecError, which begins with `where`: NaN or Inf in the Hessian, or one that is not positive
    definite with the damping added.
    """
    factor = _factor(hessian, damping, where).to(weight.dtype)
    grid = fixed(weight, quantizer, scale)
    # Column by column in memory.
    w = weight.T.clone(memory_format=torch.contiguous_format)
    elements = torch.empty_like(w, dtype=grid.dtype)
    for start in range(0, len(w), _COLUMNS):
        end = min(start + _COLUMNS, len(w))
        errors = _round_columns(w, factor, grid, elements, start, end)
        w[end:] -= factor[start:end, end:].T @ errors
    return grid.codes(elements.T.contiguous())


def _round_columns(
    w: Tensor, factor: Tensor, grid: Fixed, elements: Tensor, start: int, end: int
) -> Tensor:
    """The errors (end - start, N) of these columns of w.T, each over its diagonal element; their
    elements are written, and what they do to each other is done."""
    errors = torch.empty_like(w[start:end])
    for j in range(start, end):
        elements[j], values = grid.column(w[j], j)
        error = torch.div(w[j] - values, factor[j, j], out=errors[j - start])
        w[j + 1 : end].addr_(factor[j, j + 1 : end], error, alpha=-1)
    return errors


def _factor(hessian: Tensor, damping: float, where: str) -> Tensor:
    """The upper Cholesky factor of the damped Hessian's inverse, in float64."""
    h = hessian.double()
    diagonal = h.diagonal()
    added = damping * diagonal.mean()
    h = h + torch.diag(torch.where(diagonal == 0, 1.0, 0.0) + added)
    lower, wrong = torch.linalg.cholesky_ex(h)
    if int(wrong) or not bool(lower.isfinite().all()):
        raise LowprecError(
            f"{where or 'gptq'}: the Hessian is not positive definite with damping={damping}; "
            "raise transform.damping, or calibrate on finite activations"
        )
    return torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True)


def place(weight: Tensor) -> int:
    """Which matrix of its parameter `weight` is: 0, or an expert's number."""
    whole = weight._base
    if whole is None or whole.dim() < 3 or weight.dim() > 2:
        return 0
    return (weight.storage_offset() - whole.storage_offset()) // whole.stride(0)


def fingerprint(weight: Tensor) -> int:
    """CRC-32 of the bytes of a tensor."""
    data = weight.detach().cpu().contiguous().view(torch.uint8)
    return zlib.crc32(data.numpy().data)


def with_codes(
    changed: Tensor,
    weight: Tensor,
    found: Rounded,
    quantizer: Quantizer,
    axis: int,
    scale: Tensor | None = None,
) -> QTensor:
    """``quantize(changed, quantizer, axis)`` with GPTQ's elements in place of the nearest.

    LowprecError: `weight`, of which `changed` is the transformed, is not the calibrated one.
    """
    if fingerprint(weight) != found.digest:
        raise LowprecError(
            f"a weight of shape {tuple(weight.shape)} has changed since gptq rounded it; run "
            "lowprec.calibrate(model, batches) again"
        )
    nearest = quantize(changed, quantizer, axis=axis, scale=scale)
    return replace(nearest, codes=found.codes.to(changed.device))


def rounded(
    changed: Tensor,
    weight: Tensor,
    found: Rounded,
    quantizer: Quantizer,
    axis: int,
    scale: Tensor | None = None,
) -> Tensor:
    """The values of `with_codes`, straight-through, also under torch.compile."""
    return _operator(changed, weight, found.codes, found.digest, _text_of(quantizer), axis, scale)


@torch.compiler.assume_constant_result
def _text_of(quantizer: Quantizer) -> str:
    return text_of(quantizer)


@torch.library.custom_op("lowprec::gptq_values", mutates_args=())
def _operator(
    changed: Tensor,
    weight: Tensor,
    codes: Tensor,
    digest: int,
    quantizer: str,
    axis: int,
    scale: Tensor | None,
) -> Tensor:
    spec = Quantizer.model_validate_json(quantizer)
    q = with_codes(changed, weight, Rounded(codes, digest), spec, axis, scale)
    return q.dequantize(changed.dtype)


@_operator.register_fake
def _(changed: Tensor, *_: object) -> Tensor:
    return torch.empty_like(changed)


_operator.register_autograd(lambda _, gradient: (gradient, *[None] * 6))
