"""Embeddings: rows quantized along the embedding dimension, for the one use that a rule names."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lowprec import coverage, fake_quantize, unwrap, wrap


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.detach().view(torch.int32), b.detach().view(torch.int32))


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.tensor([[1, 5, 5], [0, 7, 2]])


@pytest.mark.parametrize(
    "q", ["mxfp4/floor", "int8/amax:channel", "nvfp4/amax", "float8_e4m3fn/amax:tensor", "bfloat16"]
)
def test_the_rows_of_the_quantized_table(tokens, q):
    torch.manual_seed(0)
    table = nn.Embedding(10, 72, padding_idx=0)
    expected = F.embedding(tokens, fake_quantize(table.weight.detach(), q))
    wrap(nn.Sequential(table), f"*: operation=embedding weight={q}")
    assert same(table(tokens), expected)


def test_only_the_rows_used_are_quantized(tokens):
    table = nn.Embedding(10, 32)
    table.weight.data[9] = float("nan")  # quantizing it in codes would be an error
    model = wrap(nn.Sequential(table), "*: operation=embedding weight=mxfp4/floor")
    assert model(tokens).isfinite().all()
    assert sum(len(site.weights) for site in table._lowprec) == 0


def test_the_output_and_a_tied_head(tokens, build):
    model = build("llama-tied")
    ids = tokens + 3
    table = model.model.embed_tokens.weight
    before = table.detach().clone()
    wrap(model, "*.embed_tokens: operation=embedding weight=mxfp4/floor output=bfloat16; *: keep")
    rows = fake_quantize(F.embedding(ids, before), "mxfp4/floor").bfloat16().float()
    assert same(model.model.embed_tokens(ids), rows)
    hidden = model.model(ids).last_hidden_state
    assert same(model(ids).logits, F.linear(hidden, before))
    assert model.lm_head.weight is table
    entry = next(e for e in coverage(model, ids).vector if e.kind == "embedding")
    assert (entry.path, entry.calls) == ("model.embed_tokens", 1)
    assert "weight=mxfp4/floor" in entry.operands
    unwrap(model)
    assert same(table, before)


def test_gradients_reach_the_rows(tokens):
    torch.manual_seed(0)
    table = nn.Embedding(10, 32, padding_idx=5)
    upstream = torch.randn(2, 3, 32)
    table(tokens).backward(upstream)
    plain, table.weight.grad = table.weight.grad, None
    wrap(nn.Sequential(table), "*: operation=embedding weight=mxfp4/floor")
    table(tokens).backward(upstream)
    assert torch.equal(table.weight.grad, plain)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(tokens, mode):
    torch.manual_seed(0)
    bag = nn.EmbeddingBag(10, 64, mode=mode)
    expected = F.embedding_bag(tokens, fake_quantize(bag.weight.detach(), "mxfp4/floor"), mode=mode)
    model = wrap(nn.Sequential(bag), "*: operation=embedding weight=mxfp4/floor", strict=True)
    assert same(model(tokens), expected)


def test_it_compiles_and_runs_on_the_meta_device(tokens):
    model = wrap(nn.Sequential(nn.Embedding(10, 32)), "*: operation=embedding weight=nvfp4/amax")
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert same(compiled(tokens), model(tokens))
    meta = wrap(
        nn.Sequential(nn.Embedding(10, 32, device="meta")),
        "*: operation=embedding weight=mxfp4/floor",
    )
    assert meta(tokens.to("meta")).shape == (2, 3, 32)
