"""A tiny random Llama, a tokenizer of bytes, a GGUF file and a wheel, all made here."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lowprec.eval.fetch import Wheel

HEADS, KV_HEADS, LAYERS = 4, 2, 2


def byte_tokens() -> list[str]:
    """BOS, EOS, all bytes, and one pair, since a GGUF tokenizer has merges."""
    from tokenizers.pre_tokenizers import ByteLevel

    return ["<s>", "</s>", *sorted(ByteLevel.alphabet()), "qq"]


def byte_tokenizer(bos: bool = False) -> Any:
    """One token per byte, but for qq; with `bos`, sequences begin with <s>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(byte_tokens())}
    inner = Tokenizer(models.BPE(vocabulary, [("q", "q")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    if bos:
        inner.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")


def tiny_llama(seed: int = 0, **changes: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    settings = {"vocab_size": len(byte_tokens()), "hidden_size": 32, "intermediate_size": 64}
    settings |= {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    settings |= {"num_key_value_heads": KV_HEADS, "max_position_embeddings": 128}
    settings |= {"tie_word_embeddings": True, "initializer_range": 0.3, "bos_token_id": 0}
    return LlamaForCausalLM(LlamaConfig(**settings | {"eos_token_id": 1} | changes)).eval()


def write_gguf(model: Any, path: Path) -> None:
    """The model as llama.cpp stores it: float32, query and key rows in its rotary order."""
    from gguf import GGUFWriter

    writer, config = GGUFWriter(path, "llama"), model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(config.hidden_size // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(byte_tokens())
    writer.add_token_types([3, 3] + [1] * (config.vocab_size - 2))
    writer.add_token_merges(["q q"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight":
            writer.add_tensor(_gguf_name(name), _gguf_rows(name, tensor.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str) -> str:
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
    names |= {"model.layers": "blk", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k"}
    names |= {"self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output"}
    names |= {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    names |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    for old, new in names.items():
        name = name.replace(old, new)
    return name


def _gguf_rows(name: str, w: np.ndarray) -> np.ndarray:
    heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else 0
    if not heads:
        return w
    halves = w.reshape(heads, 2, -1, w.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(w.shape))


def write_wheel(folder: Path, package: str, files: dict[str, bytes]) -> Wheel:
    """A real wheel ``package==1.0`` in `folder` that pip accepts, and its description."""
    info = f"{package}-1.0.dist-info"
    meta = {f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n".encode()}
    meta[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    meta[f"{info}/RECORD"] = b""
    path = folder / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**files, **meta}.items():
            archive.writestr(name, data)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return Wheel(requirement=f"{package}==1.0", file=path.name, sha256=sha256)
