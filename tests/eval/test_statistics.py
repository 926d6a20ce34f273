"""Standard errors against simulation, the i.i.d. formula, and laws they must obey."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowprec.errors import LowprecError
from lowprec.eval import statistics

SAMPLES = st.lists(
    st.tuples(st.floats(-100, 100), st.integers(0, 4)), min_size=4, max_size=40
).filter(lambda pairs: len({c for _, c in pairs}) > 1)


def test_clusters_of_one_give_the_iid_formula() -> None:
    x = np.random.default_rng(1).normal(size=50)
    e = statistics.mean(x, np.arange(50))
    assert e.value == pytest.approx(x.mean(), rel=1e-14)
    assert e.se == pytest.approx(x.std(ddof=1) / math.sqrt(50), rel=1e-12)
    # t(0.975, 49) from a printed table.
    assert (e.high - e.value) / e.se == pytest.approx(2.0096, abs=1e-4)
    assert e.value - e.low == pytest.approx(e.high - e.value, rel=1e-12)


def test_equal_clusters_give_the_standard_error_of_the_cluster_means() -> None:
    x = np.random.default_rng(2).normal(size=(12, 7))
    means = x.mean(axis=1)
    e = statistics.mean(x, np.repeat(np.arange(12), 7))
    assert e.se == pytest.approx(means.std(ddof=1) / math.sqrt(12), rel=1e-12)


def test_a_small_case_by_hand() -> None:
    # m = 3; residual sums -3 (1, 2) and 3 (6); se^2 = 2/1 * (9 + 9) / 9 = 4.
    e = statistics.mean(np.array([1.0, 2.0, 6.0]), np.array([7, 7, 9]))
    assert (e.value, e.se) == (3.0, pytest.approx(2.0))


@given(SAMPLES, st.permutations(range(5)), st.floats(-50, 50), st.floats(0.1, 10))
def test_laws(pairs: list[tuple[float, int]], names: list[int], shift: float, by: float) -> None:
    x = np.array([v for v, _ in pairs])
    c = np.array([k for _, k in pairs])
    e = statistics.mean(x, c)
    order = np.argsort(-c, kind="stable")
    for same in (statistics.mean(x[order], c[order]), statistics.mean(x, np.array(names)[c])):
        assert same.value == pytest.approx(e.value, abs=1e-9)
        assert same.se == pytest.approx(e.se, abs=1e-9)
    moved = statistics.mean(x * by + shift, c)
    assert moved.value == pytest.approx(e.value * by + shift, abs=1e-8)
    assert moved.se == pytest.approx(e.se * by, abs=1e-8)
    doubled = statistics.mean(np.repeat(x, 2), np.repeat(c, 2))  # copies are no evidence
    assert doubled.se == pytest.approx(e.se, abs=1e-9)


def _documents(rng: np.random.Generator, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Zero-mean tokens: AR(1) with rho 0.8 within documents of 20 to 100, a common offset each."""
    xs, cs = [], []
    for g in range(groups):
        noise = rng.normal(size=rng.integers(20, 101))
        for i in range(1, noise.size):
            noise[i] += 0.8 * noise[i - 1]
        xs.append(noise + rng.normal(scale=0.5))
        cs.append(np.full(noise.size, g))
    return np.concatenate(xs), np.concatenate(cs)


def test_coverage_on_correlated_documents() -> None:
    """95 % intervals hold the true mean about 95 % of the time; i.i.d. ones would not."""
    rng = np.random.default_rng(3)
    trials = 800
    clustered = naive = 0
    for _ in range(trials):
        x, c = _documents(rng, 30)
        e = statistics.mean(x, c)
        clustered += e.low <= 0 <= e.high
        n = statistics.mean(x, np.arange(x.size))
        naive += n.low <= 0 <= n.high
    # Binomial s.e. of the coverage 0.77 points; unequal documents cost about one point.
    assert 0.92 <= clustered / trials <= 0.97
    assert naive / trials < 0.6


def test_standard_error_is_that_of_repeated_experiments() -> None:
    rng = np.random.default_rng(4)
    runs = [statistics.mean(*_documents(rng, 40)) for _ in range(600)]
    spread = np.std([e.value for e in runs])
    assert np.sqrt(np.mean([e.se**2 for e in runs])) == pytest.approx(spread, rel=0.08)


def test_delta_method_of_perplexity_and_rms_against_repeated_experiments() -> None:
    rng = np.random.default_rng(5)
    ppl, rms = [], []
    for _ in range(600):
        x, c = _documents(rng, 60)
        ppl.append(statistics.perplexity(2 + 0.3 * x, c))
        rms.append(statistics.rms(x, c))
    for runs in (ppl, rms):
        spread = np.std([e.value for e in runs])
        assert np.mean([e.se for e in runs]) == pytest.approx(spread, rel=0.1)
    inside = sum(e.low <= math.exp(2) <= e.high for e in ppl)
    assert 0.92 <= inside / 600 <= 0.97


def test_paired_difference_cancels_what_both_share() -> None:
    rng = np.random.default_rng(6)
    base, c = _documents(rng, 30)
    x = base + 0.01 + rng.normal(scale=0.01, size=base.size)
    e = statistics.difference(x, base, c)
    assert e.value == pytest.approx(0.01, abs=4 * e.se)
    assert e.se < 0.01 * statistics.mean(x, c).se
    assert statistics.difference(base, base, c).se == 0.0


def test_rms_of_zeros_and_its_bounds() -> None:
    zero = statistics.rms(np.zeros(6), np.arange(6))
    assert (zero.value, zero.se, zero.low, zero.high) == (0.0, 0.0, 0.0, 0.0)
    e = statistics.rms(np.array([3.0, -4.0]), np.array([0, 1]))
    assert e.value == pytest.approx(math.sqrt(12.5))
    assert e.low == 0.0


def test_one_cluster_has_no_standard_error() -> None:
    with pytest.raises(LowprecError, match="a standard error needs 2"):
        statistics.mean(np.ones(5), np.zeros(5, dtype=int))
