"""Tiny models with random weights, of each family that the tests need."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3MoeConfig,
)

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SIZES),
    "llama-tied": lambda: LlamaConfig(**SIZES, tie_word_embeddings=True),
    "gpt2": lambda: GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=96, n_positions=128, bos_token_id=1,
        eos_token_id=2, pad_token_id=0,
    ),
    "qwen3-moe": lambda: Qwen3MoeConfig(
        **SIZES, head_dim=16, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2
    ),
    "mixtral": lambda: MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
}  # fmt: skip


@pytest.fixture
def build() -> Callable[[str], PreTrainedModel]:
    """A model of the named family, in float32; the same weights every time."""

    def make(name: str) -> PreTrainedModel:
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.float32).eval()

    return make


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(3, 96, (2, 16), generator=torch.Generator().manual_seed(1))
