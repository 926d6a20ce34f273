"""The measures per token against plain formulas in float64 and against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, rel_entr

from lowprec.eval.metrics import compare, join, log_probs, summarize


def _logits(seed: int, spread: float = 3.0, rows: int = 70, vocabulary: int = 301) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probs_are_the_rounded_float64_ones(dtype: torch.dtype) -> None:
    logits = _logits(1).to(dtype)
    expected = log_softmax(logits.double().numpy(), axis=-1)
    assert log_probs(logits).dtype == torch.float32
    np.testing.assert_allclose(log_probs(logits).numpy(), expected, rtol=6e-8, atol=0)


def test_log_probs_of_large_logits_do_not_overflow() -> None:
    got = log_probs(torch.tensor([[1e30, 0.0], [-1e4, -1e4]]))
    assert got.tolist() == [[0.0, pytest.approx(-1e30)], [pytest.approx(-math.log(2))] * 2]


@pytest.mark.parametrize("step", [1e-3, 0.1, 1.0, 30.0])
def test_kl_against_scipy(step: float) -> None:
    a, b = _logits(2), _logits(2) + step * _logits(3, 1.0)
    p, q = (np.exp(log_softmax(x.double().numpy(), axis=-1)) for x in (a, b))
    expected = rel_entr(p, q).sum(axis=-1)
    got = compare(log_probs(a), log_probs(b), torch.zeros(70, dtype=torch.int64)).kl
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=1e-11)
    assert (got >= 0).all()


def test_equal_models_differ_by_exactly_nothing() -> None:
    p = log_probs(_logits(4, 20.0))
    s = compare(p, p.clone(), torch.arange(70))
    assert not s.kl.any()
    assert not s.dp.any()
    assert s.top1.all()
    np.testing.assert_array_equal(s.nll, s.base_nll)


def test_right_token_and_top_one() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1]]).log()
    q = torch.tensor([[0.5, 0.4, 0.1], [0.3, 0.6, 0.1]]).log()
    s = compare(p, q, torch.tensor([0, 1]))
    np.testing.assert_allclose(s.nll, [-math.log(0.5), -math.log(0.6)], rtol=1e-6)
    np.testing.assert_allclose(s.base_nll, [-math.log(0.7), -math.log(0.2)], rtol=1e-6)
    np.testing.assert_allclose(s.dp, [-0.2, 0.4], rtol=1e-6)
    assert s.top1.tolist() == [1.0, 0.0]


def test_probabilities_of_zero() -> None:
    inf = float("inf")
    p = torch.tensor([[math.log(0.5), math.log(0.5), -inf]])
    q = torch.tensor([[math.log(0.25), math.log(0.25), math.log(0.5)]])
    right = torch.tensor([0])
    assert compare(p, q, right).kl == pytest.approx(math.log(2))
    assert compare(q, p, right).kl == math.inf


def test_summary_is_the_plain_means_of_the_tokens() -> None:
    p, q = log_probs(_logits(5)), log_probs(_logits(5) + 0.3 * _logits(6, 1.0))
    targets = torch.arange(70)
    s = join([compare(p[:30], q[:30], targets[:30]), compare(p[30:], q[30:], targets[30:])])
    r = summarize(s, np.repeat(np.arange(7), 10))
    lp, lq = (x.double().numpy()[np.arange(70), np.arange(70)] for x in (p, q))
    assert r["ppl"] == pytest.approx(math.exp(-lq.mean()), rel=1e-12)
    assert r["base_ppl"] == pytest.approx(math.exp(-lp.mean()), rel=1e-12)
    assert r["dnll"] == pytest.approx((lp - lq).mean(), rel=1e-9)
    assert r["dnll"] == pytest.approx(math.log(r["ppl"] / r["base_ppl"]), rel=1e-9)
    assert r["rms_dp"] == pytest.approx(np.sqrt(((np.exp(lq) - np.exp(lp)) ** 2).mean()))
    assert r["top1"] == pytest.approx((p.argmax(1) == q.argmax(1)).double().mean().item())
    assert r["kl_median"] < r["kl"] < r["kl_p99"] <= r["kl_p999"] <= r["kl_max"] == s.kl.max()
    assert (r["n_tokens"], r["n_clusters"]) == (70, 7)
    assert r["dnll_low"] < r["dnll"] < r["dnll_high"]
    assert all(type(v) in (int, float) for v in r.values())
