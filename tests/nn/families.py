"""Tiny models with random weights of the families that a recipe must reach in full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

TEXT = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
ENCODER = {key: value for key, value in TEXT.items() if key != "num_key_value_heads"}
VISION = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 8,
}


@dataclass(frozen=True)
class Family:
    """How to make the model and the inputs of one pass; the same ones at every call.

    generates: whether it is a text model with `generate`.
    """

    model: Callable[[], nn.Module]
    named: Callable[[], dict[str, Any]]
    generates: bool = True

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return self.model().eval()

    def inputs(self) -> dict[str, Any]:
        torch.manual_seed(1)
        return self.named()


def ids(tokens: int = 12) -> Tensor:
    return torch.randint(3, 96, (2, tokens))


def text() -> dict[str, Any]:
    return {"input_ids": ids(), "attention_mask": torch.ones(2, 12, dtype=torch.long)}


def causal(config: Callable[[], hf.PreTrainedConfig]) -> Family:
    return Family(lambda: hf.AutoModelForCausalLM.from_config(config(), dtype=torch.float32), text)


def pixels() -> Tensor:
    return torch.randn(2, 3, 16, 16)


class UNetBlock(nn.Module):
    """A diffusers-style block from torch alone: residual convolutions with a time embedding, and
    attention over the positions to itself and to a text."""

    def __init__(self, channels: int = 32, heads: int = 4, text: int = 24) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.GroupNorm(8, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.time = nn.Linear(channels, channels)
        self.norm2 = nn.GroupNorm(8, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm3 = nn.LayerNorm(channels)
        self.to_q = nn.Linear(channels, channels, bias=False)
        self.to_kv = nn.Linear(channels, 2 * channels, bias=False)
        self.to_kv_text = nn.Linear(text, 2 * channels, bias=False)
        self.to_out = nn.Linear(channels, channels)
        self.down = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(2 * channels, channels, 4, stride=2, padding=1)

    def forward(self, sample: Tensor, timestep: Tensor, text: Tensor) -> Tensor:
        hidden = self.conv1(F.silu(self.norm1(sample)))
        hidden = hidden + self.time(F.silu(timestep))[:, :, None, None]
        sample = sample + self.conv2(F.silu(self.norm2(hidden)))
        batch, channels, height, width = sample.shape
        tokens = sample.flatten(2).transpose(1, 2)
        for keys in (self.to_kv(self.norm3(tokens)), self.to_kv_text(text)):
            query = self.split(self.to_q(self.norm3(tokens)))
            key, value = (self.split(part) for part in keys.chunk(2, dim=-1))
            found = F.scaled_dot_product_attention(query, key, value)
            tokens = tokens + self.to_out(found.transpose(1, 2).flatten(2))
        sample = tokens.transpose(1, 2).reshape(batch, channels, height, width)
        return self.up(self.down(sample))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


FAMILIES: dict[str, Family] = {
    "llama": causal(lambda: hf.LlamaConfig(**TEXT)),
    "qwen3": causal(lambda: hf.Qwen3Config(**TEXT, head_dim=16)),
    "gemma3": causal(
        lambda: hf.Gemma3TextConfig(
            **TEXT,
            head_dim=16,
            query_pre_attn_scalar=16,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention"],
        )
    ),
    "mistral": causal(lambda: hf.MistralConfig(**TEXT, sliding_window=8)),
    "phi": causal(lambda: hf.PhiConfig(**TEXT)),
    "gpt2": causal(
        lambda: hf.GPT2Config(
            n_embd=64,
            n_layer=2,
            n_head=4,
            vocab_size=96,
            n_positions=128,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
    ),
    "gpt-neox": causal(lambda: hf.GPTNeoXConfig(**ENCODER)),
    "olmo": causal(lambda: hf.OlmoConfig(**TEXT)),
    "falcon": causal(
        lambda: hf.FalconConfig(
            vocab_size=96,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_kv_heads=2,
            new_decoder_architecture=True,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
    ),
    "falcon-alibi": causal(
        lambda: hf.FalconConfig(
            vocab_size=96,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            alibi=True,
            multi_query=False,
            new_decoder_architecture=False,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
    ),
    "mixtral": causal(lambda: hf.MixtralConfig(**TEXT, num_local_experts=4, num_experts_per_tok=2)),
    "qwen3-moe": causal(
        lambda: hf.Qwen3MoeConfig(
            **TEXT, head_dim=16, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2
        )
    ),
    "gpt-oss": causal(
        lambda: hf.GptOssConfig(
            **TEXT,
            head_dim=16,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        )
    ),
    "deepseek-v3": causal(
        lambda: hf.DeepseekV3Config(
            **{**TEXT, "num_key_value_heads": 4},
            q_lora_rank=24,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=16,
            v_head_dim=16,
            first_k_dense_replace=1,
            moe_intermediate_size=32,
            n_routed_experts=8,
            n_shared_experts=1,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
        )
    ),
    "mamba": causal(
        lambda: hf.MambaConfig(
            vocab_size=96,
            hidden_size=64,
            num_hidden_layers=2,
            state_size=8,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
    ),
    "bert": Family(lambda: hf.BertForMaskedLM(hf.BertConfig(**ENCODER)), text, generates=False),
    "t5": Family(
        lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(
                vocab_size=96,
                d_model=64,
                d_kv=16,
                d_ff=96,
                num_layers=2,
                num_heads=4,
                feed_forward_proj="gated-gelu",
                decoder_start_token_id=0,
                pad_token_id=0,
                eos_token_id=2,
            )
        ),
        lambda: {**text(), "decoder_input_ids": ids(6)},
    ),
    "whisper": Family(
        lambda: hf.WhisperForConditionalGeneration(
            hf.WhisperConfig(
                vocab_size=96,
                d_model=64,
                encoder_layers=2,
                decoder_layers=2,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=96,
                decoder_ffn_dim=96,
                num_mel_bins=8,
                max_source_positions=16,
                max_target_positions=32,
                decoder_start_token_id=1,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
                suppress_tokens=[],
                begin_suppress_tokens=[],
            )
        ),
        lambda: {"input_features": torch.randn(2, 8, 32), "decoder_input_ids": ids(6)},
        generates=False,
    ),
    "vit": Family(
        lambda: hf.ViTForImageClassification(hf.ViTConfig(**VISION, num_labels=5)),
        lambda: {"pixel_values": pixels()},
        generates=False,
    ),
    "clip": Family(
        lambda: hf.CLIPModel(
            hf.CLIPConfig(
                text_config={**ENCODER, "max_position_embeddings": 32},
                vision_config=VISION,
                projection_dim=32,
            )
        ),
        lambda: {"input_ids": ids(), "pixel_values": pixels()},
        generates=False,
    ),
    "llama4": causal(
        lambda: hf.Llama4TextConfig(
            **TEXT,
            head_dim=16,
            intermediate_size_mlp=96,
            num_local_experts=4,
            num_experts_per_tok=1,
            attention_chunk_size=16,
        )
    ),
    "llava": Family(
        lambda: hf.LlavaForConditionalGeneration(
            hf.LlavaConfig(
                text_config=hf.LlamaConfig(**TEXT),
                vision_config=hf.CLIPVisionConfig(**VISION),
                image_token_index=95,
                vision_feature_layer=-1,
            )
        ),
        lambda: {
            "input_ids": torch.cat([torch.full((2, 4), 95), ids(8).clamp(max=94)], dim=1),
            "pixel_values": pixels(),
        },
        generates=False,
    ),
    "unet-block": Family(
        UNetBlock,
        lambda: {
            "sample": torch.randn(2, 32, 8, 8),
            "timestep": torch.randn(2, 32),
            "text": torch.randn(2, 6, 24),
        },
        generates=False,
    ),
}
