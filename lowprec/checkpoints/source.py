"""What a checkpoint holds, whatever wrote it: plain tensors and quantized ones, read one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lowprec.kernels import QTensor
from lowprec.nn.stored.modules import Activation


@dataclass(frozen=True)
class Plain:
    """A tensor that is used as it is; `read` reads it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]


@dataclass(frozen=True)
class Quantized:
    """A weight in codes: one matrix (N, K), `shape`, or a stack of such, one for each expert.

    matrices: read them, each by itself. stacked: whether the parameter has an axis of experts.
    transposed: whether the model holds (K, N).
    """

    shape: tuple[int, int]
    matrices: tuple[Callable[[], QTensor], ...]
    activation: Activation | None = None
    stacked: bool = False
    transposed: bool = False

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        matrix = self.shape[::-1] if self.transposed else self.shape
        return (len(self.matrices), *matrix) if self.stacked else matrix


@dataclass(frozen=True)
class Checkpoint:
    """A model's configuration (transformers') and its tensors, by the names of their parameters.

    where: the file or folder, for messages. set_aside: names of tensors that are read by nothing,
    and why.
    """

    where: str
    config: Any
    plain: dict[str, Plain]
    quantized: dict[str, Quantized]
    set_aside: dict[str, str]
