"""Tiny models with random weights, and folders written as a checkpoint's own library would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    GptOssConfig,
    LlamaConfig,
    MixtralConfig,
    PreTrainedModel,
)
from transformers.core_model_loading import revert_weight_conversion

from lowprec.nn.stored.modules import StoredEmbedding, StoredExperts, StoredLinear

SIZES = {
    "vocab_size": 96,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
IDS = torch.arange(24)[None] * 7 % 96


def llama(**changes: Any) -> PreTrainedModel:
    return _build(LlamaConfig(**SIZES | changes))


def mixtral() -> PreTrainedModel:
    return _build(MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2))


def gpt_oss() -> PreTrainedModel:
    sizes = SIZES | {"intermediate_size": 64, "hidden_size": 64}
    return _build(GptOssConfig(**sizes, head_dim=16, num_local_experts=4, num_experts_per_tok=2))


def deepseek_v3(rope: int = 32) -> PreTrainedModel:
    return _build(
        DeepseekV3Config(
            **SIZES | {"num_key_value_heads": 4, "num_hidden_layers": 2},
            moe_intermediate_size=64,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            q_lora_rank=32,
            kv_lora_rank=32,
            qk_rope_head_dim=rope,
            qk_nope_head_dim=16,
            v_head_dim=32,
        )
    )


def _build(config: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "sinks")):  # zeros would hide a bias that goes astray
                parameter.uniform_(-0.5, 0.5)
    return model


def checkpoint(model: PreTrainedModel) -> dict[str, Tensor]:
    """The tensors of a model as its checkpoints name them, tied ones once."""
    state = {k: v for k, v in model.state_dict().items() if k not in model.all_tied_weights_keys}
    return {k: v.clone() for k, v in revert_weight_conversion(model, state).items()}


def write(folder: Path, model: PreTrainedModel, tensors: dict[str, Tensor], **config: Any) -> Path:
    """A model folder; `config` goes into config.json beside the model's own."""
    folder.mkdir(exist_ok=True)
    settings = {**model.config.to_diff_dict(), "architectures": [type(model).__name__], **config}
    (folder / "config.json").write_text(json.dumps(settings, default=str))
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
    return folder


def linears(model: PreTrainedModel) -> list[str]:
    """Paths of the nn.Linear but for the head."""
    found = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    return [name for name in found if name != "lm_head"]


def stored(model: PreTrainedModel) -> dict[str, Tensor]:
    """The values of every weight that is kept as codes, by the parameter's name."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, StoredLinear | StoredEmbedding):
            found[f"{name}.weight"] = module.weight
        elif isinstance(module, StoredExperts):
            found[name] = module.weight
    return found


def logits(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        return model(IDS).logits
