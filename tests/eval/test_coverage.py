"""Intervals and tests in simulation: 95 % intervals hold the truth 93 to 97 % of the time, and
tests of true nulls call 3 to 7 % of them false, where a document's tokens depend on each other.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

from lowprec.eval import statistics
from lowprec.eval.significance import (
    benjamini_hochberg,
    holm,
    interval_of_change,
    interval_of_share,
    mcnemar,
)

TRIALS = 1000  # binomial s.e. of a coverage of 95 %: 0.7 points


def series(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """AR(1) with rho 0.8 along the last axis, of mean 0 and skewed steps, as losses have."""
    steps = rng.exponential(size=shape) - 1
    return lfilter([1], [1, -0.8], steps, axis=-1)


def documents(
    rng: np.random.Generator, groups: int, sizes: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of documents of 20 to 100 tokens, each with an offset of its own; true mean 0."""
    sizes = rng.integers(20, 101, size=groups) if sizes is None else sizes
    x = series(rng, groups, 150)[:, 50:] + rng.normal(scale=0.5, size=(groups, 1))
    inside = np.arange(100) < sizes[:, None]
    return x[inside], np.repeat(np.arange(groups), sizes)


@pytest.mark.parametrize("groups", [10, 30, 60])
def test_clustered_intervals(groups: int) -> None:
    rng = np.random.default_rng(groups)
    found = [statistics.mean(*documents(rng, groups)) for _ in range(TRIALS)]
    inside = np.mean([e.low <= 0 <= e.high for e in found])
    assert 0.93 <= inside <= 0.97
    assert np.mean([e.p < 0.05 for e in found]) == pytest.approx(1 - inside)


def test_independent_tokens_would_not_do() -> None:
    rng = np.random.default_rng(1)
    found = [
        statistics.mean(x, np.arange(x.size)) for x, _ in (documents(rng, 30) for _ in range(300))
    ]
    assert np.mean([e.low <= 0 <= e.high for e in found]) < 0.6


def test_bootstrap_over_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "DRAWS", 499)
    rng = np.random.default_rng(2)
    hits = 0
    for seed in range(TRIALS):
        low, high = statistics.bootstrap(*documents(rng, 30), seed=seed)
        hits += low <= 0 <= high
    assert 0.93 <= hits / TRIALS <= 0.97


def test_bootstrap_of_one_long_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "DRAWS", 499)
    rng = np.random.default_rng(3)
    hits = 0
    for seed in range(TRIALS):
        x = series(rng, 8192 + 50)[50:]
        low, high = statistics.moving_blocks(x, 128, seed=seed)
        hits += low <= 0 <= high
    assert 0.93 <= hits / TRIALS <= 0.97


@pytest.mark.parametrize("between", [0.0, 0.05, 0.3])
def test_seeds(between: float) -> None:
    """For new tokens and new seeds: what all seeds share, what each seed does, and the rest."""
    rng = np.random.default_rng(4)
    hits = 0
    for _ in range(TRIALS):
        shared, clusters = documents(rng, 30)
        own = rng.normal(scale=between, size=(8, 1)) + 0.5 * rng.normal(size=(8, shared.size))
        e = statistics.over_seeds(shared + own, clusters)
        hits += e.low <= 0 <= e.high
    assert 0.93 <= hits / TRIALS <= 0.97


def test_one_seed_is_one_run() -> None:
    x, clusters = documents(np.random.default_rng(5), 12)
    assert statistics.over_seeds(x[None], clusters) == statistics.mean(x, clusters)
    same = np.repeat(x[None], 3, axis=0)
    assert statistics.over_seeds(same, clusters).se == pytest.approx(
        statistics.mean(x, clusters).se
    )


def test_correlation_and_ratio() -> None:
    rng = np.random.default_rng(6)
    hits = np.zeros(2)
    for _ in range(TRIALS):
        base, c = documents(rng, 40)
        other, _ = documents(rng, 40, np.bincount(c))
        # Independent and of equal variance: sum and difference are not correlated.
        x, y = base + other, base - other
        r = statistics.correlation(x, y, c)
        ratio = statistics.exponential(statistics.difference(x, y, c))
        hits += [r.low <= 0 <= r.high, ratio.low <= 1 <= ratio.high]
    assert ((hits / TRIALS >= 0.93) & (hits / TRIALS <= 0.97)).all()


def test_family_wise_error_and_false_discoveries() -> None:
    """Ten true nulls that depend on each other, and ten beside ten real differences."""
    rng = np.random.default_rng(7)
    wrong = {"none": 0, "holm": 0}
    shares, found = [], []
    for _ in range(300):
        common = rng.normal(size=(25, 1))
        x = 0.5 * common + rng.normal(size=(25, 20))
        p = [statistics.mean(column, np.arange(25)).p for column in x.T]
        wrong["none"] += min(p[:10]) < 0.05
        wrong["holm"] += min(holm(p[:10])) < 0.05
        x[:, 10:] += 0.8
        p = [statistics.mean(column, np.arange(25)).p for column in x.T]
        called = np.array(benjamini_hochberg(p)) < 0.05
        shares.append(called[:10].sum() / max(1, called.sum()))
        found.append(called[10:].mean())
    assert wrong["none"] / 300 > 0.2
    assert wrong["holm"] / 300 <= 0.07
    assert np.mean(shares) <= 0.05
    assert np.mean(found) > 0.7


def test_adjusted_values_by_hand() -> None:
    p = [0.01, 0.04, 0.03, 0.005]
    assert holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert benjamini_hochberg(p) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert holm([]) == benjamini_hochberg([]) == []


def test_mcnemar_is_exact_and_honest() -> None:
    # 1 against 6 of 7 changes: p = 2 (C(7,0) + C(7,1)) / 2^7 = 0.125.
    before = [1] * 6 + [0] + [1] * 3
    after = [0] * 6 + [1] + [1] * 3
    e = mcnemar(before, after)
    assert (e.items, e.lost, e.gained) == (10, 6, 1)
    assert (e.difference, e.p) == (pytest.approx(-0.5), pytest.approx(0.125))
    assert mcnemar([1, 0], [1, 0]).p == 1.0
    rng = np.random.default_rng(8)
    calls = 0
    for _ in range(TRIALS):
        right = rng.random(300) < 0.6
        flips = rng.random(300) < 0.1  # as many either way, in expectation
        other = np.where(flips, rng.random(300) < 0.5, right)
        balanced = np.where(flips, rng.random(300) < 0.5, right)
        calls += mcnemar(other.astype(float), balanced.astype(float)).p < 0.05
    assert calls / TRIALS <= 0.05  # exact tests never exceed their level
    with pytest.raises(ValueError, match="expected 0 or 1 for each of the same items"):
        mcnemar([0.5], [1])


@pytest.mark.parametrize(("items", "flips"), [(40, 0.2), (100, 0.05), (500, 0.2)])
def test_intervals_of_items(items: int, flips: float) -> None:
    """Wilson's and Agresti and Min's are no sure thing for few items, and never far off."""
    rng = np.random.default_rng(items)
    change = hold = 0
    for _ in range(TRIALS):
        right = rng.random(items) < 0.7
        lost, gained = rng.multinomial(items, [flips * 0.6, flips * 0.4, 1 - flips])[:2]
        low, high = interval_of_change(int(lost), int(gained), items)
        change += low <= -0.2 * flips <= high
        low, high = interval_of_share(int(right.sum()), items)
        hold += low <= 0.7 <= high
    assert 0.93 <= hold / TRIALS <= 0.97
    assert 0.93 <= change / TRIALS <= 0.985
    low, high = interval_of_change(0, 0, items)
    assert low == -high < 0
