"""The largest magnitude that a static scale is made for, from what a calibration pass saw."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import fake_quantize
from lowprec.kernels.blocking import members
from lowprec.nn.calibration.scales import block_sizes, scale_of
from lowprec.spec import BlockFormat, Quantizer

_BINS = 1 << 15  # the magnitudes of bfloat16
_CANDIDATES = [j / 64 for j in range(64, 15, -1)]


@dataclass(frozen=True)
class Method:
    """How the largest magnitude A is chosen: of all there is (max), the smallest that `percent` of
    the elements do not exceed (percentile), or of A * j/64 for j = 64 ... 16 the one with the least
    sum of squared errors, of equals the largest (mse)."""

    name: str
    percent: float = 100.0

    @classmethod
    def parse(cls, text: str) -> Method:
        """``max``, ``mse`` or ``percentile:99.9``."""
        name, colon, number = text.partition(":")
        try:
            percent = float(number) if colon else 100.0
        except ValueError:
            percent = math.nan
        if name in ("max", "mse") and not colon:
            return cls(name)
        if name == "percentile" and colon and 0 < percent <= 100:
            return cls(name, percent)
        raise LowprecError(f"method {text!r}: expected max, mse or percentile:99.9")


class Activations:
    """Static scales of an operand that changes: one for each block along a last axis, the same in
    all other dimensions; else one.

    Under percentile and mse magnitudes are counted on bfloat16's grid, rounded up to it: 256 KiB a
    scale, in place of the activations.
    """

    def __init__(self, quantizer: Quantizer, method: Method, where: str) -> None:
        fmt = quantizer.format
        assert isinstance(fmt, BlockFormat)
        if method.name == "mse" and fmt.outer is not None:
            raise LowprecError(
                f"{where}: {quantizer.spell()} refines the calibrated scale by each block's own, "
                "which mse cannot foresee; expected method max or percentile"
            )
        self.quantizer, self.method, self.where = quantizer, method, where
        self.found: Tensor | None = None  # magnitudes, or counts [blocks, bins]

    def see(self, x: Tensor, axis: int) -> None:
        if not x.numel():
            return
        rows = self._rows(x.detach(), axis)
        if self.method.name == "max":
            found = rows.amax(0).amax(-1)
            self.found = found if self.found is None else torch.maximum(self.found, found)
            return
        pattern = (rows.contiguous().view(torch.int32).long() + 0xFFFF) >> 16
        blocks = rows.shape[1]
        pattern += torch.arange(blocks, device=x.device).view(1, -1, 1) * _BINS
        counts = torch.bincount(pattern.flatten(), minlength=blocks * _BINS).view(blocks, _BINS)
        counts[-1, 0] -= rows.numel() - x.numel()  # the zeros of a ragged end
        self.found = counts if self.found is None else self.found + counts

    def _rows(self, x: Tensor, axis: int) -> Tensor:
        """Magnitudes, float32 [n, blocks, elements], zeros at a ragged end."""
        size = block_sizes(self.quantizer, tuple(x.shape), axis)[axis]
        length = x.shape[axis]
        last = axis in (-1, x.dim() - 1)
        if not last or size >= length or self._is_whole:
            return x.abs().float().reshape(1, 1, -1)
        rows = torch.nn.functional.pad(x.abs().float().reshape(-1, length), (0, -length % size))
        return rows.unflatten(-1, (-1, size))

    @property
    def _is_whole(self) -> bool:
        fmt = self.quantizer.format
        assert isinstance(fmt, BlockFormat)
        return (fmt.outer.block if fmt.outer else fmt.block) == "tensor"

    def scale(self) -> Tensor | None:
        """Of rank 1, one for each block, or of rank 0; None where nothing was seen."""
        if self.found is None:
            return None
        amax = self.found if self.method.name == "max" else self._from_counts(self.found)
        _require_finite(amax, self.where)
        found = scale_of(amax, self.quantizer).cpu()
        return found if len(found) > 1 else found[0]

    def _from_counts(self, counts: Tensor) -> Tensor:
        if self.method.name == "percentile":
            within = counts.cumsum(1)
            needed = (within[:, -1:].double() * (self.method.percent / 100)).ceil().long()
            return _values((within < needed).sum(1))
        return torch.stack([self._least_error(each) for each in counts])

    def _least_error(self, counts: Tensor) -> Tensor:
        bins = counts.nonzero()[:, 0]
        x, weights = _values(bins)[None], counts[bins].double()
        fmt = self.quantizer.format
        one = self.quantizer.model_copy(
            update={"format": fmt.model_copy(update={"block": "tensor"})}
        )
        best, least = x[0, -1], math.inf
        if not bool(best.isfinite()):
            return best
        for factor in _CANDIDATES:
            scale = scale_of(x[0, -1] * factor, self.quantizer).view(1, 1)
            y = fake_quantize(x, one, scale=scale)
            error = float(((x.double() - y.double()).square()[0] * weights).sum())
            if error < least:
                best, least = x[0, -1] * factor, error
        return best


def weight_scale(
    weight: Tensor, quantizer: Quantizer, axis: int, method: Method, where: str
) -> Tensor:
    """Static scales of a weight that stays: one for each of its blocks."""
    sizes = block_sizes(quantizer, tuple(weight.shape), axis)
    weight = weight.detach().float()
    numbers = members(weight.abs(), sizes)
    amax = numbers.amax(-1)
    if method.name == "percentile":
        real = members(torch.ones_like(weight), sizes).sum(-1)
        rank = (numbers.shape[-1] - real) + (real.double() * (method.percent / 100)).ceil() - 1
        amax = numbers.sort(-1).values.gather(-1, rank.long().unsqueeze(-1))[..., 0]
    _require_finite(amax, where)
    if method.name == "mse":
        amax = _least_errors(weight, quantizer, axis, sizes, amax)
    return _ranked(scale_of(amax, quantizer), quantizer)


def _least_errors(
    weight: Tensor, quantizer: Quantizer, axis: int, sizes: tuple[int, ...], amax: Tensor
) -> Tensor:
    best, least = amax, torch.full_like(amax, torch.inf, dtype=torch.float64)
    for factor in _CANDIDATES:
        scale = _ranked(scale_of(amax * factor, quantizer), quantizer)
        y = fake_quantize(weight, quantizer, axis=axis, scale=scale)
        error = members((weight.double() - y.double()).square(), sizes).sum(-1)
        best = torch.where(error < least, amax * factor, best)
        least = torch.minimum(error, least)
    return best


def _ranked(scale: Tensor, quantizer: Quantizer) -> Tensor:
    fmt = quantizer.format
    assert isinstance(fmt, BlockFormat)
    whole = fmt.outer is not None and fmt.outer.block == "tensor"
    return scale.reshape(()) if whole else scale


def _values(bins: Tensor) -> Tensor:
    """The magnitudes that the bins stand for."""
    return (bins << 16).to(torch.int32).view(torch.float32)


def _require_finite(amax: Tensor, where: str) -> None:
    if not bool(amax.isfinite().all()):
        raise LowprecError(f"{where}: NaN or Inf in what it was calibrated on")
