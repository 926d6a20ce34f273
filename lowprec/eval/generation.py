"""Do two models say the same? Greedy continuations of the same prompts, token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lowprec.errors import LowprecError
from lowprec.eval import statistics
from lowprec.eval.protocols import Protocol, windows_of
from lowprec.eval.text import Text

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Agreement:
    """Of continuations of `tokens` tokens to prompts that stand for independent draws.

    divergence: for each prompt the first place, from 0, where the two differ, and `tokens` where
    they never do. exact: share of prompts without a difference. agreeing: mean share of tokens in
    front of the first difference.
    """

    tokens: int
    divergence: tuple[int, ...]
    exact: statistics.Estimate
    agreeing: statistics.Estimate


def prompts_of(text: Text, tokenizer: Any, count: int, length: int) -> list[np.ndarray]:
    """The first `length` tokens of the first `count` documents that have as many; in a text of one
    document, disjoint windows of it. LowprecError where it has fewer."""
    if len(text.documents) == 1:
        windows = windows_of(text, tokenizer, Protocol(seqlen=length, windows=count))
        return list(windows.ids)
    found: list[np.ndarray] = []
    for document in text.documents:
        ids = tokenizer(document, verbose=False).input_ids[:length]
        if len(ids) == length and len(found) < count:
            found.append(np.array(ids, np.int64))
    if len(found) < count:
        raise LowprecError(
            f"{text.name}: {len(found)} documents of {length} tokens or more; asked for {count}"
        )
    return found


@torch.inference_mode()
def continuations(
    model: Any, prompts: Sequence[np.ndarray], tokens: int, progress: Progress | None = None
) -> list[list[int]]:
    """The `tokens` likeliest next tokens, one at a time, of each prompt for itself, through the
    model's own `generate` and its KV cache. An end of the sequence is not taken, so that all are of
    one length."""
    from transformers import GenerationConfig

    end = model.generation_config.eos_token_id
    how = GenerationConfig(
        max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, eos_token_id=end,
        pad_token_id=end[0] if isinstance(end, list) else end,
    )  # fmt: skip
    found = []
    for done, prompt in enumerate(prompts, 1):
        ids = torch.from_numpy(prompt)[None].to(getattr(model, "device", "cpu"))
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=how)
        found.append(out[0, ids.shape[1] :].tolist())
        if progress:
            progress(done, len(prompts))
    return found


def agreement(base: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> Agreement:
    """Compare continuations of the same prompts, all of one length, two prompts or more."""
    a, b = np.array(base), np.array(other)
    if a.shape != b.shape or a.ndim != 2:
        raise LowprecError(f"continuations of {a.shape} and {b.shape}: expected the same prompts")
    differ = a != b
    tokens = a.shape[1]
    first = np.where(differ.any(axis=1), differ.argmax(axis=1), tokens)
    alone = np.arange(len(a))
    return Agreement(
        tokens,
        tuple(int(n) for n in first),
        statistics.mean((first == tokens).astype(float), alone),
        statistics.mean(first / tokens, alone),
    )
