"""What is measured at every scored token: two distributions over the vocabulary, compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
import torch

from lowprec.eval import statistics

# Rows of the vocabulary that are widened to float64 at a time: 32 x 50,000 x 8 bytes = 13 MB.
ROWS = 32


@dataclass(frozen=True, eq=False)
class TokenScores:
    """One float64 array [tokens] per measure; P is the unquantized model, Q the other.

    nll, base_nll: -ln Q(right token), -ln P(right token), in nats.
    kl: KL(P || Q) over the whole vocabulary, in nats.
    top1: 1 where both have the same most likely token, else 0.
    dp: Q(right token) - P(right token).
    """

    nll: np.ndarray
    base_nll: np.ndarray
    kl: np.ndarray
    top1: np.ndarray
    dp: np.ndarray


@torch.inference_mode()
def log_probs(logits: torch.Tensor) -> torch.Tensor:
    """Natural log-probabilities [T, V] in float32 of logits [T, V] of any float type.

    The log-softmax is computed in float64 and rounded once. A row with NaN or +Inf is all NaN;
    a logit of -Inf has probability 0.
    """
    out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    for rows in _chunks(len(logits)):
        out[rows] = torch.log_softmax(logits[rows].double(), dim=-1)
    return out


@torch.inference_mode()
def compare(base: torch.Tensor, other: torch.Tensor, targets: torch.Tensor) -> TokenScores:
    """The measures for log-probabilities `base` and `other` [T, V] and right tokens [T].

    KL is summed in float64 as ``p (ln p - ln q) - p + q`` over the vocabulary. As both
    distributions sum to 1 that is the KL divergence, but every term is >= 0 (Csiszar,
    I-divergence, Annals of Probability 3, 1975), so that rounding of the logarithms
    to float32 enters in second order only and equal inputs give exactly 0. q = 0 where p > 0
    gives Inf, p = 0 a contribution of q. Of equally likely tokens, the top one is the
    one that torch.argmax names.
    """
    at = targets[:, None]
    nll = -other.gather(1, at)[:, 0].double()
    base_nll = -base.gather(1, at)[:, 0].double()
    kl = torch.cat([_kl(base[rows].double(), other[rows].double()) for rows in _chunks(len(base))])
    top1 = base.argmax(dim=-1) == other.argmax(dim=-1)
    dp = torch.exp(-nll) - torch.exp(-base_nll)
    return TokenScores(*(x.double().cpu().numpy() for x in (nll, base_nll, kl, top1, dp)))


def _kl(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    p, q = log_p.exp(), log_q.exp()
    terms = (log_p - log_q).mul_(p).masked_fill_(p == 0, 0.0)
    return terms.sub_(p).add_(q).sum(dim=-1)


def _chunks(n: int) -> Iterable[slice]:
    return (slice(start, start + ROWS) for start in range(0, n, ROWS))


def join(parts: list[TokenScores]) -> TokenScores:
    """The scores of several windows, one after the other."""
    return TokenScores(
        *(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(TokenScores))
    )


def summarize(scores: TokenScores, clusters: np.ndarray) -> dict[str, float | int]:
    """Plain numbers of a whole run; `clusters` has a number per token, in the same order.

    For each of ppl, base_ppl, nll, dnll (paired difference to the unquantized run, nats per token;
    it is also ln of the perplexities' ratio), kl, top1 and rms_dp: the value under its name, its
    standard error as ``_se``, its 95 % interval as ``_low`` and ``_high``. Further kl_median,
    kl_p99, kl_p999, kl_max, n_tokens, n_clusters.
    """
    estimates = {
        "ppl": statistics.perplexity(scores.nll, clusters),
        "base_ppl": statistics.perplexity(scores.base_nll, clusters),
        "nll": statistics.mean(scores.nll, clusters),
        "dnll": statistics.difference(scores.nll, scores.base_nll, clusters),
        "kl": statistics.mean(scores.kl, clusters),
        "top1": statistics.mean(scores.top1, clusters),
        "rms_dp": statistics.rms(scores.dp, clusters),
    }
    result: dict[str, float | int] = {}
    for name, e in estimates.items():
        result |= {name: e.value, f"{name}_se": e.se, f"{name}_low": e.low, f"{name}_high": e.high}
    quantiles = {"kl_median": 0.5, "kl_p99": 0.99, "kl_p999": 0.999, "kl_max": 1.0}
    values = np.quantile(scores.kl, list(quantiles.values()))
    result |= dict(zip(quantiles, map(float, values), strict=True))
    return result | {"n_tokens": scores.nll.size, "n_clusters": len(np.unique(clusters))}
