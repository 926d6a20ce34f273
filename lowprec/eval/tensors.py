"""What quantization does to each operand of a model, in the place where it occurs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from lowprec.kernels import QTensor, decode, encode
from lowprec.nn.emulation import Emulated, sites_of
from lowprec.nn.site import Site
from lowprec.spec import BlockFormat, Format, Quantizer

# A number counts as clipped beyond the largest of its block by more than the rounding of a scale
# to float32.
_SLACK = 2.0**-20


@dataclass(frozen=True)
class TensorError:
    """Of one operand. sqnr_db: see `sqnr_db`; max_error: largest |x - q|, in the tensor's unit;
    cosine: of x and q as vectors; clipped: share of elements outside of what their block can hold,
    None where `clipped` cannot say; flushed: share that is not 0 and becomes 0."""

    sqnr_db: float
    max_error: float
    cosine: float
    clipped: float | None
    flushed: float


@dataclass
class _Sums:
    """An operand's numbers over all calls, in float64."""

    count: int = 0
    signal: float = 0.0
    quantized: float = 0.0
    product: float = 0.0
    noise: float = 0.0
    worst: float = 0.0
    clipped: float | None = 0.0
    flushed: int = 0

    def add(self, x: Tensor, q: QTensor) -> None:
        y = q.dequantize(x.dtype)
        outside = clipped(x, y, q)
        self.clipped = None if outside is None or self.clipped is None else self.clipped + outside
        self.count += x.numel()
        self.flushed += int(((y == 0) & (x != 0)).sum())
        x, y = x.double(), y.double()
        self.signal += x.square().sum().item()
        self.quantized += y.square().sum().item()
        self.product += (x * y).sum().item()
        noise = x - y
        self.worst = max(self.worst, noise.abs().max().item() if x.numel() else 0.0)
        self.noise += noise.square_().sum().item()

    def error(self) -> TensorError:
        norms = math.sqrt(self.signal * self.quantized)
        return TensorError(
            sqnr_db=_decibels(self.signal, self.noise),
            max_error=self.worst,
            cosine=self.product / norms if norms else float(self.signal == self.quantized),
            clipped=None if self.clipped is None else self.clipped / max(1, self.count),
            flushed=self.flushed / max(1, self.count),
        )


def tensor_error(x: Tensor, q: QTensor) -> TensorError:
    """The measures of one tensor and what it was quantized to."""
    sums = _Sums()
    sums.add(x, q)
    return sums.error()


def sqnr_db(x: Tensor, quantized: Tensor) -> float:
    """``10 log10(sum x^2 / sum (x - quantized)^2)`` in dB, the sums in float64.

    Inf where both are equal, -Inf where only `x` is all zero, NaN where one holds NaN or Inf.
    """
    noise = (x.double() - quantized.double()).square().sum().item()
    return _decibels(x.double().square().sum().item(), noise)


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    if not math.isfinite(noise):
        return math.nan
    return 10 * math.log10(signal / noise) if signal else -math.inf


def clipped(x: Tensor, y: Tensor, q: QTensor) -> int | None:
    """How many elements of `x`, which `q` holds as `y`, lie outside of the values of their blocks:
    beyond what the largest or the smallest code stands for. None for a format with outliers, or
    with scales of either sign, where it is not the code that says which end that is."""
    fmt = q.quantizer.format
    element = fmt
    if isinstance(fmt, BlockFormat):
        element = fmt.element
        signed = q.scales is not None and fmt.scale.min < 0
        if fmt.outlier is not None or (signed and bool((decode(q.scales, fmt.scale) < 0).any())):
            return None
    low, high = _ends(element)
    slack = y.abs() * _SLACK
    above = (q.codes == high) & (x > y + slack)
    return int((above | ((q.codes == low) & (x < y - slack))).sum())


@cache
def _ends(element: Format) -> tuple[int, int]:
    """The codes of the least and the largest value."""
    ends = torch.tensor([float(element.min), float(element.max)], dtype=torch.float64)
    low, high = encode(ends, element).tolist()
    return low, high


class Recorder:
    """Stands in for a site's calibration statistics: it sees every operand, and the site leaves
    them all as they are meanwhile, so that they are those of the unquantized model."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.quantizers = dict(site.quantizers())
        self.sums: dict[str, _Sums] = {}

    def see(self, name: str, x: Tensor, axis: int) -> None:
        quantizer: Quantizer | None = self.quantizers.get(name)
        if quantizer is None or not x.numel():
            return
        rows = x.detach().movedim(axis, -1)
        # Every expert's matrix has a scale of its own.
        apart = name == "weight" and rows.dim() > 2 and quantizer.is_per_tensor
        for part in rows if apart else [rows]:
            whole = part.contiguous()
            whole = whole if whole.dtype in (torch.float32, torch.float64) else whole.float()
            seed = None if quantizer.projection.bits is None else 0
            codes = self.site.codes_with(seed, name, quantizer, whole, training=False)
            self.sums.setdefault(name, _Sums()).add(whole, codes)

    def multiplied(self, *_: Any) -> None:
        pass


@torch.inference_mode()
def operand_errors(model: nn.Module, ids: Tensor) -> list[dict[str, Any]]:
    """A row per quantized operand of the wrapped, calibrated `model`, for one pass over `ids`
    [n, L]: path, operation, operand and the fields of `TensorError`.

    The operands are those of the unquantized model, so that a row speaks of one place and not of
    those before it; transformed where the recipe transforms them, weights rounded to nearest where
    it says gptq. An operand that the tokens do not reach, and a KV cache, have no row.
    """
    with recorders(model) as found:
        model(input_ids=ids, use_cache=False)
    return error_rows(found)


def error_rows(found: Sequence[Recorder]) -> list[dict[str, Any]]:
    """The rows of `operand_errors`, of what was seen."""
    return [
        {"path": r.site.path, "operation": r.site.operation, "operand": name} | asdict(sums.error())
        for r in found
        for name, sums in r.sums.items()
    ]


@contextmanager
def recorders(model: nn.Module) -> Iterator[list[Recorder]]:
    """All operands of `model` are as they are and seen meanwhile."""
    sites = [site for m in model.modules() if isinstance(m, Emulated) for site in sites_of(m)]
    found = [Recorder(site) for site in sites]
    try:
        for each in found:
            each.site.statistics = each
        yield found
    finally:
        for site in sites:
            site.statistics = None
