"""The workload recorded from a model, against torch's own counter and figures by hand."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig

from lowprec import LowprecError, trace, unwrap, wrap
from lowprec.nn.hf_trace import record
from lowprec.spec import Attention, Embedding, Matmul, Vector, Workload
from lowprec.spec.load import data_dir
from tests.nn.conftest import CONFIGS

FAMILIES = ["llama", "llama-tied", "gpt2", "qwen3-moe", "mixtral"]


def of(workload: Workload, kind: type) -> list:
    return [op for op in workload.ops if isinstance(op, kind)]


def meta(name: str, **options):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.bfloat16, **options)


# torch's counter has no formula for the grouped matmul, so the experts run as batched ones for it.
EXPERTS = {name: {"experts_implementation": "batched_mm"} for name in ("qwen3-moe", "mixtral")}


@pytest.mark.parametrize("name", FAMILIES)
def test_flops_agree_with_torchs_counter(name):
    batch, tokens = 3, 16
    ops = record(meta(name), batch, tokens, context=0, last_logits=False)
    plain = meta(name, attn_implementation="eager", **EXPERTS.get(name, {})).eval()
    plain.config.pad_token_id = None  # GPT-2 would look for it among the tokens
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        plain(torch.zeros((batch, tokens), dtype=torch.long, device="meta"), use_cache=True)
    matmuls = sum(op.flops for op in ops if isinstance(op, Matmul))
    # The counter sees both products of eager attention whole, before the causal mask.
    whole = sum(
        op.model_copy(update={"causal": False}).flops for op in ops if isinstance(op, Attention)
    )
    assert matmuls + whole == counter.get_total_flops()


LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 80, 8192, 64, 8, 128, 28672, 128256
LINEAR = LAYERS * (2 * HIDDEN * (HEADS + KV_HEADS) * HEAD_DIM + 3 * HIDDEN * FFN)


@pytest.fixture(scope="module")
def llama_70b() -> LlamaConfig:
    """Llama 3 Herd of Models, arXiv:2407.21783, table 3."""
    return LlamaConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        intermediate_size=FFN,
        vocab_size=VOCAB,
        max_position_embeddings=131072,
    )


def test_llama_70b_prefill_by_hand(llama_70b):
    batch, tokens = 2, 1024
    work = trace(llama_70b, batch=batch, tokens=tokens)
    assert work.phase == "prefill"
    linear = 2 * batch * tokens * LINEAR + 2 * batch * HIDDEN * VOCAB  # one logit row each
    pairs = tokens * (tokens + 1) // 2
    attention = 4 * batch * LAYERS * HEADS * HEAD_DIM * pairs
    assert sum(op.flops for op in of(work, Matmul)) == linear
    assert sum(op.flops for op in of(work, Attention)) == attention
    assert work.flops == linear + attention
    assert work.new_tokens == batch * tokens


def test_llama_70b_decode_by_hand(llama_70b):
    batch, context = 8, 4096
    work = trace(llama_70b, batch=batch, tokens=1, context=context)
    assert work.phase == "decode"
    assert len(of(work, Matmul)) == 7 * LAYERS + 1
    weights = sum(op.n * op.k for op in of(work, Matmul))
    assert weights == LINEAR + HIDDEN * VOCAB == 69_501_714_432  # 70.6e9 less the embedding, norms
    assert {op.m for op in of(work, Matmul)} == {batch}
    attention = of(work, Attention)
    assert len(attention) == LAYERS
    assert attention[7] == Attention(
        kind="attention",
        path="model.layers.7.self_attn",
        batch=batch,
        heads=HEADS,
        kv_heads=KV_HEADS,
        queries=1,
        keys=context + 1,
        head_dim=HEAD_DIM,
        value_dim=HEAD_DIM,
        causal=True,
    )
    assert sum(op.kv_elements for op in attention) == 2 * batch * 80 * 8 * 128 * (context + 1)
    assert of(work, Embedding) == [
        Embedding(
            kind="embedding", path="model.embed_tokens", rows=batch, width=HIDDEN, table=VOCAB
        )
    ]


def test_vector_traffic_of_a_llama_layer_by_hand():
    batch, tokens, context, h, f, d = 2, 8, 24, 64, 128, 16
    work = trace(CONFIGS["llama"](), batch=batch, tokens=tokens, context=context)
    rows = batch * tokens
    found = [
        (op.path.removeprefix("model.layers.1").lstrip("."), op.name, op.read, op.written)
        for op in of(work, Vector)
        if op.path.startswith("model.layers.1")
    ]
    norm = "_to_copy pow mean add rsqrt mul"
    angles = 2 * tokens * d  # cos and sin, the same for each sequence
    assert found == [
        ("input_layernorm", norm, rows * h + h, rows * h),
        # Rotary embedding of 4 heads of queries; of 2 heads of keys, with the write of both new
        # keys and values into the cache, and not of the 24 tokens that are in it already.
        ("self_attn", "mul neg cat add", rows * 4 * d + angles, rows * 4 * d),
        ("self_attn", "mul neg cat add kv_cache", rows * 4 * d + angles, rows * 4 * d),
        ("", "add", 2 * rows * h, rows * h),
        ("post_attention_layernorm", norm, rows * h + h, rows * h),
        ("mlp", "silu mul", 2 * rows * f, rows * f),
        ("", "add", 2 * rows * h, rows * h),
    ]


def test_paths_are_those_of_the_modules_in_order():
    work = trace(CONFIGS["llama"](), tokens=4)
    names = ["q_proj", "k_proj", "v_proj", "o_proj"]
    mlp = ["gate_proj", "up_proj", "down_proj"]
    layer = [f"self_attn.{n}" for n in names] + [f"mlp.{n}" for n in mlp]
    expected = [f"model.layers.{i}.{n}" for i in (0, 1) for n in layer]
    assert [op.path for op in of(work, Matmul)] == [*expected, "lm_head"]


def test_a_tied_head_has_its_own_path():
    assert of(trace(CONFIGS["llama-tied"](), tokens=4), Matmul)[-1].path == "lm_head"


def test_conv1d_of_gpt2():
    work = trace(CONFIGS["gpt2"](), batch=2, tokens=5)
    op = of(work, Matmul)[0]
    assert (op.path, op.m, op.n, op.k, op.weight) == ("transformer.h.0.attn.c_attn", 10, 192, 64, 1)
    # The position table is a lookup too.
    assert [op.path for op in of(work, Embedding)] == ["transformer.wte", "transformer.wpe"]


@pytest.mark.parametrize(("name", "experts", "width"), [("qwen3-moe", 8, 32), ("mixtral", 4, 128)])
def test_experts_are_one_grouped_matmul_each(name, experts, width):
    work = trace(CONFIGS[name](), batch=4, tokens=1, context=32)
    moe = [op for op in of(work, Matmul) if ".layers.0." in op.path and ".mlp." in op.path]
    shapes = {op.path.split(".mlp.")[1]: (op.m, op.n, op.k, op.experts, op.top_k) for op in moe}
    assert shapes == {
        "gate": (4, experts, 64, 1, 1),
        "experts.gate_up_proj": (8, 2 * width, 64, experts, 2),
        "experts.down_proj": (8, 64, width, experts, 2),
    }
    assert all(op.weight for op in of(work, Matmul))
    assert moe[1].distinct_weights == pytest.approx(experts * (1 - (1 - 2 / experts) ** 4))


def test_shipped_configurations_have_the_published_parameter_counts():
    published = {"llama-3.1-70b": 70_553_706_496, "qwen3-30b-a3b": 30_532_122_624}
    active = {"llama-3.1-70b": 70_553_706_496, "qwen3-30b-a3b": 3_353_032_704}
    for name, count in published.items():
        config = json.loads((data_dir("evals") / "configs" / f"{name}.json").read_text())
        work = trace(config, batch=1, tokens=1, context=1024)
        table = config["vocab_size"] * config["hidden_size"]
        matmuls = of(work, Matmul)
        stored = sum(op.experts * op.n * op.k for op in matmuls) + table
        used = sum(op.top_k * op.n * op.k for op in matmuls) + table
        # All that is left are the vectors of the norms.
        assert 0 <= count - stored < 2e6
        assert abs(active[name] - used) < 2e6


def test_every_way_to_name_a_model_gives_the_same_operations(build, tmp_path):
    model = build("llama")
    model.config.save_pretrained(tmp_path / "tiny")
    expected = trace(model.config, batch=2, tokens=8).ops
    plain = json.loads((tmp_path / "tiny" / "config.json").read_text())
    for source in (model, plain, tmp_path / "tiny", str(tmp_path / "tiny" / "config.json")):
        assert trace(source, batch=2, tokens=8).ops == expected
    assert trace(tmp_path / "tiny", tokens=2).model == "tiny"
    assert trace(tmp_path / "tiny" / "config.json", tokens=2).model == "tiny"


def test_tracing_changes_neither_model_nor_configuration(build, ids):
    model = build("qwen3-moe")
    before = model(ids).logits
    config = model.config.to_dict()
    implementations = (model.config._attn_implementation, model.config._experts_implementation)
    trace(model, tokens=4)
    trace(model.config, tokens=4)
    assert model.config.to_dict() == config
    assert implementations == (
        model.config._attn_implementation,
        model.config._experts_implementation,
    )
    assert torch.equal(model(ids).logits, before)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_a_wrapped_model_has_the_same_workload(build):
    model = build("llama")
    expected = trace(model, tokens=8)
    assert trace(wrap(model, "mxfp4/floor"), tokens=8) == expected
    assert trace(unwrap(model), tokens=8) == expected


def test_two_traces_are_equal_and_survive_json():
    first, second = (trace(CONFIGS["mixtral"](), batch=2, tokens=8) for _ in range(2))
    assert first == second
    assert Workload.model_validate_json(json.dumps(first.to_json())) == first


def test_a_sliding_window_bounds_what_a_query_sees():
    config = MistralConfig(**LlamaConfig().to_diff_dict() | {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 32,
    })  # fmt: skip
    work = trace(config, tokens=1, context=100)
    sizes = {(1, 100): (32, 32), (1, 20): (21, 21), (32, 0): (32, 528), (40, 0): (40, 784),
             (3, 100): (34, 96), (3, 30): (33, 31 + 32 + 32)}  # fmt: skip
    for (tokens, context), expected in sizes.items():
        (op,) = of(work.at(tokens=tokens, context=context), Attention)
        assert (op.keys, op.pairs) == expected
        visible = [min(32, context + i + 1) for i in range(tokens)]
        assert op.pairs == sum(visible)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"model_type": "lama"}, "lama: no such configuration"),
        ({"model_type": "t5"}, "no causal language model"),
        ({}, "no such configuration"),
        ("/no/such/config.json", "no such configuration"),
        (nn.Linear(2, 2), "Linear is no transformers model"),
    ],
)
def test_bad_sources_are_one_line_errors(source, message):
    with pytest.raises(LowprecError, match=message) as error:
        trace(source)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"tokens": 0}, {"context": -1}])
def test_bad_sizes_are_errors(sizes):
    with pytest.raises(LowprecError, match=f"trace: {next(iter(sizes))}: expected"):
        trace(CONFIGS["llama"](), **sizes)


def test_nothing_is_recorded_twice():
    work = trace(CONFIGS["llama"](), tokens=4)
    assert max(Counter(op.path for op in of(work, Matmul)).values()) == 1
