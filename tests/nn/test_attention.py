"""Attention under a recipe: its definition against explicit references, and who calls it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowprec as lp
from lowprec import LowprecError, fake_quantize
from lowprec.nn.attention import definition
from lowprec.nn.attention.attends import attends, cache_parameter
from lowprec.nn.attention.definition import attention
from lowprec.nn.site import Site
from lowprec.spec import load_recipe
from tests.nn.families import FAMILIES

QUANTIZERS = {
    "query": "mxfp8_e4m3/floor",
    "key": "mxfp6_e2m3/floor",
    "probability": "mxfp8_e5m2/floor",
    "value": "mxfp4/floor",
}
Q = "*: " + " ".join(f"{name}={q}" for name, q in QUANTIZERS.items())
PLAIN = "*: output=float32 operation=attention"
HIDDEN = torch.ones(12, 12, dtype=torch.bool).triu(1)


def site(text: str = Q) -> Site:
    return Site("it", "attention", load_recipe(text).rules[0])


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def bits(x: Tensor) -> Tensor:
    return x.detach().view(torch.int32)


def quantized(name: str, x: Tensor, axis: int = -1) -> Tensor:
    return fake_quantize(x, QUANTIZERS[name], axis=axis)


def head(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """One head, (L, D), (S, D) and (S, E), from what is said of attention."""
    scores = quantized("query", q) @ quantized("key", k).T * scale
    scores = scores if mask is None else scores + mask
    p = torch.softmax(scores, -1)
    p[(scores == -math.inf).all(-1)] = 0
    return quantized("probability", p) @ quantized("value", v, 0)


def test_each_head_has_the_bits_of_the_reference() -> None:
    q, k, v = tensors((2, 4, 12, 40), (2, 4, 70, 40), (2, 4, 70, 24))
    out = attention(site(), q, k, v)
    for n in range(2):
        for h in range(4):
            wanted = head(q[n, h], k[n, h], v[n, h], None, 1 / math.sqrt(40))
            assert torch.equal(bits(out[n, h]), bits(wanted))


def test_grouped_queries_share_keys_and_values() -> None:
    q, k, v = tensors((2, 6, 12, 32), (2, 2, 12, 32), (2, 2, 12, 32))
    out = attention(site(), q, k, v, causal=True, scale=0.3, gqa=True)
    mask = torch.zeros(12, 12).masked_fill(HIDDEN, -math.inf)
    for h in range(6):
        # The three queries of a group are rows of one product, whose bits depend on its shape.
        group = slice(h // 3 * 3, h // 3 * 3 + 3)
        rows = q[0, group].flatten(0, 1)
        wanted = head(rows, k[0, h // 3], v[0, h // 3], mask.repeat(3, 1), 0.3)
        assert torch.equal(bits(out[0, h]), bits(wanted.view(3, 12, 32)[h % 3]))
    repeated = (x.repeat_interleave(3, 1) for x in (k, v))
    torch.testing.assert_close(
        out, attention(site(), q, *repeated, causal=True, scale=0.3), atol=0.05, rtol=0.05
    )
    with pytest.raises(LowprecError, match="6 heads of queries, 2 of keys and 2 of values"):
        attention(site(), q, k, v)


MASKS: dict[str, Callable[[], dict]] = {
    "none": dict,
    "causal": lambda: {"is_causal": True},
    "boolean": lambda: {"attn_mask": ~HIDDEN},
    "added": lambda: {"attn_mask": torch.randn(2, 1, 12, 12)},
    "of each head": lambda: {"attn_mask": torch.rand(2, 6, 12, 12) > 0.3},
    "a row hidden": lambda: {"attn_mask": torch.arange(12)[:, None] != torch.arange(12) * 0 + 3},
    "scale": lambda: {"scale": 0.7},
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("kv_block", [None, 5])
@pytest.mark.parametrize("chunk", [1 << 18, 40])
def test_without_quantizers_it_is_torch_s(name, kv_block, chunk, monkeypatch) -> None:
    """Masks, blocks and chunks: all that is not about quantizers."""
    monkeypatch.setattr(definition, "CHUNK", chunk)
    torch.manual_seed(0)
    options = MASKS[name]()

    class Module(nn.Module):
        def forward(self, q, k, v, **kwargs):
            return F.scaled_dot_product_attention(q, k, v, **kwargs)

    for q_shape, kv_shape, gqa in [
        ((2, 6, 12, 16), (2, 6, 12, 16), False),
        ((2, 6, 12, 16), (2, 2, 12, 16), True),
    ]:
        q, k, v = tensors(q_shape, kv_shape, kv_shape)
        model = Module()
        plain = model(q, k, v, enable_gqa=gqa, **options)
        blocks = "" if kv_block is None else f" kv_block={kv_block}"
        lp.wrap(model, PLAIN + blocks)
        torch.testing.assert_close(
            model(q, k, v, enable_gqa=gqa, **options), plain, atol=2e-6, rtol=2e-6
        )
    if name == "a row hidden":
        assert not plain[:, :, 3].any()


@pytest.mark.parametrize("shape", [(12, 16), (3, 12, 16), (2, 2, 3, 12, 16)])
def test_operands_of_any_rank(shape) -> None:
    q, k, v = tensors(shape, shape, shape)
    out = attention(site(PLAIN), q, k, v, causal=True)
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(out, wanted, atol=2e-6, rtol=2e-6)
    assert out.shape == shape


def test_chunks_change_no_bit(monkeypatch) -> None:
    q, k, v = tensors((3, 4, 33, 32), (3, 2, 70, 32), (3, 2, 70, 32))
    mask = torch.rand(3, 1, 33, 70, generator=torch.Generator().manual_seed(1)) > 0.2
    whole = attention(site(), q, k, v, mask, gqa=True)
    monkeypatch.setattr(definition, "CHUNK", 2 * 33 * 70)  # a head of keys at a time
    assert torch.equal(bits(attention(site(), q, k, v, mask, gqa=True)), bits(whole))


def test_blocks_of_keys_have_the_bits_of_a_loop() -> None:
    (q, k, v), block = tensors((12, 32), (70, 32), (70, 32)), 32
    out = attention(site(f"{Q} kv_block={block}"), q, k, v, scale=0.2)
    xq, xk, xv = quantized("query", q), quantized("key", k), quantized("value", v, 0)
    top, total = torch.full((12, 1), -math.inf), torch.zeros(12, 1)
    wanted = torch.zeros(12, 32)
    for start in range(0, 70, block):
        scores = xq @ xk[start : start + block].T * 0.2
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        p = torch.exp(scores - new)
        total = total * torch.exp(top - new) + p.sum(-1, keepdim=True)
        part = quantized("probability", p) @ xv[start : start + block]
        wanted, top = part + wanted * torch.exp(top - new), new
    assert torch.equal(bits(out), bits(wanted / total))
    assert not torch.equal(out, attention(site(), q, k, v, scale=0.2))


def test_p_without_a_quantizer_has_the_dtype_of_the_values() -> None:
    q, k, v = (x.bfloat16() for x in tensors((12, 16), (12, 16), (12, 16)))
    out = attention(site("*: output=bfloat16 operation=attention"), q, k, v)
    p = torch.softmax((q.float() @ k.float().T) / 4, -1)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, (p.bfloat16().float() @ v.float()).bfloat16())


def test_gradients_pass_straight_through() -> None:
    q, k, v = (x.requires_grad_() for x in tensors((12, 32), (12, 32), (12, 32)))
    upstream = torch.randn(12, 32, generator=torch.Generator().manual_seed(2))
    attention(site(), q, k, v, causal=True, scale=0.5).backward(upstream)
    xq, xk, xv = quantized("query", q), quantized("key", k), quantized("value", v, 0)
    with torch.no_grad():
        mask = torch.zeros(12, 12).masked_fill(HIDDEN, -math.inf)
        p = torch.softmax(xq @ xk.T * 0.5 + mask, -1)
        gradient = upstream @ xv.T
        scores = p * (gradient - (gradient * p).sum(-1, keepdim=True)) * 0.5
        wanted = scores @ xk, scores.T @ xq, quantized("probability", p).T @ upstream
    for x, y in zip((q, k, v), wanted, strict=True):
        torch.testing.assert_close(x.grad, y, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("text", ["", " kv_block=32"])
def test_under_a_datapath_both_matmuls_have_its_bits(text) -> None:
    q, k, v = tensors((12, 32), (32, 32), (32, 32))
    rule = "*: query=float8_e4m3fn key=float8_e4m3fn probability=float8_e4m3fn value=float8_e4m3fn"
    out = attention(site(f"{rule} datapath=hopper_fp8{text}"), q, k, v, scale=0.25)
    scores = lp.matmul(q, k, a="float8_e4m3fn", w="float8_e4m3fn", datapath="hopper_fp8") * 0.25
    if text:
        p = torch.exp(scores - scores.amax(-1, keepdim=True))
    else:
        p = torch.softmax(scores, -1)
    wanted = lp.matmul(p, v.T, a="float8_e4m3fn", w="float8_e4m3fn", datapath="hopper_fp8")
    wanted = wanted / p.sum(-1, keepdim=True) if text else wanted
    assert torch.equal(bits(out), bits(wanted))
    assert not torch.equal(out, attention(site(rule), q, k, v, scale=0.25))


class Written(nn.Module):
    """Attention in plain torch; `way` says how its products are spelled."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.drop, self.sinks = way, nn.Dropout(0.0), nn.Parameter(torch.randn(4, 1, 1))

    def forward(self, q, k, v):
        return _written(self, q, k, v)


def _written(module: Written, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if module.way == "einsum":
        p = torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) * 0.25, -1)
        return torch.einsum("bhqk,bhkd->bhqd", module.drop(p), v)
    if module.way == "baddbmm":
        flat = [x.flatten(0, 1) for x in (q, k, v)]
        scores = torch.baddbmm(q.new_zeros(1, 1, 1), flat[0], flat[1].mT, beta=1, alpha=0.25)
        return torch.bmm(scores.softmax(-1), flat[2]).view(q.shape)
    scores = q @ k.mT * 0.25
    if module.way == "sinks":
        sinks = module.sinks.expand(len(q), -1, q.shape[-2], 1)
        return F.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1] @ v
    return module.drop(F.softmax(scores, -1, dtype=torch.float32)) @ v


@pytest.mark.parametrize("way", ["plain", "einsum", "baddbmm", "sinks"])
@pytest.mark.parametrize("text", ["", " kv_block=32"])
def test_attention_written_out_is_the_same(way, text) -> None:
    q, k, v = tensors((2, 4, 12, 16), (2, 4, 70, 16), (2, 4, 70, 16))
    torch.manual_seed(0)
    model = lp.wrap(nn.Sequential(Written(way)), Q + text, strict=True)[0]
    out = model(q, k, v)
    wanted = attention(site(Q + text), q, k, v, scale=0.25)
    if way == "sinks":
        scores = quantized("query", q) @ quantized("key", k).mT * 0.25
        sink = model.sinks.expand(2, -1, 12, 1)
        if text:
            scores = scores.split(32, -1)
            total, top = torch.ones(2, 4, 12, 1), sink
            wanted = torch.zeros(2, 4, 12, 16)
            for s, w in zip(scores, quantized("value", v, -2).split(32, -2), strict=True):
                new = torch.maximum(top, s.amax(-1, keepdim=True))
                p = torch.exp(s - new)
                total = total * torch.exp(top - new) + p.sum(-1, keepdim=True)
                wanted = wanted * torch.exp(top - new) + quantized("probability", p) @ w
                top = new
            wanted = wanted / total
        else:
            p = torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]
            wanted = quantized("probability", p) @ quantized("value", v, -2)
    torch.testing.assert_close(out, wanted, atol=1e-6, rtol=1e-6)


def test_scores_without_a_softmax_are_an_error_not_a_guess() -> None:
    class Odd(Written):
        def forward(self, q, k, v):
            if self.way == "odd":
                return q @ k.mT
            return super().forward(q, k, v)

    q, k, v = tensors((1, 4, 12, 16), (1, 4, 12, 16), (1, 4, 12, 16))
    model = lp.wrap(nn.Sequential(Odd("odd")), Q)
    with pytest.raises(LowprecError, match=r"0: a product was taken for scores of attention"):
        model[0](q, k, v)


def test_a_kept_attention_below_a_module_with_a_rule_stays_kept() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Written("plain")

        def forward(self, q, k, v):
            return self.inner(q, k, v)

    q, k, v = tensors((1, 4, 12, 16), (1, 4, 12, 16), (1, 4, 12, 16))
    model = nn.Sequential(Layer())
    before = model[0](q, k, v)
    lp.wrap(model, f"*.inner: keep; {Q}")
    assert torch.equal(bits(model[0](q, k, v)), bits(before))


def test_which_modules_attend() -> None:
    import transformers.models.llama.modeling_llama as llama
    import transformers.models.t5.modeling_t5 as t5

    assert [attends(c) for c in (nn.MultiheadAttention, Written)] == [True, True]
    plain = (nn.Linear, nn.Softmax, llama.LlamaMLP, llama.LlamaModel, llama.LlamaForCausalLM)
    assert not any(map(attends, plain))
    assert cache_parameter(llama.LlamaAttention)[0] == "cache"  # type: ignore[index]
    assert cache_parameter(t5.T5Attention)[0] == "cache"  # type: ignore[index]
    assert cache_parameter(Written) is None


@pytest.mark.parametrize("name", ["llama", "gpt-oss", "t5", "whisper", "falcon", "deepseek-v3"])
def test_eager_and_fused_models_agree(name) -> None:
    """The modeling file's own eager attention, and torch's: the same rule, nearly the same bits."""
    family = FAMILIES[name]
    outputs = []
    for kind in ("eager", "sdpa"):
        model = family.build()
        if model.config._attn_implementation != kind:
            if not model._supports_sdpa:
                continue
            model.config._attn_implementation = kind
        with torch.no_grad():
            before = model(**family.inputs())[0]
            lp.wrap(model, f"*: {Q[3:]}; *: keep", strict=True)
            after = model(**family.inputs())[0]
            found = lp.coverage(model, **family.inputs())
        kinds = {entry.kind for entry in found.entries if entry.covered}
        assert kinds == {"attention"}
        assert not any(entry.hole for entry in found.entries)
        assert not torch.equal(before, after)
        outputs.append(after)
    if len(outputs) == 2:
        torch.testing.assert_close(*outputs, atol=0.02, rtol=0.02)


def test_meta_device(build) -> None:
    found = lp.coverage(lp.wrap(build("llama"), Q), tokens=16)
    assert {e.kind for e in found.entries if e.covered} == {"attention"}
    path = "model.layers.0.self_attn"
    flops = {e.path: e.flops for e in found.entries}
    assert flops[path] == 2 * 2 * 4 * 16 * 16 * 16
    lp.wrap(model := build("llama"), "*: query=float8_e4m3fn key=float8_e4m3fn "
            "probability=float8_e4m3fn value=float8_e4m3fn datapath=hopper_fp8")  # fmt: skip
    found = lp.coverage(model, tokens=16)
    assert {e.path: e.flops for e in found.entries}[path] == flops[path]


@pytest.mark.parametrize("way", ["plain", "sdpa"])
def test_torch_compile_traces_it_whole(way) -> None:
    class Fused(nn.Module):
        def forward(self, q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    q, k, v = tensors((1, 4, 12, 16), (1, 4, 12, 16), (1, 4, 12, 16))
    model = lp.wrap(nn.Sequential(Fused() if way == "sdpa" else Written("plain")), Q)[0]
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        assert torch.equal(compiled(q, k, v), model(q, k, v))


def test_a_softmax_rule_speaks_of_a_fused_attention_too() -> None:
    class Fused(nn.Module):
        def forward(self, q, k, v, mask):
            return F.scaled_dot_product_attention(q, k, v, mask)

    q, k, v = tensors((12, 16), (12, 16), (12, 16))
    rules = f"*: operation=softmax input=mxfp8_e4m3/floor output=bfloat16; {PLAIN}"
    out = lp.wrap(nn.Sequential(Fused()), rules)[0](q, k, v, ~HIDDEN)
    scores = (q @ k.T / 4).masked_fill(HIDDEN, 0)
    p = fake_quantize(scores, "mxfp8_e4m3/floor").masked_fill(HIDDEN, -math.inf).softmax(-1)
    assert torch.equal(bits(out), bits(fake_quantize(p, "bfloat16") @ v))


MHA = {
    "self": ({}, {}),
    "no bias": ({"bias": False}, {"need_weights": False}),
    "bias_kv": ({"add_bias_kv": True}, {"average_attn_weights": False}),
    "zero": ({"add_zero_attn": True}, {}),
    "other widths": ({"kdim": 24, "vdim": 40}, {}),
    "first": ({"batch_first": True}, {"need_weights": False}),
    "masked": ({"batch_first": True}, {"attn_mask": HIDDEN}),
    "causal": ({}, {"attn_mask": HIDDEN, "is_causal": True, "need_weights": False}),
    "padded": ({"batch_first": True}, {"key_padding_mask": torch.arange(12).expand(12, 12) > 7}),
}


@pytest.mark.parametrize("name", MHA)
@torch.no_grad()
def test_torch_s_multihead_attention(name) -> None:
    made, called = MHA[name]
    torch.manual_seed(0)
    model = nn.MultiheadAttention(32, 4, **made).eval()
    (x,) = tensors((12, 12, 32))
    others = [torch.randn(12, 12, made[n]) if n in made else x for n in ("kdim", "vdim")]
    out, weights = model(x, *others, **called)
    float32 = "*: weight=float32; *: query=float32"
    lp.wrap(model, float32, strict=True)
    again, again_weights = model(x, *others, **called)
    torch.testing.assert_close(again, out, atol=1e-6, rtol=1e-5)
    assert (weights is None) == (again_weights is None)
    if weights is not None:
        torch.testing.assert_close(again_weights, weights, atol=1e-6, rtol=1e-5)
    lp.wrap(lp.unwrap(model), f"out_proj: weight=mxfp4/floor; *: weight=mxfp8_e4m3/floor; {Q}")
    found = lp.coverage(model, x, *others, **called)
    assert found.share == 1
    assert {e.path: e.kind for e in found.entries}["out_proj"] == "linear"
    assert {e.path: e.weight for e in found.entries}["out_proj"].startswith("mxfp4")
    changed, _ = model(x, *others, **called)
    assert 1e-3 < (changed - out).abs().max() < 0.5
    assert torch.equal(lp.unwrap(model)(x, *others, **called)[0], out)


@torch.no_grad()
def test_a_fused_encoder_layer_takes_no_short_cut() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    model = nn.TransformerEncoder(layer, 2).eval()
    (x,) = tensors((2, 12, 32))
    before = model(x)
    lp.wrap(model, f"*.self_attn: {Q[3:]}")
    assert 1e-4 < (model(x) - before).abs().max() < 0.5
    covered = [e.path for e in lp.coverage(model, x).entries if e.covered]
    assert covered == ["layers.0.self_attn", "layers.1.self_attn"]
    assert torch.equal(lp.unwrap(model)(x), before)
