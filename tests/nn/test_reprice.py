"""Workloads at other sizes are what a new trace records, and their FLOP are torch's count."""

from __future__ import annotations

import json

import pytest
import torch
import transformers as hf
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from lowprec import LowprecError, trace
from lowprec.nn import hf_trace
from lowprec.nn.hf_trace import record
from lowprec.spec import Attention, Matmul, Vector, Workload
from lowprec.spec.law import Sizes
from tests.nn.families import FAMILIES, TEXT

CONFIGS = {
    "qwen3.5-moe": lambda: hf.AutoConfig.for_model(
        "qwen3_5_moe_text", **TEXT, head_dim=16, moe_intermediate_size=32, num_experts=8,
        num_experts_per_tok=2, shared_expert_intermediate_size=32, linear_num_key_heads=2,
        linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"],
    ),
    "glm-5": lambda: hf.AutoConfig.for_model(
        "glm_moe_dsa", **{**TEXT, "num_key_value_heads": 4}, q_lora_rank=24, kv_lora_rank=16,
        qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, head_dim=8, index_topk=6,
        index_head_dim=16, index_n_heads=2, first_k_dense_replace=1, moe_intermediate_size=32,
        n_routed_experts=8, num_experts_per_tok=2,
    ),
    "minimax-m2": lambda: hf.AutoConfig.for_model(
        "minimax_m2", **TEXT, head_dim=16, num_local_experts=8, num_experts_per_tok=2
    ),
}  # fmt: skip
NAMES = [
    "llama", "qwen3", "gemma3", "mistral", "phi", "gpt2", "gpt-neox", "olmo", "falcon",
    "falcon-alibi", "mixtral", "qwen3-moe", "gpt-oss", "deepseek-v3", "mamba", "llama4", *CONFIGS,
]  # fmt: skip
PLACES = [(2, 12, 0), (3, 1, 30), (1, 1, 5), (1, 1, 0), (2, 3, 30), (1, 33, 0), (4, 9, 7)]


def meta(name: str, **options):
    config = CONFIGS[name]() if name in CONFIGS else FAMILIES[name].build().config
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, **options).eval()


@pytest.mark.parametrize("name", NAMES)
def test_at_is_a_new_trace(name):
    work = trace(meta(name), batch=2, tokens=5, context=17)
    assert work.fixed is None
    stored = Workload.model_validate_json(json.dumps(work.to_json()))
    assert stored == work
    model = meta(name)
    hf_trace._prepare(model)
    for batch, tokens, context in PLACES:
        for rows, logits in ((1, "last"), (tokens, "all")):
            sizes = Sizes(batch, tokens, context, rows)
            absorb = name == "glm-5" or (tokens == 1 and context > 0)
            again = hf_trace._record(model, sizes, absorb=absorb)
            found = stored.at(batch, tokens, context, logits)
            assert found.ops == again
            assert found.phase == ("decode" if tokens == 1 and context else "prefill")
            assert found.flops == sum(op.flops for op in again)
            of_groups = sorted(path for group in found.groups for path in group.paths)
            assert of_groups == sorted(op.path for op in again)


# torch's counter has no formula for the grouped matmul, so experts run as batched ones for it.
DENSE = {"experts_implementation": "batched_mm"}
EXPERTS = {"mixtral", "qwen3-moe", "deepseek-v3", "qwen3.5-moe", "minimax-m2", "gpt-oss"}
# What torch runs without the fused kernels of state-space layers has products of its own.
SCANS = {"mamba", "qwen3.5-moe"}
# And so has attention to chosen positions: it is whole, behind a mask.
SPARSE = {"glm-5"}


@pytest.mark.parametrize("name", [n for n in NAMES if n not in SCANS | SPARSE])
@pytest.mark.parametrize(("batch", "tokens"), [(3, 16), (1, 1)])
def test_flops_agree_with_torchs_counter(name, batch, tokens):
    ops = record(meta(name), batch, tokens, context=0, last_logits=False)
    plain = meta(name, attn_implementation="eager", **(DENSE if name in EXPERTS else {}))
    plain.config.pad_token_id = None  # some would look for it among the tokens
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        plain(torch.zeros((batch, tokens), dtype=torch.long, device="meta"), use_cache=True)
    matmuls = sum(op.flops for op in ops if isinstance(op, Matmul))
    # The counter sees both products of eager attention whole, before the mask.
    whole = sum(
        op.model_copy(update={"causal": False}).flops for op in ops if isinstance(op, Attention)
    )
    assert matmuls + whole == counter.get_total_flops()


def test_flops_of_mamba_agree_but_for_the_scan():
    batch, tokens, layers, channels, state, kernel = 3, 16, 2, 128, 8, 4
    ops = record(meta("mamba"), batch, tokens, context=0, last_logits=False)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        meta("mamba")(torch.zeros((batch, tokens), dtype=torch.long, device="meta"), use_cache=True)
    # Of the scan torch multiplies the state with C only; its convolution also has the padding's
    # kernel - 1 positions.
    read_out = 2 * layers * batch * tokens * channels * state
    padding = 2 * layers * batch * (kernel - 1) * channels * kernel
    convolution = sum(op.flops for op in ops if getattr(op, "name", "") == "causal_conv1d")
    matmuls = sum(op.flops for op in ops if isinstance(op, Matmul))
    assert matmuls + convolution + read_out + padding == counter.get_total_flops()
    scans = [op for op in ops if isinstance(op, Vector) and op.name == "selective_scan"]
    assert [op.flops for op in scans] == [6 * batch * tokens * channels * state] * layers
    assert [op.state for op in scans] == [batch * channels * state] * layers


def test_latent_attention_is_absorbed_in_decode_passes():
    heads, nope, rope, value, rank = 4, 16, 8, 16, 16
    work = trace(FAMILIES["deepseek-v3"].build(), batch=3, tokens=1, context=30)
    attention = next(op for op in work.ops if isinstance(op, Attention))
    assert (attention.kv_heads, attention.head_dim, attention.value_dim) == (1, rank + rope, rank)
    assert attention.kv_elements == attention.cache_elements == 3 * 31 * (rank + rope)
    products = [op for op in work.ops if op.path.startswith("model.layers.0.self_attn.kv_b_proj")]
    assert [(op.path.rpartition(".")[2], op.m, op.n, op.k, op.experts) for op in products] == [
        ("key", 3 * heads, rank, nope, heads),
        ("value", 3 * heads, value, rank, heads),
    ]
    expanded = work.at(tokens=5, context=0)
    attention = next(op for op in expanded.ops if isinstance(op, Attention))
    assert (attention.kv_heads, attention.head_dim) == (heads, nope + rope)
    assert attention.cache_elements == 3 * 5 * (rank + rope)
    # Both forms store the same weight.
    assert sum(expanded.weights.values()) == sum(work.weights.values())


def test_sparse_attention_sees_what_the_indexer_chooses():
    heads, top, rank, rope = 4, 6, 16, 8
    work = trace(meta("glm-5"), batch=3, tokens=1, context=30)
    scores, attention = [op for op in work.ops if isinstance(op, Attention)][:2]
    assert scores.path == "model.layers.0.self_attn.indexer"
    assert scores.flops == 2 * 3 * 2 * 31 * (16 + 1)  # two heads of 16, then their weighted sum
    assert scores.kv_elements == 3 * 31 * 16
    assert attention.keys == top
    assert attention.kv_elements == 3 * top * (rank + rope)
    prefill = work.at(tokens=20, context=0)
    attention = [op for op in prefill.ops if isinstance(op, Attention)][1]
    assert attention.pairs == sum(min(top, i + 1) for i in range(20))
    assert attention.heads == heads


def test_weights_are_the_models_parameters_but_for_vectors():
    for name in ("llama", "deepseek-v3", "gpt-oss", "gpt2"):
        model = meta(name)
        work = trace(model, tokens=4)
        matrices = {id(p): p.numel() for p in model.parameters() if p.dim() > 1}
        # A bias of experts is a matrix too, and no weight.
        biases = {id(p) for n, p in model.named_parameters() if n.endswith("_bias")}
        assert sum(work.weights.values()) == sum(
            n for key, n in matrices.items() if key not in biases
        )
        assert work.parameters == work.weight_elements == sum(p.numel() for p in model.parameters())


def test_a_tied_head_is_stored_once():
    config = hf.LlamaConfig(**TEXT, tie_word_embeddings=True)
    work = trace(config, tokens=4)
    assert work.weights["model.embed_tokens"] == 96 * 64
    assert "lm_head" not in work.weights
    assert "lm_head" in trace(hf.LlamaConfig(**TEXT), tokens=4).weights


def test_caches_and_states():
    work = trace(FAMILIES["gemma3"].build(), batch=2, tokens=1, context=29)
    per_position = 2 * 2 * 16
    assert work.cache_elements == 2 * per_position * (8 + 30)  # a window of 8, and everything
    assert work.state_elements == 0
    work = trace(FAMILIES["mamba"].build(), batch=2, tokens=1, context=29)
    assert work.cache_elements == 0
    assert work.state_elements == 2 * 2 * 128 * (8 + 4)
    assert work.at(tokens=7, context=0).state_elements == work.state_elements


def test_sizes_out_of_range_and_workloads_without_laws():
    work = trace(FAMILIES["llama"].build(), tokens=4)
    with pytest.raises(LowprecError, match="at: batch: expected 1 or more, got 0"):
        work.at(batch=0)
    fixed = Workload.model_validate(
        {**{n: getattr(work, n) for n in type(work).model_fields if n != "schedules"},
         "fixed": "two layers only", "ops": work.ops}
    )  # fmt: skip
    assert fixed.ops == work.ops
    assert fixed.at(batch=fixed.batch) is fixed
    with pytest.raises(LowprecError, match="can't be re-priced at other sizes: two layers only"):
        fixed.at(batch=7)
