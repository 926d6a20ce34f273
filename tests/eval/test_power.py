"""What tokens can tell: the law against real records, and promises against simulated runs."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from lowprec.errors import LowprecError
from lowprec.eval import power, statistics
from lowprec.eval.metrics import TokenScores
from lowprec.eval.significance import mcnemar
from lowprec.spec.load import data_dir
from lowprec.spec.record import Record


def test_the_spread_of_real_records_follows_their_divergence() -> None:
    ratios = []
    for path in (data_dir("evals") / "results" / "whole-models").glob("*/*.json"):
        record = json.loads(path.read_text())
        metrics, tokens = record["metrics"], record["details"]["tokens"]
        found = metrics["dnll"]["se"] * math.sqrt(tokens)
        ratios.append(found / (power.spread(metrics["kl"]["value"]) / power.FACTOR))
    assert len(ratios) == 30
    assert np.median(ratios) == pytest.approx(power.FACTOR, rel=0.01)
    assert max(max(ratios) / power.FACTOR, power.FACTOR / min(ratios)) < 1.45


def test_a_detectable_difference_is_found_four_times_out_of_five() -> None:
    rng = np.random.default_rng(0)
    tokens, kl = 4000, 0.03
    effect = power.detectable(tokens, kl)
    assert power.tokens_for(effect, kl) in (tokens, tokens + 1)
    found = 0
    for _ in range(1000):
        x = effect + power.spread(kl) * rng.normal(size=tokens)
        found += statistics.mean(x, np.arange(tokens)).p < 0.05
    assert found / 1000 == pytest.approx(power.POWER, abs=0.04)


def test_the_announcement() -> None:
    line = power.announcement(8192, 40)
    assert line.startswith(
        "8,192 tokens in 40 clusters tell perplexities apart that differ by 0.98 %"
    )
    assert line.endswith("four times out of five")


def test_what_items_tell_is_what_mcnemar_finds() -> None:
    """Four times out of five, of a difference as large as the announcement's."""
    line = power.announcement_of_items({"piqa": 500})
    assert "500 items of piqa tell accuracies apart that differ by 2.8 points (8 bits" in line
    items, flips = 2000, power.FLIPS["4 bits"]
    lost = (flips + power.DISTANCE * (flips / items) ** 0.5) / 2
    draw = np.random.default_rng(0)
    found = 0
    for _ in range(400):
        change = draw.choice([-1, 1, 0], size=items, p=[lost, flips - lost, 1 - flips])
        before, after = change < 0, change > 0
        found += mcnemar(before.astype(float), after.astype(float)).p < 0.05  # type: ignore[arg-type]
    assert 0.74 < found / 400 < 0.86


def record(seed: int, shift: float = 0.0, **changed: Any) -> tuple[Record, np.ndarray, np.ndarray]:
    """A record of 30 clusters, its KL of every token, and their clusters."""
    shared = np.random.default_rng(99)
    clusters = np.repeat(np.arange(30), shared.integers(20, 90, size=30))
    kl = np.exp(shared.normal(size=clusters.size)) * 0.1 + shift
    kl = kl + 0.01 * np.random.default_rng(seed).normal(size=clusters.size)
    zero = np.zeros_like(kl)
    sums = power.sums_by_cluster(TokenScores(kl, zero, kl, zero, zero), clusters)
    subject = {"windows": "w", "model": {"digest": "m"}, "recipe": f"r{seed}"} | changed
    details = {"by_cluster": sums}
    return (
        Record(kind="accuracy", subject=subject, metrics={}, details=details, environment={}),
        kl,
        clusters,
    )


def test_two_records_compare_as_their_tokens_do() -> None:
    (a, x, clusters), (b, y, _) = record(1), record(2, 0.001)
    found = power.compare_records(a, b)
    expected = statistics.difference(y, x, clusters)
    assert found.difference.value == pytest.approx(expected.value)
    assert found.difference.se == pytest.approx(expected.se)
    assert found.difference.low == pytest.approx(expected.low)
    assert (found.first, found.second) == (pytest.approx(x.mean()), pytest.approx(y.mean()))
    assert found.tokens == clusters.size
    ratio = power.DISTANCE * expected.se / expected.value
    assert found.separating == pytest.approx(clusters.size * ratio**2, abs=1)
    assert power.compare_records(a, a).separating is None


def test_many_records_are_corrected_for_their_number() -> None:
    rows = power.compare_all([record(i, 0.002 * (i == 3))[0] for i in range(5)])
    assert [row["recipe"] for row in rows] == ["r1", "r2", "r3", "r4"]
    assert rows[2]["p, Holm"] < 0.001
    for row in rows:
        assert row["p"] <= row["q, BH"] <= row["p, Holm"] <= 1


def test_what_is_not_of_the_same_tokens_is_refused() -> None:
    a = record(1)[0]
    with pytest.raises(LowprecError, match="different windows"):
        power.compare_records(a, record(2, windows="v")[0])
    with pytest.raises(LowprecError, match="different model"):
        power.compare_records(a, record(2, model={})[0])
    with pytest.raises(LowprecError, match="metric 'ppl': expected one of"):
        power.compare_records(a, a, "ppl")
    with pytest.raises(LowprecError, match="second record: expected one of accuracy"):
        power.compare_records(a, a.model_copy(update={"details": {}}))
