"""KV caches of code points: their bits, their size, and that models run on them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    StaticCache,
)

import lowprec as lp
from lowprec import LowprecError, fake_quantize
from lowprec.nn.attention.hf_cache import CodedLayer, coded
from lowprec.nn.attention.rows import decode_rows, encode_rows, row_bytes
from lowprec.nn.site import Site
from lowprec.spec import load_recipe
from tests.nn.conftest import SIZES
from tests.nn.families import FAMILIES

KV = "*: key_cache=mxfp4/floor value_cache=mxfp8_e4m3/floor"
ROWWISE = [
    "mxfp4/floor", "mxfp6_e2m3/rceil", "mxfp8_e5m2/even", "mxint8/floor", "nvfp4/fixed=0.01",
    "float8_e4m3fn", "bfloat16", "float8_e4m3fn/amax:channel", "int4/amax:16", "int8/amax:channel",
    "float8_e4m3fn/fixed=0.25:tensor", "mx9/floor", "hif4/amax", "mxfp4_plus/floor",
    "gguf_q4_0/signed", "gguf_q4_k/minmax", "vsquant_int4_s4/amax", "int8_zp_channel/minmax",
]  # fmt: skip


def bits(x: Tensor) -> Tensor:
    return x.detach().view(torch.int32)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def site(text: str = KV) -> Site:
    return Site("it", "attention", load_recipe(text).rules[0])


@pytest.mark.parametrize("text", ROWWISE)
@pytest.mark.parametrize("size", [64, 36, 7])
def test_rows_have_the_bits_of_fake_quantize(text: str, size: int) -> None:
    quantizer, x = lp.quantizer(text), randn(2, 3, 5, size)
    rows = encode_rows(x, quantizer)
    assert rows.dtype == torch.uint8
    assert rows.shape == (2, 3, 5, row_bytes(quantizer, size))
    wanted = fake_quantize(x, quantizer)
    assert torch.equal(bits(decode_rows(rows, quantizer, size, torch.float32)), bits(wanted))
    # Rows stand alone, in any order.
    some = decode_rows(rows[:, :, [3, 1]], quantizer, size, torch.float32)
    assert torch.equal(bits(some), bits(wanted[:, :, [3, 1]]))
    for dtype in (torch.bfloat16, torch.float64):
        typed = encode_rows(x.to(dtype), quantizer)
        found = decode_rows(typed, quantizer, size, dtype)
        assert torch.equal(found, fake_quantize(x.to(dtype), quantizer))
    meta = encode_rows(x.to("meta"), quantizer)
    assert meta.shape == rows.shape
    assert decode_rows(meta, quantizer, size, torch.bfloat16).shape == x.shape


@pytest.mark.parametrize("text", ["nvfp4/amax", "float8_e4m3fn/amax:tensor"])
def test_a_scale_that_later_tokens_would_change_is_refused(text: str, build) -> None:
    with pytest.raises(LowprecError, match="has a scale for several rows, which a later one"):
        encode_rows(randn(2, 64), lp.quantizer(text))
    config = LlamaConfig(**SIZES)
    with pytest.raises(LowprecError, match=r"key_cache: .* has a scale for several rows"):
        lp.nn.KVCache(config, key=text)
    model = lp.wrap(build("llama"), f"*: key_cache={text}")
    for use_cache in (True, False):
        with pytest.raises(LowprecError, match=r"layers.0.self_attn: key_cache: "):
            model(torch.ones(1, 4, dtype=torch.long), use_cache=use_cache)


def test_memory_is_that_of_the_codes() -> None:
    config = LlamaConfig(**SIZES | {"hidden_size": 256})  # head_dim 64
    keys, values = randn(2, 2, 100, 64), randn(2, 2, 100, 64, seed=1)
    plain, cache = DynamicCache(config=config), lp.nn.KVCache(config, "mxfp4/floor", "mxfp4/floor")
    for layer in range(2):
        plain.update(keys, values, layer)
        found = cache.update(keys, values, layer)
    expected = sum(x.nbytes for layer in plain.layers for x in (layer.keys, layer.values))
    assert cache.nbytes == expected * 4.25 / 32
    storages = {x.untyped_storage().nbytes() for x in _stored(cache)}
    assert storages == {2 * 2 * 100 * (32 + 2)}
    assert torch.equal(bits(found[0]), bits(fake_quantize(keys, "mxfp4/floor")))
    assert torch.equal(bits(found[1]), bits(fake_quantize(values, "mxfp4/floor")))


def _stored(cache) -> list[Tensor]:
    return [x for layer in cache.layers for x in (layer.inner.keys, layer.inner.values)]


def layers() -> dict:
    from transformers.cache_utils import (
        DynamicLayer,
        DynamicSlidingWindowLayer,
        StaticLayer,
        StaticSlidingWindowLayer,
    )

    return {
        "dynamic": DynamicLayer,
        "dynamic sliding": lambda: DynamicSlidingWindowLayer(sliding_window=6),
        "static": lambda: StaticLayer(max_cache_len=16),
        "static sliding": lambda: StaticSlidingWindowLayer(max_cache_len=16, sliding_window=6),
    }


@pytest.mark.parametrize("kind", ["dynamic", "dynamic sliding", "static", "static sliding"])
def test_every_layer_is_the_plain_one_of_quantized_states(kind: str) -> None:
    plain, codes = layers()[kind](), coded(layers()[kind](), site())
    for step, tokens in enumerate((4, 1, 1, 1, 3, 1)):
        keys, values = randn(3, 2, tokens, 32, seed=step), randn(3, 2, tokens, 16, seed=step + 50)
        wanted = plain.update(
            fake_quantize(keys, "mxfp4/floor"), fake_quantize(values, "mxfp8_e4m3/floor")
        )
        found = codes.update(keys, values)
        for x, y in zip(found, wanted, strict=True):
            assert torch.equal(bits(x), bits(y))
        assert codes.get_mask_sizes(1) == plain.get_mask_sizes(1)
        assert int(codes.get_seq_length()) == int(plain.get_seq_length())
    assert codes.get_max_length() == plain.get_max_length()
    for layer in (plain, codes):
        layer.reorder_cache(torch.tensor([2, 0, 0]))
    assert torch.equal(codes.keys, plain.keys)
    if "sliding" not in kind:
        for layer in (plain, codes):
            layer.crop(-2)
        assert int(codes.get_seq_length()) == int(plain.get_seq_length())
    if "dynamic" in kind:
        for layer in (plain, codes):
            layer.batch_repeat_interleave(2)
            layer.batch_select_indices(torch.tensor([0, 3]))
        assert torch.equal(codes.values, plain.values)
    twin = copy.deepcopy(codes)
    codes.reset()
    assert torch.equal(twin.values, plain.values)
    assert int(codes.get_seq_length()) == 0


def test_a_filled_layer_is_taken_over_and_others_are_refused() -> None:
    keys, values = randn(1, 2, 5, 32), randn(1, 2, 5, 32, seed=1)
    cache = DynamicCache()
    cache.update(keys, values, 0)
    layer = coded(cache.layers[0], site())
    assert torch.equal(layer.keys, fake_quantize(keys, "mxfp4/floor"))
    assert coded(layer, site()) is layer
    with pytest.raises(LowprecError, match=r"key_cache=mxfp8.*, but the cache holds mxfp4"):
        coded(layer, site("*: key_cache=mxfp8_e4m3/floor"))
    with pytest.raises(LowprecError, match="a cache layer Odd cannot hold codes"):
        coded(type("Odd", (type(cache.layers[0].__class__()),), {})(), site())


def test_only_keys_or_only_values() -> None:
    layer = coded(layers()["dynamic"](), site("*: key_cache=mxfp4/floor"))
    keys, values = randn(1, 2, 5, 32), randn(1, 2, 5, 32, seed=1)
    found = layer.update(keys, values)
    assert torch.equal(found[0], fake_quantize(keys, "mxfp4/floor"))
    assert found[1] is values or torch.equal(found[1], values)


def test_gradients_pass_straight_through() -> None:
    layer = coded(layers()["dynamic"](), site())
    layer.update(randn(1, 2, 4, 32), randn(1, 2, 4, 32))
    keys = randn(1, 2, 3, 32, seed=1).requires_grad_()
    static = coded(layers()["static"](), site())
    with pytest.raises(LowprecError, match="a static cache passes no gradient"):
        static.update(keys, keys)
    found, _ = layer.update(keys, randn(1, 2, 3, 32))
    upstream = randn(1, 2, 7, 32, seed=2)
    found.backward(upstream)
    assert torch.equal(bits(found[:, :, 4:]), bits(fake_quantize(keys, "mxfp4/floor")))
    assert torch.equal(keys.grad, upstream[:, :, 4:])


GENERATING = {
    "llama": lambda: LlamaConfig(**SIZES),
    "sliding": lambda: MistralConfig(**SIZES, sliding_window=8),
    "sinks": lambda: GptOssConfig(
        **SIZES, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=8
    ),
}
ALL = f"{KV} query=mxfp8_e4m3/floor key=mxfp8_e4m3/floor probability=mxfp8_e4m3/floor"
OPTIONS = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}


@pytest.mark.parametrize("name", GENERATING)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_generate_gives_the_same_tokens_with_and_without_any_cache(name: str, ids) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(GENERATING[name](), dtype=torch.float32).eval()
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    named = {"attention_mask": mask, **OPTIONS}
    plain = model.generate(ids, **named)
    cache = DynamicCache(config=model.config)
    lp.wrap(model, ALL)
    grown = model.generate(ids, cache=cache, **named)
    assert all(isinstance(layer, CodedLayer) for layer in cache.layers)
    assert torch.equal(grown, model.generate(ids, use_cache=False, **named))
    fixed = StaticCache(config=model.config, max_cache_len=32)
    assert torch.equal(grown, model.generate(ids, cache=fixed, **named))
    assert {x.dtype for layer in fixed.layers for x in (layer.inner.keys,)} == {torch.uint8}
    assert torch.equal(plain, lp.unwrap(model).generate(ids, **named))


@pytest.mark.parametrize("name", ["t5", "whisper", "deepseek-v3", "falcon"])
def test_other_architectures_cache_codes(name: str) -> None:
    """Cross-attention, latents, and code of its own: the same with and without a cache. (Masks
    differ, and with them the order of sums.)"""
    family = FAMILIES[name]
    model, inputs = family.build(), family.inputs()
    with torch.no_grad():
        plain = model(**inputs)[0]
        lp.wrap(model, KV)
        cached = model(**inputs, use_cache=True)
        without = model(**inputs, use_cache=False)[0]
        torch.testing.assert_close(cached[0], without, atol=1e-5, rtol=1e-5)
    assert (cached[0] - plain).abs().max() > 1e-3
    caches = cached.cache
    for cache in (
        getattr(caches, "self_attention_cache", caches),
        getattr(caches, "cross_attention_cache", caches),
    ):
        assert all(isinstance(layer, CodedLayer) for layer in cache.layers)


def test_a_cache_alone_serves_a_plain_model(build, ids) -> None:
    model = build("llama")
    named = {"attention_mask": torch.ones_like(ids), **OPTIONS}
    cache = lp.nn.KVCache(model, "mxfp4/floor", "mxfp8_e4m3/floor")
    found = model.generate(ids, cache=cache, **named)
    assert cache.get_seq_length() == ids.shape[1] + 11
    assert cache.nbytes == 2 * 2 * 2 * (ids.shape[1] + 11) * (8 + 1 + 16 + 1)
    static = lp.nn.KVCache(model.config, "mxfp4/floor", "mxfp8_e4m3/floor", max_length=32)
    assert torch.equal(model.generate(ids, cache=static, **named), found)
    wrapped = lp.wrap(model, KV)
    assert torch.equal(wrapped.generate(ids, **named), found)


def test_without_a_cache_parameter_attention_quantizes_as_a_cache_would() -> None:
    class Fused(torch.nn.Module):
        def forward(self, q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    q, k, v = (randn(2, 5, 32, seed=i) for i in range(3))
    out = lp.wrap(torch.nn.Sequential(Fused()), KV)[0](q, k, v)
    k, v = fake_quantize(k, "mxfp4/floor"), fake_quantize(v, "mxfp8_e4m3/floor")
    wanted = torch.softmax(q @ k.mT * 32**-0.5, -1) @ v
    torch.testing.assert_close(out, wanted, atol=1e-6, rtol=1e-6)


def test_training_with_a_cache_gives_the_gradients_of_training_without(build, ids) -> None:
    gradients = []
    for use_cache in (True, False):
        model = lp.wrap(build("llama"), KV)
        model(ids, labels=ids, use_cache=use_cache).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("use_cache", [True, False])
def test_torch_compile_traces_it_whole(build, ids, use_cache) -> None:
    model = lp.wrap(build("llama"), ALL)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        found = compiled(ids, use_cache=use_cache).logits
        assert torch.equal(found, model(ids, use_cache=use_cache).logits)
