"""What is measured at every scored token: two distributions over the vocabulary, compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    kl: KL(P || Q) over the whole vocabulary, in nats; None where P is known at few tokens only.
    top1: 1 where both have the same most likely token, else 0.
    dp: Q(right token) - P(right token).
    """

    nll: np.ndarray
    base_nll: np.ndarray
    kl: np.ndarray | None
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


@torch.inference_mode()
def compare_right(
    base: torch.Tensor, top: torch.Tensor, other: torch.Tensor, targets: torch.Tensor
) -> TokenScores:
    """`compare` without KL, where of the unquantized model's answers only the right tokens'
    log-probabilities `base` [T] and the most likely tokens `top` [T] are known."""
    nll, base_nll = -other.gather(1, targets[:, None])[:, 0].double(), -base.double()
    top1 = (other.argmax(dim=-1) == top).double()
    dp = torch.exp(-nll) - torch.exp(-base_nll)
    a, b, c, d = (x.cpu().numpy() for x in (nll, base_nll, top1, dp))
    return TokenScores(a, b, None, c, d)


def _kl(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    p, q = log_p.exp(), log_q.exp()
    terms = (log_p - log_q).mul_(p).masked_fill_(p == 0, 0.0)
    return terms.sub_(p).add_(q).sum(dim=-1)


def _chunks(n: int) -> Iterable[slice]:
    return (slice(start, start + ROWS) for start in range(0, n, ROWS))


def join(parts: list[TokenScores]) -> TokenScores:
    """The scores of several windows, one after the other."""
    return _combined(parts, np.concatenate)


def average(runs: list[TokenScores]) -> TokenScores:
    """The mean over runs of every token's measures."""
    return _combined(runs, lambda values: np.mean(values, axis=0))


def _combined(
    parts: list[TokenScores], how: Callable[[list[np.ndarray]], np.ndarray]
) -> TokenScores:
    columns = ([getattr(part, f.name) for part in parts] for f in fields(TokenScores))
    return TokenScores(*(None if some[0] is None else how(some) for some in columns))


def over_seeds(runs: list[TokenScores], clusters: np.ndarray) -> dict[str, float]:
    """What `summarize` says of dnll, kl, top1 and dp, with the variance between runs that differ in
    their random bits alone: `statistics.over_seeds`. Nothing for one run."""
    if len(runs) == 1:
        return {}
    columns = {
        "dnll": [r.nll - r.base_nll for r in runs],
        "kl": [r.kl for r in runs if r.kl is not None],
        "top1": [r.top1 for r in runs],
        "dp": [r.dp for r in runs],
    }
    found: dict[str, float] = {}
    for name, x in columns.items():
        if not x:
            continue
        e = statistics.over_seeds(np.stack(x), clusters)
        found |= {name: e.value, f"{name}_se": e.se, f"{name}_low": e.low, f"{name}_high": e.high}
    return found


# The quantiles that llama.cpp's tool prints: of the KL divergence, and of the change of the right
# token's probability.
_SHARES = {"max": 1.0, "p999": 0.999, "p99": 0.99, "p95": 0.95, "p90": 0.9, "median": 0.5}
_SHARES |= {"p10": 0.1, "p5": 0.05, "p1": 0.01, "p01": 0.001, "min": 0.0}
QUANTILES = tuple(f"{measure}_{name}" for measure in ("kl", "dp") for name in _SHARES)
# The differences whose interval is also bootstrapped.
BOOTSTRAPPED = ("dnll", "kl")


def summarize(scores: TokenScores, clusters: np.ndarray) -> dict[str, float | int]:
    """Plain numbers of a whole run; `clusters` has a number per token, in the same order.

    The list of llama.cpp's perplexity tool: ppl and base_ppl, ppl_ratio and ppl_difference (Q to
    P), cor_ln_ppl (correlation of the two models' losses over the tokens), nll, dnll (paired
    difference to the unquantized run, nats per token; also ln of ppl_ratio), kl, top1, dp and
    rms_dp (mean and root mean square of the change of the right token's probability). Of each: the
    value under its name, its cluster-robust standard error as ``_se``, its 95 % interval as
    ``_low`` and ``_high``, and as ``_iid`` the standard error of independent tokens, which is what
    llama.cpp prints. dnll and kl have a bootstrap interval too, ``_boot_low`` and ``_boot_high``.
    Further `QUANTILES`, n_tokens, n_clusters, and dof of the intervals. Without the scores' kl,
    nothing of it.
    """
    result: dict[str, float | int] = {}
    alone = np.arange(scores.nll.size)
    independent = _estimates(scores, alone) if alone.size > 1 else {}
    estimates = _estimates(scores, clusters)
    for name, e in estimates.items():
        result |= {name: e.value, f"{name}_se": e.se, f"{name}_low": e.low, f"{name}_high": e.high}
        result[f"{name}_iid"] = independent[name].se
    for name, x in zip(BOOTSTRAPPED, (scores.nll - scores.base_nll, scores.kl), strict=True):
        if x is None:
            continue
        low, high = statistics.bootstrap(x, clusters)
        result |= {f"{name}_boot_low": low, f"{name}_boot_high": high}
    for measure, x in (("kl", scores.kl), ("dp", scores.dp)):
        if x is None:
            continue
        values = np.quantile(x, list(_SHARES.values()))
        result |= {f"{measure}_{n}": float(v) for n, v in zip(_SHARES, values, strict=True)}
    counts = {"n_tokens": scores.nll.size, "n_clusters": len(np.unique(clusters))}
    return result | counts | {"dof": estimates["dnll"].dof}


def _estimates(s: TokenScores, clusters: np.ndarray) -> dict[str, statistics.Estimate]:
    ppl, base_ppl = (statistics.perplexity(x, clusters) for x in (s.nll, s.base_nll))
    dnll = statistics.difference(s.nll, s.base_nll, clusters)
    kl = {} if s.kl is None else {"kl": statistics.mean(s.kl, clusters)}
    change = ppl.value * (s.nll - s.nll.mean()) - base_ppl.value * (s.base_nll - s.base_nll.mean())
    return {
        "ppl": ppl,
        "base_ppl": base_ppl,
        "ppl_ratio": statistics.exponential(dnll),
        "ppl_difference": statistics.influence(ppl.value - base_ppl.value, change, clusters),
        "cor_ln_ppl": statistics.correlation(s.nll, s.base_nll, clusters),
        "nll": statistics.mean(s.nll, clusters),
        "dnll": dnll,
        **kl,
        "top1": statistics.mean(s.top1, clusters),
        "dp": statistics.mean(s.dp, clusters),
        "rms_dp": statistics.rms(s.dp, clusters),
    }


def by_position(scores: TokenScores, contexts: np.ndarray, clusters: np.ndarray) -> list[Bucket]:
    """Losses by the number of tokens in front of the scored one, `contexts`, in buckets from one
    power of two to the next: whether a format loses more in long contexts, where a KV cache's
    errors add up. Buckets of tokens of fewer than two clusters have no error and are left out."""
    found = []
    first = 1
    while first <= contexts.max():
        inside = (contexts >= first) & (contexts < 2 * first)
        if len(np.unique(clusters[inside])) > 1:
            nll = scores.nll[inside]
            dnll = statistics.difference(nll, scores.base_nll[inside], clusters[inside])
            kl = None
            if scores.kl is not None:
                kl = statistics.mean(scores.kl[inside], clusters[inside])
            last = min(2 * first - 1, int(contexts.max()))
            size = int(inside.sum())
            found.append(Bucket(first, last, size, float(nll.mean()), dnll, kl))
        first *= 2
    return found


@dataclass(frozen=True)
class Bucket:
    """Tokens behind `first` to `last` others. nll: mean, in nats; dnll, kl: as in `summarize`."""

    first: int
    last: int
    tokens: int
    nll: float
    dnll: statistics.Estimate
    kl: statistics.Estimate | None
