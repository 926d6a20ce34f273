"""The functions that attention is made of: torch's own, and products and softmax written out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from string import ascii_letters
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.nn.attention.definition import Softmax, attention, in_blocks, probability
from lowprec.nn.attention.pairing import Pairing
from lowprec.nn.emulation import Emulator, handles, sites_of
from lowprec.nn.operations import units
from lowprec.nn.operations.activations import Names, is_under, multiply, prepared
from lowprec.nn.site import Site

Multiply = Callable[[Tensor, Tensor], Tensor]
_WEIGHTED = ("probability", "value")


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
    flops = None
    if is_under(site):
        flops = 2 * query[..., 0].numel() * key.shape[-2] * (key.shape[-1] + value.shape[-1])
    with mode.emulating(site, flops):
        key = _stored(mode, site, key, "key_cache")
        value = _stored(mode, site, value, "value_cache")
        if not _computes(mode, site):
            return F.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask,
                dropout_p,
                is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
            )
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


def _computes(mode: Emulator, site: Site) -> bool:
    """Whether the rule says more of an attention than how keys and values are stored."""
    rule = site.rule
    names = ("query", "key", "probability", "value", "output", "kv_block", "datapath")
    said = any(getattr(rule, name) is not None for name in names)
    return said or site.statistics is not None or mode.site("softmax") is not None


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


def product(
    mode: Emulator,
    left: Tensor,
    right: Tensor,
    axis: int,
    multiply: Multiply,
    finish: Callable[[Tensor], Tensor] | None = None,
) -> Any:
    """`multiply` of two activations, which contracts -1 of `left` and `axis` of `right`: a part of
    the running module's attention, or else a matmul of its own. finish: what is left to do after
    left @ right, where a datapath multiplies."""
    pairing = mode.pairing
    inside = pairing is not None and pairing.module is mode.module
    site = mode.site("attention" if inside else "matmul")
    if site is None:
        return NotImplemented
    with mode.emulating(site, 2 * left.numel() * _columns(right, axis) if is_under(site) else None):
        call = _Call(site, left, right, axis, multiply, finish)
        if not inside:
            return site.operand("output", call.result(("left", "right")))
        if pairing.is_probability(left):
            call.right = _stored(mode, site, right, "value_cache", _other(right, axis))
            return site.operand("output", _weighted(call, pairing))
        if pairing.is_probability(right):
            raise LowprecError(f"{site.path}: attention that multiplies values by probabilities")
        call.right = _stored(mode, site, right, "key_cache", axis)
        pairing.scored(site.path, site.rule.kv_block is not None)
        return call.result(("query", "key"))


@dataclass
class _Call:
    """A call that multiplies two activations, under a site."""

    site: Site
    left: Tensor
    right: Tensor
    axis: int
    multiply: Multiply
    finish: Callable[[Tensor], Tensor] | None

    def result(self, names: Names) -> Tensor:
        site, axis = self.site, self.axis
        if not is_under(site):
            a, b = site.operand(names[0], self.left), site.operand(names[1], self.right, axis)
            return self.multiply(a, b)
        return self.under(names, self.left, self.right)

    def under(self, names: Names, left: Tensor, right: Tensor) -> Tensor:
        """left @ right under the datapath."""
        if self.finish is None or right.dim() < 2 or left.dim() < 2:
            raise LowprecError(f"{self.site.path}: a datapath multiplies matrices, no einsum")
        return self.finish(multiply(self.site, names, left, right.movedim(self.axis, -1)))


def _weighted(call: _Call, pairing: Pairing) -> Tensor:
    """Probabilities times values."""
    site, p, value = call.site, call.left, call.right
    if site.rule.kv_block is None:
        return call.result(_WEIGHTED)
    logits = pairing.logits
    if logits is None:
        raise LowprecError(f"{site.path}: kv_block of probabilities without a softmax")
    if pairing.module.training and pairing.dropped:
        raise LowprecError(f"{site.path}: kv_block has no dropout in an attention written out")
    keys, axis = p.shape[-1], call.axis
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    logits = logits.to(wide).reshape(*p.shape[:-1], logits.shape[-1])
    value = prepared(site, "value", value, axis)

    def weigh(part: Tensor, some: slice) -> Tensor:
        part = probability(site, part, value).to(value.dtype)
        block = value.narrow(axis, some.start, some.stop - some.start)
        product = (
            call.under(_WEIGHTED, part, block) if is_under(site) else call.multiply(part, block)
        )
        return product.to(wide)

    sink = logits[..., keys:] if logits.shape[-1] > keys else None
    out = in_blocks(lambda some: logits[..., some], weigh, keys, site.rule.kv_block, sink)
    return out.to(p.dtype)


def _columns(right: Tensor, axis: int) -> int:
    return right.shape[_other(right, axis)] if right.dim() > 1 else 1


def _other(right: Tensor, axis: int) -> int:
    """The last axis of a matrix that is not `axis`."""
    return -2 if axis % right.dim() == right.dim() - 1 else -1


@handles(torch.baddbmm, torch.Tensor.baddbmm)
def _baddbmm(mode: Emulator, input: Tensor, batch1: Tensor, batch2: Tensor, **options: Any) -> Any:
    beta, alpha = options.get("beta", 1), options.get("alpha", 1)
    return product(
        mode,
        batch1,
        batch2,
        -2,
        lambda a, b: torch.baddbmm(input, a, b, **options),
        lambda y: alpha * y if beta == 0 else beta * input + alpha * y,
    )


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
    """torch's own code, whose projections, products and softmax are then watched like any other.
    Where it returns weights it scales the queries itself, before they are quantized."""
    with mode:
        return _unguarded()(*args, **options)


@cache
def _unguarded() -> Callable[..., Any]:
    """`multi_head_attention_forward` without the question whether something overrides it."""
    own = F.multi_head_attention_forward
    names = {**own.__globals__, "has_torch_function": lambda _: False}
    return FunctionType(own.__code__, names, own.__name__, own.__defaults__, own.__closure__)


def _stored(mode: Emulator, site: Site, x: Tensor, name: str, axis: int = -1) -> Tensor:
    """Keys or values as a cache would hold them, each token along `axis`, unless the module gets
    them from one."""
    return x if sites_of(mode.module).cache is not None else site.operand(name, x, axis)
