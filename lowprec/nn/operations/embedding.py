"""Embeddings, whose rows are quantized along the embedding dimension."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from lowprec.nn.emulation import Emulator, handles
from lowprec.nn.site import Site
from lowprec.spec import BlockFormat, Quantizer


@handles(F.embedding)
def _embedding(mode: Emulator, input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Any:
    site = mode.site("embedding", weight)
    if site is None:
        return NotImplemented
    with mode.emulating(site):
        if _by_rows(site.rule.weight):
            y = site.operand("weight", F.embedding(input, weight, *args, **kwargs))
        else:
            y = F.embedding(input, _whole(site, weight), *args, **kwargs)
        return site.operand("output", y)


@handles(F.embedding_bag)
def _embedding_bag(
    mode: Emulator, /, input: Tensor, weight: Tensor, *args: Any, **kwargs: Any
) -> Any:
    site = mode.site("embedding", weight)
    if site is None:
        return NotImplemented
    with mode.emulating(site):
        y = F.embedding_bag(input, _whole(site, weight), *args, **kwargs)
        return site.operand("output", y)


def _by_rows(quantizer: Quantizer | None) -> bool:
    """Whether a row's values depend on that row alone, so that the rows used need be quantized
    and no others."""
    if quantizer is None or not isinstance(quantizer.format, BlockFormat):
        return True
    block = quantizer.format.block
    tiles = not isinstance(block, str) and len(block) > 1
    return not (tiles or quantizer.is_per_tensor or quantizer.rule == "static")


def _whole(site: Site, weight: Tensor) -> Tensor:
    return site.weight(weight, -1)
