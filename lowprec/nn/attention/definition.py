"""Scaled dot product attention with quantized operands: the definition, in torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.nn.attention.rows import is_rowwise
from lowprec.nn.operations.activations import Names, is_under, multiply, prepared
from lowprec.nn.site import Site

# Scores whose temporaries fit a second-level cache.
CHUNK = 1 << 17
_SCORES, _WEIGHTED = ("query", "key"), ("probability", "value")
Softmax = Callable[[Tensor], Tensor]
Part = tuple[slice, slice, slice, slice]


def attention(
    site: Site,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    gqa: bool = False,
    dropout: float = 0.0,
    softmax: Softmax | None = None,
) -> Tensor:
    """softmax(Q' K'^T scale + mask)' V' of queries (..., H, L, D), keys (..., H, S, D) and values
    (..., H, S, E): (..., H, L, E), in the dtype of the queries. Straight-through.

    Q and K are quantized along D, V and the probabilities P along the keys, the axes that the two
    matmuls contract; the output along E. A block of V along the keys has one scale for neighbouring
    tokens, later ones included. float64 is computed in float64; else the sums, the scores and the
    softmax are float32, whatever the dtype. P that no quantizer takes is rounded to the dtype of V,
    as fused kernels do.

    mask: broadcasts to (..., H, L, S); boolean (True takes part) or added to the scores. causal:
    query i sees the keys 0 to i. A row that sees no key gives zeros. scale: 1 / sqrt(D) by
    default. gqa: the queries have a multiple of the heads of keys and values. dropout: of P, before
    it is quantized. softmax: another than torch's, along the last axis.
    kv_block of the rule: the keys are taken that many at a time, see `in_blocks`. datapath: of both
    matmuls; values are then quantized in blocks that begin with those of kv_block.
    NaN in a block of an operand makes everything NaN that depends on it.
    """
    if site.rule.kv_block is not None and softmax is not None:
        raise LowprecError(f"{site.path}: kv_block knows no softmax but its own")
    heads = _heads(site, query, key, value, mask, causal, scale, gqa)
    if _is_whole(site, heads):
        out = heads.result(site, dropout, softmax).to(query.dtype)
    else:
        out = query.new_empty((*heads.query.shape[:-1], value.shape[-1]))
        for part in heads.parts():
            out[part] = heads.at(part).result(site, dropout, softmax)
    out = out.flatten(1, 2).unflatten(0, heads.batch)
    rank = max(x.dim() for x in (query, key, value))
    return site.operand("output", out[(0,) * (out.dim() - rank)])


def in_blocks(
    scores: Callable[[slice], Tensor],
    weigh: Callable[[Tensor, slice], Tensor],
    keys: int,
    block: int,
    sink: Tensor | None = None,
) -> Tensor:
    """Attention over `block` keys at a time, as FlashAttention computes it.

    With m the largest score so far, P = exp(score - m) of a block is quantized as it is,
    unnormalised and in blocks that begin with the block of keys: what kernels with FP8 or FP4
    operands do. The sum of P (before it is quantized) and the output so far are multiplied by
    exp(m_old - m); the output is divided by the sum at the end.
    scores: those of some keys, (..., L, n). weigh: P of some keys times their values. sink: logits
    (..., L, s) that take part in the sum alone; they come first.
    """
    first = scores(slice(0, min(block, keys)))
    top = first.new_full((*first.shape[:-1], 1), -math.inf)
    total = torch.zeros_like(top)
    if sink is not None:
        top = sink.amax(-1, keepdim=True)
        total = torch.exp(sink - top).sum(-1, keepdim=True)
    out: Tensor | float = 0.0
    for start in range(0, keys, block):
        part = slice(start, min(start + block, keys))
        s = first if start == 0 else scores(part)
        new = torch.maximum(top, s.amax(-1, keepdim=True))
        shift = new.masked_fill(new == -math.inf, 0.0)  # a row that has seen no key yet
        p, kept = torch.exp(s - shift), torch.exp(top - shift)
        total = total * kept + p.sum(-1, keepdim=True)
        out = weigh(p, part) + out * kept
        top = new
    return out / total.masked_fill(total == 0, 1.0)


def probability(site: Site, p: Tensor, value: Tensor) -> Tensor:
    """P, quantized along the keys; without a quantizer rounded to the dtype of the values."""
    if site.rule.probability is None and site.statistics is None:
        return p.to(value.dtype).to(p.dtype)
    return prepared(site, "probability", p)


@dataclass(frozen=True)
class _Heads:
    """Quantized operands in the dtype they are multiplied in: queries (N, H, G, L, D), where the G
    of a row share the keys (N, H, S, D) and values (N, H, S, E).

    hidden, bias: (N, H, G, L, S), what masks leave out and add; hidden from the key `visible` on.
    masked: a row may see no key. causal: no row sees a key behind its own.
    batch: the shape that N stands for. kind: what decides the dtype of P."""

    query: Tensor
    key: Tensor
    value: Tensor
    hidden: Tensor | None
    bias: Tensor | None
    scale: float
    masked: bool
    causal: bool
    batch: torch.Size
    kind: Tensor
    visible: int = 0

    def parts(self) -> Iterator[Part]:
        """Batches, heads and rows of about `CHUNK` scores each."""
        n, heads, groups, rows, _ = self.query.shape
        row = max(1, groups * self.key.shape[-2])
        steps = [max(1, CHUNK // size) for size in (row * rows * heads, row * rows, row)]
        slices = [
            [slice(i, i + step) for i in range(0, size, step)]
            for size, step in zip((n, heads, rows), steps, strict=True)
        ]
        for batch, head, some in itertools.product(*slices):
            yield batch, head, slice(None), some

    def at(self, part: Part) -> _Heads:
        """Some of it; without the keys that none of its rows sees."""
        first, last = part[3].start, self.key.shape[-2]
        if self.causal:
            last = min(last, part[3].stop)
        keys = (*part[:2], slice(0, last))
        hidden, bias = (
            None if m is None else m[part][..., :last] for m in (self.hidden, self.bias)
        )
        return replace(
            self,
            query=self.query[part],
            key=self.key[keys],
            value=self.value[keys],
            hidden=hidden,
            bias=bias,
            visible=0 if self.masked else min(first, last),
        )

    def result(self, site: Site, dropout: float, softmax: Softmax | None) -> Tensor:
        def weigh(p: Tensor, keys: slice) -> Tensor:
            p = torch.dropout(p, dropout, True) if dropout else p
            value = self.value[..., keys, :].mT
            return self._product(site, _WEIGHTED, probability(site, p, self.kind), value)

        size = self.key.shape[-2]
        if site.rule.kv_block is not None and size:
            return in_blocks(lambda k: self._scores(site, k), weigh, size, site.rule.kv_block)
        scores = self._scores(site, slice(0, size))
        unseen = None
        if self.masked and size:
            unseen = scores.detach().amax(-1, keepdim=True) == -math.inf
            scores.masked_fill_(unseen, 0.0)
        p = torch.softmax(scores, -1) if softmax is None else softmax(scores)
        return weigh(p if unseen is None else p.masked_fill(unseen, 0.0), slice(0, size))

    def _scores(self, site: Site, keys: slice) -> Tensor:
        scores = self._product(site, _SCORES, self.query, self.key[..., keys, :])
        scores = scores * self.scale if is_under(site) else scores.mul_(self.scale)
        if self.bias is not None:
            scores.add_(self.bias[..., keys])
        if self.hidden is not None:
            start = max(keys.start, self.visible)
            part = scores[..., start - keys.start :]
            part.masked_fill_(self.hidden[..., start : keys.stop], -math.inf)
        return scores

    def _product(self, site: Site, names: Names, x: Tensor, w: Tensor) -> Tensor:
        return multiply(site, names, x.flatten(2, 3), w).unflatten(2, x.shape[2:4])


def _heads(
    site: Site,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
    gqa: bool,
) -> _Heads:
    if query.is_nested or key.is_nested or value.is_nested:
        raise LowprecError(f"{site.path}: attention of nested tensors; expected padded ones")
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    operands = (
        prepared(site, "query", query),
        prepared(site, "key", key),
        prepared(site, "value", value, axis=-2),
    )
    q, k, v = (_of_rank(x.to(wide), 4) for x in operands)
    batch = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    heads, kv_heads = _head_counts(site, q, k, v, gqa)
    q, k, v = (
        x.expand(*batch, n, *x.shape[-2:]).flatten(0, -4)
        for x, n in zip((q, k, v), (heads, kv_heads, kv_heads), strict=True)
    )
    groups, shape = heads // kv_heads, (*batch, heads, q.shape[-2], k.shape[-2])

    def spread(m: Tensor) -> Tensor:
        return m.expand(shape).flatten(0, -4).unflatten(1, (kv_heads, groups))

    hidden = None if mask is None or mask.dtype != torch.bool else ~mask
    if causal:
        later = torch.ones(shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        hidden = later if hidden is None else hidden | later
    return _Heads(
        query=q.unflatten(1, (kv_heads, groups)),
        key=k,
        value=v,
        hidden=None if hidden is None else spread(hidden),
        bias=None if mask is None or mask.dtype == torch.bool else spread(mask.to(wide)),
        scale=scale,
        masked=mask is not None,
        causal=causal and not is_under(site),
        batch=batch,
        kind=value,
    )


def _of_rank(x: Tensor, rank: int) -> Tensor:
    return x if x.dim() >= rank else x[(None,) * (rank - x.dim())]


def _head_counts(site: Site, q: Tensor, k: Tensor, v: Tensor, gqa: bool) -> tuple[int, int]:
    """Heads of the queries, and of the keys and values; without gqa they broadcast."""
    heads, kv_heads = q.shape[-3], max(k.shape[-3], v.shape[-3])
    fits = all(x.shape[-3] in (1, kv_heads) for x in (k, v))
    if fits and heads % kv_heads == 0 and (gqa or kv_heads in (1, heads)):
        return heads, kv_heads
    if fits and heads == 1:
        return kv_heads, kv_heads
    raise LowprecError(
        f"{site.path}: {heads} heads of queries, {k.shape[-3]} of keys and {v.shape[-3]} of values "
        "do not fit"
    )


def _is_whole(site: Site, heads: _Heads) -> bool:
    """Whether the scores have to be in memory at once."""
    n, kv_heads, groups, rows, _ = heads.query.shape
    if torch.compiler.is_compiling() or heads.query.device.type != "cpu":
        return True
    if n * kv_heads * groups * rows * heads.key.shape[-2] <= CHUNK:
        return True
    inputs = (heads.query, heads.key, heads.value, heads.bias)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
        return True
    names = (*_SCORES, *_WEIGHTED) if is_under(site) else ("probability",)
    quantizers = [q for name in names if (q := getattr(site.rule, name)) is not None]
    return not all(map(is_rowwise, quantizers))
