"""The functions that attention is made of: torch's own, and products and softmax written out."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from string import ascii_letters
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.nn import units
from lowprec.nn.attention import Softmax, attention, in_blocks, probability
from lowprec.nn.emulation import Emulator, handles, sites_of
from lowprec.nn.pairing import Pairing
from lowprec.nn.site import Site

Multiply = Callable[[Tensor, Tensor], Tensor]


@handles(F.scaled_dot_product_attention)
def _scaled_dot_product_attention(
    mode: Emulator,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    site = mode.site("attention")
    if site is None:
        return NotImplemented
    with mode.emulating(site):
        key, value = _stored(mode, site, key), _stored(mode, site, value, "value_cache")
        return attention(
            site,
            query,
            key,
            value,
            mask=attn_mask,
            causal=is_causal,
            scale=scale,
            gqa=enable_gqa,
            dropout=dropout_p,
            softmax=_softmax(mode),
        )


def _softmax(mode: Emulator) -> Softmax | None:
    """The softmax of the running module where a rule speaks of it; scores that a mask has left out
    are in no block of its input."""
    site = mode.site("softmax")
    if site is None:
        return None

    def apply(scores: Tensor) -> Tensor:
        if site.rule.input is not None:
            unseen = scores == -math.inf
            scores = site.operand("input", scores.masked_fill(unseen, 0.0))
            scores = scores.masked_fill(unseen, -math.inf)
        how = site.rule.approximation
        p = torch.softmax(scores, -1) if how is None else units.softmax(how, scores, -1)
        return site.operand("output", p)

    return apply


def product(mode: Emulator, left: Tensor, right: Tensor, axis: int, multiply: Multiply) -> Any:
    """left @ right of two activations, which are contracted along -1 and `axis`: a part of the
    running module's attention, or else a matmul of its own."""
    pairing = mode.pairing
    if pairing is None or pairing.module is not mode.module:
        site = mode.site("matmul")
        if site is None:
            return NotImplemented
        with mode.emulating(site):
            a, b = site.operand("left", left), site.operand("right", right, axis)
            return site.operand("output", multiply(a, b))
    site = mode.site("attention")
    if site is None:
        return NotImplemented
    with mode.emulating(site):
        if pairing.is_probability(left):
            return _weighted(mode, site, pairing, left, right, axis, multiply)
        if pairing.is_probability(right):
            raise LowprecError(f"{site.path}: attention that multiplies values by probabilities")
        key = right.movedim(axis, -1)
        key = site.operand("key", _stored(mode, site, key)).movedim(-1, axis)
        scores = multiply(site.operand("query", left), key)
        pairing.scored(site.path, site.rule.kv_block is not None)
        return scores


def _weighted(
    mode: Emulator,
    site: Site,
    pairing: Pairing,
    p: Tensor,
    value: Tensor,
    axis: int,
    multiply: Multiply,
) -> Tensor:
    other = -2 if axis in (-1, value.dim() - 1) else -1
    value = _stored(mode, site, value.movedim(other, -1), "value_cache").movedim(-1, other)
    value = site.operand("value", value, axis)
    if site.rule.kv_block is None:
        return site.operand("output", multiply(probability(site, p, value), value))
    return site.operand("output", _online(site, pairing, p, value, axis, multiply))


def _online(
    site: Site, pairing: Pairing, p: Tensor, value: Tensor, axis: int, multiply: Multiply
) -> Tensor:
    """`in_blocks` of the logits that the model's softmax saw; those beyond the values are sinks."""
    logits = pairing.logits
    if logits is None:
        raise LowprecError(f"{site.path}: kv_block of probabilities that were used before")
    if pairing.module.training and pairing.dropped:
        raise LowprecError(f"{site.path}: kv_block has no dropout in an attention written out")
    keys = p.shape[-1]
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    logits = logits.to(wide).reshape(*p.shape[:-1], logits.shape[-1])
    sink = logits[..., keys:] if logits.shape[-1] > keys else None

    def weigh(part: Tensor, some: slice) -> Tensor:
        part = probability(site, part, value).to(value.dtype)
        return multiply(part, value.narrow(axis, some.start, some.stop - some.start)).to(wide)

    out = in_blocks(lambda some: logits[..., some], weigh, keys, site.rule.kv_block or keys, sink)
    return out.to(p.dtype)


@handles(torch.baddbmm, torch.Tensor.baddbmm)
def _baddbmm(mode: Emulator, input: Tensor, batch1: Tensor, batch2: Tensor, **options: Any) -> Any:
    return product(mode, batch1, batch2, -2, lambda a, b: torch.baddbmm(input, a, b, **options))


@handles(torch.einsum)
def _einsum(mode: Emulator, equation: Any, *operands: Any) -> Any:
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) != 2 or any(map(_is_weight(mode), operands)):
        return NotImplemented
    axes = _contracted(equation)
    if axes is None:
        return NotImplemented
    left, right = operands[0].movedim(axes[0], -1), operands[1]
    return product(
        mode,
        left,
        right,
        axes[1],
        lambda a, b: torch.einsum(equation, a.movedim(-1, axes[0]), b),
    )


def _is_weight(mode: Emulator) -> Callable[[Tensor], bool]:
    return lambda x: mode.parameter(x) is not None


def _contracted(equation: str) -> tuple[int, int] | None:
    """The axes of the two operands that an einsum contracts, from the end; None unless it is one
    of each, behind any ellipsis."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    left, _, right = inputs.partition(",")
    summed = [c for c in left if c in ascii_letters and c in right and c not in output]
    once = all(text.count(c) == 1 for c in summed for text in (left, right))
    if not arrow or len(summed) != 1 or not once:
        return None
    places = [text.index(summed[0]) - len(text) for text in (left, right)]
    behind = all("." not in text[place:] for text, place in zip((left, right), places, strict=True))
    return (places[0], places[1]) if behind else None


@handles(F.dropout, torch.dropout)
def _dropout(
    mode: Emulator,
    input: Tensor,  # noqa: ARG001
    p: float = 0.5,
    training: bool = True,
    *_: Any,
    **__: Any,
) -> Any:
    if mode.pairing is not None and p > 0 and training:
        mode.pairing.dropped = True
    return NotImplemented


@handles(F.multi_head_attention_forward)
def _multi_head_attention(mode: Emulator, *args: Any, **options: Any) -> Any:
    """torch's own code, whose projections, products and softmax are then watched like any other."""
    with mode:
        return _unguarded()(*args, **options)


@cache
def _unguarded() -> Callable[..., Any]:
    """`multi_head_attention_forward` without the question whether something overrides it."""
    own = F.multi_head_attention_forward
    names = {**own.__globals__, "has_torch_function": lambda _: False}
    return FunctionType(own.__code__, names, own.__name__, own.__defaults__, own.__closure__)


def _stored(mode: Emulator, site: Site, x: Tensor, name: str = "key_cache") -> Tensor:
    """Keys and values as a cache would hold them, unless the module gets them from one."""
    return x if sites_of(mode.module).cache is not None else site.operand(name, x)
