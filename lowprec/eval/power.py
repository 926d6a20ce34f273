"""What a number of tokens can tell: before a run, and between two records of the same tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from lowprec.errors import LowprecError
from lowprec.eval import statistics
from lowprec.eval.metrics import TokenScores
from lowprec.eval.significance import benjamini_hochberg, holm
from lowprec.spec.record import Record

POWER = 0.8
# Standard errors between a true difference and 0 that a two-sided test at 5 % finds with a chance
# of `POWER`: 1.96 + 0.84 (Cohen, Statistical Power Analysis, 1988).
DISTANCE = float(ndtri(0.5 + statistics.LEVEL / 2) + ndtri(POWER))
COMPARED = ("dnll", "kl", "top1")


# Median of sqrt(tokens) * s.e. / sqrt(2 KL) over the 30 records of evals/results/whole-models:
# SmolLM2-135M, Gemma 3 270M and Qwen2.5-Coder 0.5B, 2,044 tokens, clustered by speech, KL 0.002 to
# 1.26. All of them lie within a factor of 1.45; tests/eval/test_power.py has both numbers anew.
FACTOR = 1.29
# What a line before a run speaks of: KL of linear layers in 8 and in 4 bits, of the same records.
TYPICAL = {"8 bits": 0.03, "4 bits": 0.4}
# Answers that turn right or wrong under recipes of so many bits: docs/evaluation.md.
FLIPS = {"8 bits": 0.05, "4 bits": 0.2}


def spread(kl: float) -> float:
    """The standard deviation per token, clustering included, of the paired difference of losses
    (nats) under a recipe that costs `kl` nats of KL divergence.

    For a small change of the logits the variance of ln p - ln q under p is 2 KL (the divergence's
    second-order term; Kullback, Information Theory and Statistics, 1959, chapter 2); `FACTOR` is
    what real records have beyond it.
    """
    return FACTOR * math.sqrt(2 * kl)


def detectable(tokens: int, kl: float) -> float:
    """The smallest true difference of losses (nats per token; also ln of a ratio of perplexities)
    to the unquantized model that `tokens` tokens find with a chance of `POWER`, at a level of 5 %,
    for a recipe that costs `kl` nats: before anything ran."""
    return DISTANCE * spread(kl) / math.sqrt(tokens)


def tokens_for(difference: float, kl: float) -> int:
    """The tokens that `detectable` needs to find `difference` nats."""
    return math.ceil((DISTANCE * spread(kl) / difference) ** 2)


def announcement(tokens: int, clusters: int) -> str:
    """What a run of so many tokens will be able to tell, in a line."""
    parts = [
        f"{math.expm1(detectable(tokens, kl)) * 100:.2g} % (a recipe of {name}, KL {kl:g})"
        for name, kl in TYPICAL.items()
    ]
    return (
        f"{tokens:,} tokens in {clusters} clusters tell perplexities apart that differ by "
        f"{' or '.join(parts)}, four times out of five"
    )


def announcement_of_items(items: Mapping[str, int]) -> str:
    """What so many items of each task will be able to tell, in a line. The change of a share of
    right answers has the variance of the share that flips, per item."""
    told = (
        f"{count:,} items of {task} tell accuracies apart that differ by "
        + " or ".join(
            f"{100 * DISTANCE * math.sqrt(share / count):.2g} points ({name}, "
            f"{share:.0%} of the answers flip)"
            for name, share in FLIPS.items()
        )
        for task, count in items.items()
    )
    return f"{'; '.join(told)}; four times out of five"


def sums_by_cluster(scores: TokenScores, clusters: np.ndarray) -> dict[str, list[float]]:
    """For each cluster of tokens its number of tokens, and the sums of `COMPARED` over them: all
    that a paired comparison of two records needs."""
    _, index = np.unique(clusters, return_inverse=True)
    columns = {"dnll": scores.nll - scores.base_nll, "top1": scores.top1}
    if scores.kl is not None:
        columns["kl"] = scores.kl
    found = {name: np.bincount(index, weights=x).tolist() for name, x in columns.items()}
    return {"tokens": np.bincount(index).tolist(), **found}


@dataclass(frozen=True)
class Comparison:
    """Two recipes on the same tokens. difference: of the second to the first, with its standard
    error clustered as in the records; separating: about how many tokens tell them apart with a
    chance of `POWER`, None where the difference is 0."""

    metric: str
    first: float
    second: float
    difference: statistics.Estimate
    tokens: int
    separating: int | None


def compare_records(first: Record, second: Record, metric: str = "kl") -> Comparison:
    """The paired difference of two accuracy records in dnll, kl or top1.

    LowprecError where they are not of the same windows and unquantized model.
    """
    if metric not in COMPARED:
        raise LowprecError(f"metric {metric!r}: expected one of {', '.join(COMPARED)}")
    a, b = _sums(first, "first"), _sums(second, "second")
    if metric not in a or metric not in b:
        raise LowprecError(f"{metric}: one of the records has none; use --metric dnll")
    for key in ("windows", "model"):
        if first.subject[key] != second.subject[key]:
            raise LowprecError(f"the records are of different {key}; only same tokens are paired")
    sizes = np.array(a["tokens"], np.float64)
    x, y = (np.array(each[metric], np.float64) for each in (a, b))
    difference = _mean_of_sums(y - x, sizes)
    tokens = int(sizes.sum())
    needed = None
    if difference.value:
        needed = math.ceil(tokens * (DISTANCE * difference.se / difference.value) ** 2)
    means = float(x.sum()) / tokens, float(y.sum()) / tokens
    return Comparison(metric, *means, difference, tokens, needed)


def _sums(record: Record, which: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] | None = record.details.get("by_cluster")
    if record.kind != "accuracy" or found is None:
        raise LowprecError(f"the {which} record: expected one of accuracy, with by_cluster")
    return found


def _mean_of_sums(sums: np.ndarray, sizes: np.ndarray) -> statistics.Estimate:
    """`statistics.mean` from sums over clusters and their sizes."""
    groups, total = len(sizes), float(sizes.sum())
    value = float(sums.sum()) / total
    residuals = sums - value * sizes
    se = math.sqrt(groups / (groups - 1) * float(residuals @ residuals)) / total
    return statistics.interval(value, se, total**2 / float(sizes @ sizes) - 1)


def compare_all(records: Sequence[Record], metric: str = "kl") -> list[dict[str, Any]]:
    """A row for each further record beside the first: `compare_records`, and its p-value as it is,
    after Holm, and after Benjamini and Hochberg, over the rows."""
    first, *others = records
    found = [compare_records(first, each, metric) for each in others]
    p = [each.difference.p for each in found]
    corrected = zip(holm(p), benjamini_hochberg(p), strict=True)
    return [
        {
            "recipe": record.subject["recipe"],
            metric: each.second,
            "difference": each.difference.value,
            "se": each.difference.se,
            "p": each.difference.p,
            "p, Holm": by_holm,
            "q, BH": by_bh,
            "tokens to separate": "none" if each.separating is None else each.separating,
        }
        for record, each, (by_holm, by_bh) in zip(others, found, corrected, strict=True)
    ]
