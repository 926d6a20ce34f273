"""GGUF files made with gguf's own writer, read into codes; transformers expands the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GgufConfig,
    PreTrainedModel,
    Qwen2Config,
)

import lowprec as lp
from lowprec.checkpoints.gguf import row_order
from lowprec.checkpoints.hf_gguf import processor
from lowprec.errors import LowprecError
from lowprec.kernels import layouts
from lowprec.nn.stored.modules import StoredEmbedding, StoredLinear
from tests.checkpoints import tiny

SIZES = tiny.SIZES | {"hidden_size": 256, "intermediate_size": 512}
QUANTIZED_BY_GGUF = (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0)
OURS = {
    Type.Q2_K: "gguf_q2_k/minmax",
    Type.Q3_K: "gguf_q3_k/amax",
    Type.Q4_K: "gguf_q4_k/minmax",
    Type.Q5_K: "gguf_q5_k/minmax",
    Type.Q6_K: "gguf_q6_k/amax",
    Type.IQ4_NL: "gguf_iq4_nl/amax",
    Type.IQ4_XS: "gguf_iq4_xs/amax",
}


def model_of(family: str, **changes: Any) -> PreTrainedModel:
    if family == "llama":
        return tiny.llama(**SIZES | {"num_attention_heads": 8} | changes)
    config = {"qwen2": Qwen2Config, "gemma3": Gemma3TextConfig}[family]
    more = {"qwen2": {}, "gemma3": {"head_dim": 64, "sliding_window": 16}}[family]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config(**SIZES | more | changes), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.uniform_(-0.5, 0.5)
    return model.eval()


def write(path: Path, model: PreTrainedModel, family: str, kind: Type) -> None:
    """The model as llama.cpp converts it: Llama's q and k rows in ggml's order, Gemma's norms + 1;
    matrices of type `kind`, the embedding (and tied head) of Q8_0, the rest float32."""
    config, writer = model.config, gguf.GGUFWriter(path, family)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    if family == "gemma3":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_sliding_window(config.sliding_window)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    table = gguf.get_tensor_name_map(
        {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[family],
        config.num_hidden_layers,
    )
    for name, tensor in tiny.checkpoint(model).items():
        stem, _, last = name.rpartition(".")
        values = tensor
        if family == "llama" and stem.endswith(("q_proj", "k_proj")):
            heads = config.num_key_value_heads if "k_proj" in stem else config.num_attention_heads
            values = tensor.reshape(heads, 2, -1, tensor.shape[1]).transpose(1, 2)
            values = values.reshape(tensor.shape)
        if family == "gemma3" and "norm" in stem:
            values = tensor + 1
        put(
            writer,
            f"{table.get_name(stem)}.{last}",
            values,
            kind if "embed" not in stem else Type.Q8_0,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def put(writer: Any, name: str, values: Tensor, kind: Type) -> None:
    if values.dim() == 1:
        writer.add_tensor(name, values.numpy())
    elif kind in QUANTIZED_BY_GGUF:
        data = gguf.quantize(values.numpy(), kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    elif kind in OURS:
        data = layouts.to_gguf(lp.quantize(values, OURS[kind])).numpy()
        writer.add_tensor(name, data, raw_dtype=kind)
    elif kind == Type.BF16:
        writer.add_tensor(name, gguf.quantize(values.numpy(), kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, values.numpy().astype({Type.F16: np.float16}.get(kind, np.float32)))


def expanded(path: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    ).eval()


def compare(path: Path) -> PreTrainedModel:
    ours, theirs = lp.load_checkpoint(path), expanded(path)
    plain = dict(ours.named_parameters()) | tiny.stored(ours)
    for name, parameter in theirs.named_parameters():
        assert torch.equal(plain[name], parameter), name
    assert torch.equal(tiny.logits(ours), tiny.logits(theirs))
    return ours


@pytest.mark.parametrize("kind", [*QUANTIZED_BY_GGUF, *OURS], ids=lambda kind: kind.name)
def test_types(tmp_path: Path, kind: Type) -> None:
    path = tmp_path / "m.gguf"
    write(path, model_of("llama"), "llama", kind)
    ours = compare(path)
    linear = ours.get_submodule("model.layers.0.self_attn.q_proj")
    size, bytes_ = gguf.GGML_QUANT_SIZES[kind]
    assert linear.nbytes == 256 * 256 // size * bytes_
    assert isinstance(ours.get_input_embeddings(), StoredEmbedding)


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16], ids=lambda kind: kind.name)
def test_floats(tmp_path: Path, kind: Type) -> None:
    path = tmp_path / "m.gguf"
    write(path, model_of("llama"), "llama", kind)
    ours = compare(path)
    assert not any(isinstance(m, StoredLinear) for m in ours.modules())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_families(tmp_path: Path, family: str, tied: bool) -> None:
    path = tmp_path / "m.gguf"
    write(path, model_of(family, tie_word_embeddings=tied), family, Type.Q5_0)
    ours = compare(path)
    shared = ours.lm_head.codes is ours.get_input_embeddings().codes
    assert shared == tied


def test_a_type_without_format(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path, model_of("llama"), "llama", Type.F32)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(96)
    for key in ("context", "embedding", "feed_forward"):
        getattr(writer, f"add_{key}_length")(256)
    writer.add_block_count(1)
    writer.add_head_count(4)
    data = np.zeros((96, 34), np.uint8)
    writer.add_tensor("token_embd.weight", np.tile(data, (1, 8))[:, :66], raw_dtype=Type.IQ2_XXS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(LowprecError, match=r"token_embd\.weight: type IQ2_XXS; expected F32"):
        lp.load_checkpoint(path)


def test_rows_that_are_taken_apart() -> None:
    permuted = processor("llama", {"num_attention_heads": 2, "num_key_value_heads": 1})
    rows = row_order((8, 32), permuted, "blk.0.attn_q.weight")
    assert rows.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert row_order((8, 32), permuted, "blk.0.attn_v.weight").tolist() == list(range(8))
    transposed = processor("gpt2", {})
    assert row_order((8, 32), transposed, "blk.0.ffn_up.weight") is None
    assert row_order((4, 8, 32), permuted, "blk.0.ffn_up_exps.weight") is None
