"""Quantized weights, kept as code points between the calls that use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from lowprec.errors import LowprecError
from lowprec.kernels import QTensor, fake_quantize, quantize
from lowprec.spec import BlockFormat, Quantizer

_MOST_BITS = 8  # of an element; the codes of wider ones save little beside the values


@dataclass(frozen=True)
class _Kept:
    owner: StorageWeakRef
    version: int
    codes: QTensor


class Weights:
    """The code points of parameters and of views of them, such as one expert's weight.

    A parameter's own values stay as they are; beside them lie the code points, one byte an element,
    and the values are made anew at every call. An in-place change of the parameter (an optimizer's,
    load_state_dict's) counts its version up, another device or dtype is another storage: either
    way it is quantized again. Only writing through ``.data`` goes unseen.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], _Kept] = {}

    def get(
        self, weight: Tensor, quantizer: Quantizer, axis: int, scale: Tensor | None = None
    ) -> Tensor:
        """fake_quantize(weight, quantizer, axis), bit for bit, without a gradient."""
        codes = self.codes(weight, quantizer, axis, scale)
        if codes is None:
            return fake_quantize(weight.detach(), quantizer, axis=axis, scale=scale)
        wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
        return codes.dequantize(wide).to(weight.dtype)

    def codes(
        self, weight: Tensor, quantizer: Quantizer, axis: int, scale: Tensor | None = None
    ) -> QTensor | None:
        """The code points of `weight`; None where it has none (NaN) or they would save nothing."""
        fmt = quantizer.format
        element = fmt.element if isinstance(fmt, BlockFormat) else fmt
        if element.bits > _MOST_BITS or weight.device.type == "meta":
            return None
        key = (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype, axis)
        version = 0 if weight.is_inference() else weight._version
        kept = self._kept.get(key)
        if kept is not None and kept.version == version and not kept.owner.expired():
            return kept.codes
        self._kept = {k: v for k, v in self._kept.items() if not v.owner.expired()}
        try:
            found = quantize(weight, quantizer, axis=axis, scale=scale)
        except LowprecError:
            return None
        self._kept[key] = _Kept(StorageWeakRef(weight.untyped_storage()), version, found)
        return found

    def __len__(self) -> int:
        """How many weights are kept."""
        return len(self._kept)

    def __deepcopy__(self, memo: dict[int, Any]) -> Weights:
        return Weights()
