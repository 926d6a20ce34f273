"""A tiny random Llama in a folder, a text and a study of both, for tests of whole commands."""

from __future__ import annotations

from pathlib import Path

WORDS = "the cat sat on a mat while seven grey birds sang over the quiet harbour".split()  # noqa: SIM905 - a sentence

STUDY = """
name = "tiny"
seed = 1

[accuracy]
model = "./model"
text = "text.txt"
length = 32
windows = 3

[throughput]
models = ["./model"]
machines = ["b200", "h100_sxm"]

[[throughput.workloads]]
phase = "decode"
batch = [1, 4]
context = 16

[[recipes]]
name = "float32"
recipe = "lm_head: keep; *: weight=float32 activation=float32"

[[recipes]]
name = "mxfp8"
recipe = "lm_head: keep; *: weight=mxfp8_e4m3/rceil activation=mxfp8_e4m3/rceil"

[[recipes]]
name = "nvfp4"
recipe = "lm_head: keep; *: weight=nvfp4/amax activation=nvfp4/amax"

[[recipes]]
name = "mxfp4 weights"
recipe = "lm_head: keep; *: weight=mxfp4/floor"
"""


def make(folder: Path) -> Path:
    """Fill `folder` with ``model``, ``text.txt`` and ``study.toml``; the path of the last."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(folder / "model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(alphabet),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    words = [WORDS[i * i % len(WORDS)] for i in range(400)]
    (folder / "text.txt").write_text(" ".join(words))
    study = folder / "study.toml"
    study.write_text(STUDY)
    return study
