"""Means of correlated tokens with standard errors that say so, and 95 % intervals.

Tokens of one document or window are correlated: their number overstates the evidence. All
standard errors here are cluster-robust: any dependence within a cluster, none between clusters.
What the intervals hold in simulation stands in tests/eval/test_coverage.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from lowprec.errors import LowprecError

LEVEL = 0.95
DRAWS = 1999


@dataclass(frozen=True)
class Estimate:
    """A value, its standard error, the ends of its 95 % interval, in the value's unit, and the
    degrees of freedom of Student's t that they rest on."""

    value: float
    se: float
    low: float
    high: float
    dof: float

    @property
    def p(self) -> float:
        """Two-sided p-value of the hypothesis that the true value is 0."""
        return p_value(self.value, self.se, self.dof)


def p_value(value: float, se: float, dof: float) -> float:
    """Two-sided, of Student's t; 1 where value and standard error are both 0."""
    if se == 0:
        return float(value == 0)
    return float(2 * stdtr(dof, -abs(value) / se))


def interval(value: float, se: float, dof: float) -> Estimate:
    """`value` with the interval of Student's t of `dof` degrees of freedom."""
    half = float(stdtrit(dof, 0.5 + LEVEL / 2)) * se
    return Estimate(value, se, value - half, value + half, dof)


def mean(x: np.ndarray, clusters: np.ndarray) -> Estimate:
    """The mean of `x` [tokens] over `clusters` [tokens], any integers.

    With N tokens, G clusters of n_g tokens, m the mean and S_g the sum of x - m over cluster g::

        se^2 = G / (G - 1) * sum_g S_g^2 / N^2

    the cluster-robust variance of Liang and Zeger (Biometrika 73, 1986) for a regression on a
    constant, with the usual correction G / (G - 1) (Cameron and Miller, "A Practitioner's Guide
    to Cluster-Robust Inference", Journal of Human Resources 50, 2015). In survey terms it is
    the linearized variance of a ratio of cluster totals (Cochran, Sampling Techniques, 1977,
    chapter 6). With one token per cluster it is the i.i.d. formula s^2 / N. The interval is
    ``m -+ t * se`` with the quantile of Student's t of N^2 / sum_g n_g^2 - 1 degrees of freedom:
    G - 1 for clusters of one size, fewer where few large ones decide (the effective number of
    clusters of Carter, Schnepel and Steigerwald, Review of Economics and Statistics 99, 2017, at
    its upper end, a correlation of 1 within clusters). LowprecError for fewer than two clusters;
    NaN or Inf in `x` give NaN.
    """
    x, index, sizes = _grouped(x, clusters)
    groups = len(sizes)
    value = float(x.mean())
    sums = np.bincount(index, weights=x - value, minlength=groups)
    se = math.sqrt(groups / (groups - 1) * float(sums @ sums)) / x.size
    return interval(value, se, x.size**2 / float(sizes @ sizes) - 1)


def iid(x: np.ndarray) -> float:
    """The standard error of the mean if all tokens were independent, as llama.cpp prints it."""
    x = np.asarray(x, np.float64)
    return float(x.std(ddof=1)) / math.sqrt(x.size)


def difference(x: np.ndarray, base: np.ndarray, clusters: np.ndarray) -> Estimate:
    """The mean of the paired difference ``x - base``, token by token.

    What both runs share, the text's difficulty, cancels before the standard error is taken; see
    Miller, "Adding Error Bars to Evals", arXiv:2411.00640 (2024).
    """
    return mean(np.asarray(x, np.float64) - np.asarray(base, np.float64), clusters)


def exponential(m: Estimate) -> Estimate:
    """``exp`` of an estimate: a perplexity of a mean loss (nats), a ratio of a difference of two.

    The standard error is the delta method's, exp(m) * se(m) (van der Vaart, Asymptotic Statistics,
    1998, chapter 3); the interval is `exp` of the mean's own, which stays positive.
    """
    value = math.exp(m.value)
    return Estimate(value, value * m.se, math.exp(m.low), math.exp(m.high), m.dof)


def perplexity(nll: np.ndarray, clusters: np.ndarray) -> Estimate:
    """`exponential` of the mean negative log-likelihood (nats)."""
    return exponential(mean(nll, clusters))


def rms(x: np.ndarray, clusters: np.ndarray) -> Estimate:
    """The root mean square, r. Delta method: se(r) = se(mean of x^2) / (2 r), and 0 where r is 0.

    The interval is the root of that of the mean square, cut at 0.
    """
    m = mean(np.asarray(x, np.float64) ** 2, clusters)
    value = math.sqrt(m.value)
    se = m.se / (2 * value) if value else 0.0
    return Estimate(value, se, math.sqrt(max(m.low, 0.0)), math.sqrt(m.high), m.dof)


def influence(value: float, x: np.ndarray, clusters: np.ndarray) -> Estimate:
    """`value` with the error of a mean of `x`, its influence function at each token: the delta
    method for any smooth statistic (van der Vaart, 1998, chapter 20)."""
    m = mean(x, clusters)
    return interval(value, m.se, m.dof)


def correlation(x: np.ndarray, y: np.ndarray, clusters: np.ndarray) -> Estimate:
    """Pearson's r. Influence function z_x z_y - r (z_x^2 + z_y^2) / 2 of standardized x and y
    (Devlin, Gnanadesikan and Kettenring, Biometrika 62, 1975); NaN where one is constant."""
    zx, zy = (_standardized(np.asarray(v, np.float64)) for v in (x, y))
    r = float((zx * zy).mean())
    return influence(r, zx * zy - r * (zx**2 + zy**2) / 2, clusters)


def _standardized(x: np.ndarray) -> np.ndarray:
    deviation = x.std()
    return (x - x.mean()) / deviation if deviation else np.full(x.shape, math.nan)


def bootstrap(x: np.ndarray, clusters: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """Ends of the 95 % block-bootstrap interval of the mean of `x`; the blocks are the clusters.

    `DRAWS` times, as many clusters as there are are drawn with replacement, and the studentized
    mean of each draw is set beside the observed one's (bootstrap-t: Efron and Tibshirani, An
    Introduction to the Bootstrap, 1993, section 12.5; over clusters: Cameron, Gelbach and Miller,
    Review of Economics and Statistics 90, 2008). It assumes no shape of distribution, and is not
    symmetric where the tokens are not. The same seed gives the same ends.
    """
    x, index, sizes = _grouped(x, clusters)
    sums = np.bincount(index, weights=x, minlength=len(sizes))
    return studentized(sums, sizes, np.random.default_rng(seed))


def moving_blocks(x: np.ndarray, block: int, seed: int = 0) -> tuple[float, float]:
    """`bootstrap` for one long series without documents: all its blocks of `block` consecutive
    tokens, around its end too, are what is drawn from (circular block bootstrap: Politis and
    Romano, 1992); `block` must exceed the reach of the dependence. LowprecError unless two blocks
    fit in `x`."""
    x = np.asarray(x, np.float64).reshape(-1)
    if not 1 <= block <= x.size // 2:
        raise LowprecError(f"blocks of {block} of {x.size} tokens; expected 1 to {x.size // 2}")
    around = np.concatenate([[0.0], np.cumsum(np.concatenate([x, x[: block - 1]]))])
    sums = around[block:] - around[:-block]
    # The observed mean and its error come from disjoint blocks, as many as a draw has.
    count = x.size // block
    rng = np.random.default_rng(seed)
    whole = sums[: count * block : block] / block
    value, se = float(x.mean()), iid(whole)
    drawn = sums[rng.integers(0, x.size, size=(DRAWS, count))] / block
    spread = drawn.std(axis=1, ddof=1) / math.sqrt(count)
    low, high = _quantiles((drawn.mean(axis=1) - value) / np.maximum(spread, 1e-300))
    return value - high * se, value - low * se


def studentized(
    sums: np.ndarray, sizes: np.ndarray, rng: np.random.Generator
) -> tuple[float, float]:
    """`bootstrap` from the sums and sizes of the clusters."""
    groups, total = len(sizes), float(sizes.sum())
    value = float(sums.sum()) / total
    times = rng.multinomial(groups, np.full(groups, 1 / groups), size=DRAWS)
    drawn_total = times @ sizes
    means = (times @ sums) / drawn_total
    # sum over drawn clusters of (S_g - m n_g)^2, multiplied out.
    squares = times @ sums**2 - 2 * means * (times @ (sums * sizes)) + means**2 * (times @ sizes**2)
    factor = math.sqrt(groups / (groups - 1))
    errors = factor * np.sqrt(np.maximum(squares, 0)) / drawn_total
    se = factor * float(np.linalg.norm(sums - value * sizes)) / total
    low, high = _quantiles((means - value) / np.maximum(errors, 1e-300))
    return value - high * se, value - low * se


def over_seeds(runs: np.ndarray, clusters: np.ndarray) -> Estimate:
    """The mean of `runs` [seeds, tokens], paired differences of runs that differ in their random
    bits alone, for new tokens and new seeds.

    The variance is the clustered one of the tokens' means over the seeds, and that of the seeds'
    means over the tokens, s^2 / S: the two-way form of Cameron, Gelbach and Miller (Journal of
    Business & Economic Statistics 29, 2011) without its third term, which makes it no smaller.
    Degrees of freedom by Satterthwaite (Biometrics Bulletin 2, 1946). One seed: `mean`.
    """
    tokens = mean(runs.mean(axis=0), clusters)
    count = len(runs)
    if count == 1:
        return tokens
    between = float(runs.mean(axis=1).var(ddof=1)) / count
    total = tokens.se**2 + between
    if total == 0:
        return tokens
    dof = total**2 / (tokens.se**4 / tokens.dof + between**2 / (count - 1))
    return interval(tokens.value, math.sqrt(total), dof)


def _quantiles(t: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(t, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return float(low), float(high)


def _grouped(x: np.ndarray, clusters: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`x` as float64, the number of each token's cluster from 0 on, and the clusters' sizes."""
    x = np.asarray(x, dtype=np.float64).reshape(-1)
    _, index = np.unique(np.asarray(clusters).reshape(-1), return_inverse=True)
    sizes = np.bincount(index).astype(np.float64) if x.size else np.zeros(0)
    if len(sizes) < 2:
        raise LowprecError(
            f"{len(sizes)} independent document or window: a standard error needs 2; "
            "use more windows"
        )
    return x, index, sizes
