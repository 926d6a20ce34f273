"""An attention that is written out in torch: which of its products is which."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowprec.errors import LowprecError

# A dictionary: torch.compile traces a look-up in one.
SOFTMAX = dict.fromkeys(
    (F.softmax, torch.softmax, torch.Tensor.softmax, torch.special.softmax, torch._safe_softmax),
    True,
)


class Pairing:
    """What has run of the attention of `module`, during one forward.

    Products of two activations before a softmax are of queries and keys. After it, one with an
    operand of the softmax's last two axes, or of fewer keys (a sink dropped), is of probabilities
    and values.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.open = ""  # the path of scores that wait for their softmax
        self.keeps_logits = False
        self.dropped = False
        self.logits: Tensor | None = None
        self._shape: tuple[int, ...] | None = None

    def scored(self, path: str, keeps_logits: bool) -> None:
        """A product of queries and keys has been computed."""
        self.open, self.keeps_logits = path or "the model", keeps_logits

    def softmaxed(self, input: Tensor, dim: Any = None, *_: Any, **__: Any) -> None:
        logits = input
        if not self.open:
            return
        if dim not in (-1, logits.dim() - 1):
            raise LowprecError(
                f"{self.open}: attention whose keys are not the last axis (dim={dim})"
            )
        self._shape, self.open = tuple(logits.shape[-2:]), ""
        self.logits = logits if self.keeps_logits else None

    def is_probability(self, x: Tensor) -> bool:
        if self._shape is None or x.dim() < 2:
            return False
        rows, keys = self._shape
        return x.shape[-2] == rows and x.shape[-1] <= keys

    def finish(self) -> None:
        """LowprecError where scores were computed and no softmax followed."""
        if self.open:
            raise LowprecError(
                f"{self.open}: a product was taken for scores of attention, and no softmax "
                "followed; keep its attention, or write it with scaled_dot_product_attention"
            )
