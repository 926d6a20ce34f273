"""Quantized weights, kept as code points between the calls that use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from lowprec.errors import LowprecError
from lowprec.kernels import QTensor, cpu, fake_quantize, quantize
from lowprec.spec import BlockFormat, Quantizer

_MOST_BITS = 8  # of an element; the codes of wider ones save little beside the values


def are_small(quantizer: Quantizer) -> bool:
    """Whether the code points take one byte each."""
    fmt = quantizer.format
    element = fmt.element if isinstance(fmt, BlockFormat) else fmt
    return element.bits <= _MOST_BITS


@dataclass(frozen=True)
class _Kept:
    owner: StorageWeakRef
    version: int
    made: QTensor | Tensor | int


class Weights:
    """The code points of parameters and of views of them, such as one expert's weight.

    A parameter's own values stay as they are. What the CPU core quantizes at once is quantized at
    every call, and only its largest magnitude kept; of the rest the code points lie beside the
    values, one byte an element, and are decoded at every call. An in-place change of the parameter
    (an optimizer's, load_state_dict's) counts its version up, another device or dtype is another
    storage: either way it is quantized again. Writing through ``.data`` goes unseen where code
    points are kept.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], _Kept] = {}

    def get(
        self, weight: Tensor, quantizer: Quantizer, axis: int, scale: Tensor | None = None
    ) -> Tensor:
        """fake_quantize(weight, quantizer, axis), bit for bit, without a gradient."""
        weight = weight.detach()
        if scale is None and cpu.covers(weight, quantizer, axis):
            return self._at_once(weight, quantizer, axis)
        codes = self.codes(weight, quantizer, axis, scale)
        if codes is None:
            return fake_quantize(weight, quantizer, axis=axis, scale=scale)
        wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
        return codes.dequantize(wide).to(weight.dtype)

    def _at_once(self, weight: Tensor, quantizer: Quantizer, axis: int) -> Tensor:
        amax = None
        if cpu.needs_largest(weight, quantizer, axis):
            amax = self.kept(weight, ("largest",), lambda: cpu.largest(weight))
            assert isinstance(amax, int)
        found = cpu.fake_quantize(weight, quantizer, axis, amax=amax)
        assert found is not None
        return found

    def codes(
        self, weight: Tensor, quantizer: Quantizer, axis: int, scale: Tensor | None = None
    ) -> QTensor | None:
        """The code points of `weight`; None where it has none (NaN) or they would save nothing."""
        if not are_small(quantizer) or weight.device.type == "meta":
            return None

        def make() -> QTensor | None:
            try:
                return quantize(weight, quantizer, axis=axis, scale=scale)
            except LowprecError:
                return None

        found = self.kept(weight, ("codes", axis), make)
        assert found is None or isinstance(found, QTensor)
        return found

    def kept(
        self,
        weight: Tensor,
        what: tuple[Any, ...],
        make: Callable[[], QTensor | Tensor | int | None],
    ) -> QTensor | Tensor | int | None:
        """What `make` gives for `weight`, and gave before if the weight is the same since; None is
        not kept. what: the same for the same `make`."""
        key = (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype, *what)
        version = 0 if weight.is_inference() else weight._version
        kept = self._kept.get(key)
        if kept is not None and kept.version == version and not kept.owner.expired():
            return kept.made
        self._kept = {k: v for k, v in self._kept.items() if not v.owner.expired()}
        found = make()
        if found is not None:
            self._kept[key] = _Kept(StorageWeakRef(weight.untyped_storage()), version, found)
        return found

    def forget(self) -> None:
        """Nothing is kept any more: what was made depended on more than the weight."""
        self._kept = {}

    def __len__(self) -> int:
        """How many weights are kept."""
        return len(self._kept)

    def __deepcopy__(self, memo: dict[int, Any]) -> Weights:
        return Weights()
