"""Means of correlated tokens with standard errors that say so, and 95 % intervals.

Tokens of one document or window are correlated: their number overstates the evidence. All
standard errors here are cluster-robust: any dependence within a cluster, none between clusters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from lowprec.errors import LowprecError

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value, its standard error, and the ends of its 95 % interval, in the value's unit."""

    value: float
    se: float
    low: float
    high: float


def mean(x: np.ndarray, clusters: np.ndarray) -> Estimate:
    """The mean of `x` [tokens] over `clusters` [tokens], any integers.

    With N tokens, G clusters, m the mean and S_g the sum of x - m over cluster g::

        se^2 = G / (G - 1) * sum_g S_g^2 / N^2

    the cluster-robust variance of Liang and Zeger (Biometrika 73, 1986) for a regression on a
    constant, with the usual correction G / (G - 1) (Cameron and Miller, "A Practitioner's Guide
    to Cluster-Robust Inference", Journal of Human Resources 50, 2015). In survey terms it is
    the linearized variance of a ratio of cluster totals (Cochran, Sampling Techniques, 1977,
    chapter 6). With one token per cluster it is the i.i.d. formula s^2 / N. The interval is
    ``m -+ t * se`` with the quantile of Student's t of G - 1 degrees of freedom (same guide, on
    few clusters). LowprecError for fewer than two clusters; NaN or Inf in `x` give NaN.
    """
    x = np.asarray(x, dtype=np.float64).reshape(-1)
    _, index = np.unique(np.asarray(clusters).reshape(-1), return_inverse=True)
    groups = int(index.max()) + 1 if x.size else 0
    if groups < 2:
        raise LowprecError(
            f"{groups} independent document or window: a standard error needs 2; use more windows"
        )
    value = float(x.mean())
    sums = np.bincount(index, weights=x - value, minlength=groups)
    se = math.sqrt(groups / (groups - 1) * float(sums @ sums)) / x.size
    half = float(stdtrit(groups - 1, 0.5 + LEVEL / 2)) * se
    return Estimate(value, se, value - half, value + half)


def difference(x: np.ndarray, base: np.ndarray, clusters: np.ndarray) -> Estimate:
    """The mean of the paired difference ``x - base``, token by token.

    What both runs share, the text's difficulty, cancels before the standard error is taken; see
    Miller, "Adding Error Bars to Evals", arXiv:2411.00640 (2024).
    """
    return mean(np.asarray(x, np.float64) - np.asarray(base, np.float64), clusters)


def perplexity(nll: np.ndarray, clusters: np.ndarray) -> Estimate:
    """``exp`` of the mean negative log-likelihood (nats).

    The standard error is the delta method's, exp(m) * se(m) (van der Vaart, Asymptotic Statistics,
    1998, chapter 3); the interval is `exp` of the mean's own, which stays positive.
    """
    m = mean(nll, clusters)
    value = math.exp(m.value)
    return Estimate(value, value * m.se, math.exp(m.low), math.exp(m.high))


def rms(x: np.ndarray, clusters: np.ndarray) -> Estimate:
    """The root mean square, r. Delta method: se(r) = se(mean of x^2) / (2 r), and 0 where r is 0.

    The interval is the root of that of the mean square, cut at 0.
    """
    m = mean(np.asarray(x, np.float64) ** 2, clusters)
    value = math.sqrt(m.value)
    se = m.se / (2 * value) if value else 0.0
    return Estimate(value, se, math.sqrt(max(m.low, 0.0)), math.sqrt(m.high))
