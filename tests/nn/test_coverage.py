"""What a recipe reached, and that nothing is left out."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lowprec import LowprecError, coverage, trace, wrap
from lowprec.spec import Attention, Matmul

MXFP8 = "mxfp8_e4m3/floor/nearest-even/SatFinite"
SPELLED = "mxfp4/floor/nearest-even/SatFinite"
W4 = "lm_head: keep; *: weight=mxfp4/floor activation=mxfp8_e4m3/floor"


def by_path(model: nn.Module) -> dict:
    return {entry.path: entry for entry in coverage(model, tokens=16).entries}


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3-moe", "mixtral"])
def test_every_flop_is_listed_once(build, family):
    found = coverage(wrap(build(family), W4), batch=2, tokens=16)
    assert sum(entry.share for entry in found.entries) == pytest.approx(1, abs=1e-12)
    work = trace(build(family), batch=2, tokens=16)
    flops = sum(op.flops for op in work.ops if isinstance(op, Matmul))
    for op in work.ops:
        if isinstance(op, Attention):  # masked positions count here
            flops += op.flops * 16 * 16 // (16 * 17 // 2)
    head = 2 * 2 * 64 * 96  # per position; the workload has the last one only
    assert sum(entry.flops for entry in found.entries) == flops + 15 * head
    paths = [entry.path for entry in found.entries]
    assert len(set(paths)) == len(paths)


def test_llama_by_hand(build):
    tokens = 16
    found = coverage(wrap(build("llama"), W4), tokens=tokens)
    layer = 64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 128
    linear = 2 * 2 * tokens * layer
    head = 2 * tokens * 64 * 96
    attention = 2 * 2 * 4 * tokens * tokens * 2 * 16
    assert found.share == pytest.approx(linear / (linear + head + attention), abs=1e-12)
    entries = {entry.path: entry for entry in found.entries}
    assert len(entries) == 2 * 8 + 1
    query = entries["model.layers.1.self_attn.q_proj"]
    assert (query.weight, query.reason) == (SPELLED, "")
    assert query.activation == "mxfp8_e4m3/floor/nearest-even/SatFinite"
    assert query.flops == 2 * tokens * 64 * 64
    assert entries["lm_head"].reason == "kept by rule 'lm_head'"
    assert not entries["lm_head"].covered
    heads = entries["model.layers.0.self_attn"]
    assert (heads.kind, heads.reason, heads.hole) == ("attention", "no rule", True)
    assert heads.flops == attention // 2


def test_json_groups_the_layers(build):
    rows = coverage(wrap(build("llama"), W4), tokens=16).to_json()
    assert {row["modules"]: row["count"] for row in rows} == {
        **{f"model.layers.*.self_attn.{p}_proj": 2 for p in "qkvo"},
        **{f"model.layers.*.mlp.{p}_proj": 2 for p in ("gate", "up", "down")},
        "model.layers.*.self_attn": 2,
        "lm_head": 1,
    }
    assert sum(row["share_of_flops"] for row in rows) == pytest.approx(1)


def test_text_says_it_all_in_a_line_per_group(build):
    lines = str(coverage(wrap(build("llama"), W4), tokens=16)).splitlines()
    assert len(lines) == 9 + 1
    up = f"2 x model.layers.*.mlp.up_proj  linear  weight={SPELLED} activation=mxfp8_e4m3/floor/"
    assert sum(up in line for line in lines) == 1
    assert lines[-1].endswith("of the FLOP of all matmuls is emulated")


def test_reasons(build):
    plain = by_path(build("llama"))
    assert {entry.reason for entry in plain.values()} == {"the model is not wrapped"}
    some = by_path(wrap(build("llama"), "*.mlp.*: weight=mxfp4/floor"))
    assert some["model.layers.0.self_attn.q_proj"].reason == "no rule"
    assert some["model.layers.0.mlp.up_proj"].activation == "kept"
    moe = by_path(wrap(build("qwen3-moe"), "*.gate: keep; " + W4))
    assert (
        moe["model.layers.0.mlp.experts.down_proj"].spelled
        == f"weight={SPELLED} activation={MXFP8}"
    )
    assert moe["model.layers.0.mlp.gate"].reason == "kept by rule '*.gate'"


def test_a_shared_weight_is_reported(build):
    entry = by_path(wrap(build("llama-tied"), "*: weight=mxfp4/floor"))["lm_head"]
    assert entry.weight == SPELLED
    assert entry.reason == "weight shared with model.embed_tokens; quantized for this module alone"


def test_a_subclass_and_an_idle_module_are_listed(build):
    class Adapted(nn.Linear):
        pass

    model = build("llama")
    model.model.layers[0].mlp.up_proj.__class__ = Adapted
    model.spare = nn.Linear(8, 8)
    entries = by_path(wrap(model, W4))
    assert entries["model.layers.0.mlp.up_proj"].weight == SPELLED
    assert entries["spare"].flops == 0
    assert entries["spare"].reason == "not run in the watched pass"


def test_a_copy_is_covered_too_and_the_model_is_untouched(build, ids):
    model = wrap(build("llama"), W4)
    before = model(ids).logits
    assert coverage(copy.deepcopy(model), tokens=16) == coverage(model, tokens=16)
    assert (model(ids).logits == before).all()


def test_any_model_is_covered_with_the_inputs_of_a_pass():
    model = wrap(nn.Sequential(nn.Linear(8, 4), nn.Conv1d(3, 5, 2)), "0: weight=mxfp4/floor")
    entries = {e.path: e for e in coverage(model, torch.zeros(2, 3, 8)).entries}
    assert entries["0"].flops == 2 * 2 * 3 * 8 * 4
    assert entries["1"].flops == 2 * 2 * 5 * 3 * 3 * 2
    assert (entries["1"].kind, entries["1"].reason, entries["1"].hole) == ("conv", "no rule", True)


def test_strict_refuses_the_first_hole_and_passes_a_recipe_that_decides_all(build, ids):
    with pytest.raises(LowprecError, match=r"strict: model.layers.0.self_attn: .*no rule speaks"):
        wrap(build("llama"), W4, strict=True)(ids)
    wrap(build("llama"), f"{W4}; *: keep", strict=True)(ids)


def test_other_models_are_refused():
    with pytest.raises(LowprecError, match="Sequential is no transformers model"):
        coverage(nn.Sequential(nn.Linear(2, 2)))
