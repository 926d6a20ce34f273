"""Block by block gives the bits of the whole model, in a block's memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from lowprec.errors import LowprecError
from lowprec.eval.streaming import StreamedModel
from lowprec.nn import wrap
from lowprec.spec import load_recipe

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
GEMMA = {"head_dim": 16, "sliding_window": 8, "sliding_window_pattern": 2}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "llama, tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, **GEMMA)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
}
RECIPES = (
    None,
    "lm_head: keep; *: weight=nvfp4/amax activation=mxfp8_e4m3/rceil",
    "*: weight=mxfp4/rceil activation=mxfp4/rceil; *: query=mxfp8_e4m3/rceil; "  # noqa: ISC004
    "*: operation=norm output=bfloat16",
)


@pytest.mark.parametrize("name", MODELS)
def test_it_has_the_bits_of_the_whole_model(name: str, tmp_path: Path) -> None:
    torch.manual_seed(5)
    MODELS[name]().save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    rng = np.random.default_rng(5)
    windows = [rng.integers(1, 96, size) for size in (24, 24, 17)]
    for text in RECIPES:
        whole = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
        recipe = None if text is None else load_recipe(text)
        if recipe is not None:
            wrap(whole, recipe)
        streamed = StreamedModel(tmp_path, recipe)
        steps: list[tuple[int, int]] = []
        streamed.prepare(windows, lambda *step: steps.append(step))  # noqa: B023 - called at once
        assert steps == [(i, 12) for i in range(1, 13)]
        for ids in windows:
            tokens = torch.from_numpy(ids)[None]
            with torch.inference_mode():
                wanted = whole(input_ids=tokens, use_cache=False).logits
                found = streamed(input_ids=tokens).logits
            assert torch.equal(found, wanted)
        # Nothing of a block is left behind.
        left = [p for block in streamed._blocks for p in block.parameters()]
        assert all(p.device.type == "meta" for p in left)


def test_what_is_not_streamed_is_named(tmp_path: Path) -> None:
    torch.manual_seed(5)
    MODELS["llama"]().save_pretrained(tmp_path)
    with pytest.raises(LowprecError, match="needs calibration"):
        StreamedModel(tmp_path, load_recipe("int8-smoothquant"))
    streamed = StreamedModel(tmp_path)
    with pytest.raises(LowprecError, match="the windows that it was prepared for"):
        streamed(input_ids=torch.ones(1, 4, dtype=torch.int64))
    from safetensors.torch import load_file, save_file

    file = tmp_path / "model.safetensors"
    tensors = {name.replace("layers.2.", "blocks.2."): t for name, t in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    broken = StreamedModel(tmp_path)
    with pytest.raises(LowprecError, match=r"no tensor 'model\.layers\.2\."):
        broken.prepare([np.arange(1, 9)])


MEMORY = """
import resource, sys
from pathlib import Path
import numpy as np, torch
from lowprec.eval.streaming import StreamedModel
from lowprec.spec import load_recipe
streamed = StreamedModel(Path(sys.argv[1]), load_recipe("lm_head: keep; *: weight=mxfp4/rceil"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
streamed.prepare([np.arange(1, 65)])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.slow
def test_memory_is_that_of_a_block(tmp_path: Path) -> None:
    sizes = SIZES | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 24}
    model = LlamaForCausalLM(LlamaConfig(**sizes))
    model.save_pretrained(tmp_path)
    block = sum(4 * p.numel() for p in model.model.layers[0].parameters())
    whole = sum(4 * p.numel() for p in model.parameters())
    del model
    command = [sys.executable, "-c", MEMORY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 4 * block < whole / 4
