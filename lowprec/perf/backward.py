"""The backward pass of operations, as operations of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lowprec.perf.grouping import Group
from lowprec.perf.kernel.plan import sees_whole_tensor
from lowprec.perf.roofline import nbytes, operands
from lowprec.perf.sharding import Exchange, Share
from lowprec.spec import Attention, Embedding, Format, Matmul, Quantizer, Rule, Vector

# FlashAttention-2 (arXiv 2307.08691): five products backward, two forward.
ATTENTION_BACKWARD = 2.5


def backward(part: Share) -> Share:
    """What one chip runs and exchanges in the backward pass of `part`.

    A matmul y = x w.T with a weight has dL/dx = g w and dL/dw = g.T x, one of two activations the
    gradients of both. Elementwise operations read and write twice what they did. Every collective
    has its mirror image of equal size.
    """
    groups = tuple(each for group in part.groups for each in _gradients(group))
    return Share(groups, tuple(map(_mirror, part.exchanges)))


def casts(part: Share, dtype: Format) -> float:
    """Bytes that the second operands of all products take to be quantized; the first one's
    quantizer is part of a product's price.

    Weights change with every step. Scales of rows or blocks run along the summed axis, which is
    another one in the backward pass: weights and activations are quantized again for it.
    """
    ahead = sum(_cast(group, dtype) for group in part.groups)
    return ahead + sum(_cast(group, dtype, again=True) for group in backward(part).groups)


def _cast(group: Group, dtype: Format, *, again: bool = False) -> float:
    """Bytes read and written."""
    if not isinstance(op := group.op, Matmul) or not group.rule:
        return 0.0
    _, second = operands(op, group.rule, dtype)
    if second is dtype or (again and sees_whole_tensor(second)):
        return 0.0
    elements = (op.experts * op.n, op.k)
    return group.count * (nbytes(dtype, elements) + nbytes(second, elements))


def _gradients(group: Group) -> Iterator[Group]:
    match group.op:
        case Matmul() as op:
            yield replace(
                group,
                op=op.model_copy(update={"n": op.k, "k": op.n}),
                rule=_input_rule(group.rule),
                path=f"{group.path} dx",
            )
            yield replace(
                group,
                op=_weight_gradient(op),
                rule=_weight_rule(group.rule),
                path=f"{group.path} dw",
            )
        case Attention() as op:
            yield replace(group, path=f"{group.path} backward")
            yield replace(group, path=f"{group.path} backward")
            yield replace(group, op=_half(op), path=f"{group.path} backward")
        case Vector() as op:
            more = {"read": 2 * op.read, "written": 2 * op.written, "flops": 2 * op.flops}
            yield replace(group, op=op.model_copy(update=more), path=f"{group.path} backward")
        case Embedding():
            yield replace(group, path=f"{group.path} backward")


def _half(op: Attention) -> Attention:
    """Half the work of `op`: of two forward passes and this one, 2.5."""
    return op.model_copy(
        update={"heads": max(1, op.heads // 2), "kv_heads": max(1, op.kv_heads // 2)}
    )


def _weight_gradient(op: Matmul) -> Matmul:
    """n rows, k columns, summed over the m tokens. An expert sums over its own tokens: as many
    products as there are experts, each over its part."""
    if op.experts > 1:
        rows = max(1, op.m // op.experts)
        return op.model_copy(
            update={"m": op.n, "n": op.k, "k": rows, "batch": op.experts, "weight": False,
                    "experts": 1, "top_k": 1}
        )  # fmt: skip
    return op.model_copy(update={"m": op.n, "n": op.k, "k": op.m, "tied_to": None})


def _input_rule(rule: Rule | None) -> Rule | None:
    if rule is None or rule.input_gradient is None:
        return None
    table = rule.input_gradient
    return _rule(table.gradient, table.weight or rule.weight)


def _weight_rule(rule: Rule | None) -> Rule | None:
    if rule is None or rule.weight_gradient is None:
        return None
    table = rule.weight_gradient
    return _rule(table.gradient, table.activation or rule.activation)


def _rule(x: Quantizer | None, w: Quantizer | None) -> Rule | None:
    """A product of a gradient `x` by `w`."""
    if x is None and w is None:
        return None
    return Rule(match="*", operation="linear", activation=x, weight=w)


def _mirror(each: Exchange) -> Exchange:
    match each.kind:
        case "all_gather":
            return replace(each, kind="reduce_scatter")
        case "reduce_scatter":
            return replace(each, kind="all_gather")
        case _:
            return each
