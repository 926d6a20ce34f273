"""Sparse attention with an indexer (DeepSeek Sparse Attention) while it is traced.

The indexer scores every cached position for every query with small heads of its own, and the
attention sees the best `index_topk`. Its scores are recorded as an attention with one value per
position, the sum over heads; they are read once more to choose among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from torch import Tensor, nn

from lowprec.nn.tracing.recorder import Recorder


def indexed(model: nn.Module) -> list[nn.Module]:
    """The attention modules of `model` whose positions an indexer chooses, theirs or another's."""
    return [module for module in model.modules() if "indexer" in dir(module)]


@contextmanager
def recorded(model: nn.Module, recorder: Recorder, context: int) -> Iterator[None]:
    """While active, the indexers of `model` record, behind `context` cached positions."""

    def forward(self: Any, hidden: Tensor, latent: Tensor, *_: Any, **__: Any) -> Tensor:
        batch, tokens, _width = hidden.shape
        query = self.wq_b(latent).view(batch, tokens, self.n_heads, self.head_dim)
        key = self.k_norm(self.wk(hidden)).unsqueeze(1)
        self.weights_proj(hidden)
        keys = key.new_empty((batch, 1, context + tokens, self.head_dim))
        recorder.vector("kv_cache", [key], [keys[:, :, context:]])
        recorder.attention(query.transpose(1, 2), keys, keys[..., :1], True, value_in_key=True)
        scores = hidden.new_empty((batch, tokens, context + tokens))
        chosen = hidden.new_empty((batch, tokens, self.index_topk))
        recorder.vector("topk", [scores], [chosen])
        return chosen

    found = [module.indexer for module in indexed(model) if module.indexer is not None]
    handles = [
        module.register_forward_pre_hook(_with_mask, with_kwargs=True) for module in indexed(model)
    ]
    for indexer in found:
        indexer.forward = MethodType(forward, indexer)
    try:
        yield
    finally:
        for indexer in found:
            del indexer.forward
        for handle in handles:
            handle.remove()


def _with_mask(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The caller takes a slice of the mask, which nothing needs."""
    hidden = args[0] if args else kwargs["hidden_states"]
    return args, kwargs | {"attention_mask": hidden.new_empty((hidden.shape[0], 1, 1, 1))}
