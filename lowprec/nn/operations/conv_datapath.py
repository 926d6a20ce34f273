"""Convolutions under a datapath: im2col in tiles, and the matmul of the kernels.

K runs over the kernel's positions in row-major order and innermost over the channels of a group,
which zeros fill up to whole blocks. A transposed convolution is the convolution of its input with
zeros between, by the kernel turned round.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import QTensor, fake_quantize, matmul, quantize
from lowprec.nn.site import Site
from lowprec.spec import BlockFormat, Datapath, Quantizer

_TILE = 1 << 22  # elements of im2col's matrix at a time


@dataclass(frozen=True)
class Geometry:
    """Of a convolution of stride, dilation and kernel along every dimension: `before` and `after`
    are the zeros put beside the input (negative: what is cut off), `apart` how far its elements are
    moved apart first (1: not)."""

    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    kernel: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    apart: tuple[int, ...]
    groups: int
    transposed: bool

    @staticmethod
    def of(
        weight: Tensor,
        stride: Any,
        padding: Any,
        dilation: Any,
        groups: int,
        output_padding: Any = None,
    ) -> Geometry:
        """From the arguments of torch's functions; output_padding: of a transposed one."""
        kernel = tuple(weight.shape[2:])

        def each(sizes: Any) -> tuple[int, ...]:
            sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
            return sizes * len(kernel) if len(sizes) == 1 else sizes

        strides, dilations = each(stride), each(dilation)
        reach = tuple(d * (k - 1) for d, k in zip(dilations, kernel, strict=True))
        if padding == "same":
            before = tuple(r // 2 for r in reach)
            after = tuple(r - b for r, b in zip(reach, before, strict=True))
        else:
            before = after = each(0 if padding == "valid" else padding)
        if output_padding is None:
            ones = (1,) * len(kernel)
            return Geometry(strides, dilations, kernel, before, after, ones, groups, False)
        extra = each(output_padding)
        ends = tuple(r - p for r, p in zip(reach, before, strict=True))
        last = tuple(e + o for e, o in zip(ends, extra, strict=True))
        ones = (1,) * len(kernel)
        return Geometry(ones, dilations, kernel, ends, last, strides, groups, True)

    def flops(self, x: Tensor, weight: Tensor) -> int:
        """Of the dense product without the zeros; 2 for a multiply-add."""
        count = len(self.kernel)
        positions = x.numel() // x.shape[-1 - count]
        if not self.transposed:
            sizes = zip(
                x.shape[-count:], self.before, self.after, self.kernel, self.dilation, self.stride,
                strict=True,
            )  # fmt: skip
            outputs = [(n + b + a - d * (k - 1) - 1) // s + 1 for n, b, a, k, d, s in sizes]
            positions = positions // math.prod(x.shape[-count:]) * math.prod(outputs)
        return 2 * positions * weight.numel()


def under(site: Site, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """The convolution of x (N, C, *sizes) or (C, *sizes), without a bias, as `site` says.

    Its gradient is that of the convolution of the quantized values.
    """
    batched = x if x.dim() == weight.dim() else x[None]
    rule = site.rule
    assert rule.datapath is not None
    if rule.activation is not None:
        _check(site, "activation", rule.activation, per_channel=False)
    if rule.weight is not None:
        _check(site, "weight", rule.weight, per_channel=True)
    blocks = math.lcm(_block(rule.activation), _block(rule.weight))
    a, w = _spread(batched, geometry, blocks), _kernel(weight, geometry, blocks)
    seeds = [
        None if q is None else site.seed_for(name, q)
        for name, q in (("activation", rule.activation), ("weight", rule.weight))
    ]
    y: Tensor = _operator(
        a,
        w,
        list(geometry.kernel),
        list(geometry.stride),
        list(geometry.dilation),
        [-1 if seed is None else seed for seed in seeds],
        _text(rule.activation),
        _text(rule.weight),
        _text(rule.datapath),
    )
    return y if x.dim() == weight.dim() else y[0]


def _check(site: Site, name: str, quantizer: Quantizer, per_channel: bool) -> None:
    fmt = quantizer.format
    wrong = ""
    if quantizer.rule == "static":
        wrong = "a calibrated scale"
    elif isinstance(fmt, BlockFormat) and fmt.block == "channel" and not per_channel:
        wrong = "a scale for each position, which no sum over positions can apply"
    elif isinstance(fmt, BlockFormat) and not isinstance(fmt.block, str) and len(fmt.block) > 1:
        wrong = "two-dimensional blocks"
    if wrong:
        raise LowprecError(
            f"{site.path or 'the model'}: {name}={quantizer.spell()} has {wrong}; a convolution "
            "under a datapath takes one per block of K, of the tensor"
            + (", or per output channel" if per_channel else "")
        )


def _block(quantizer: Quantizer | None) -> int:
    fmt = None if quantizer is None else quantizer.format
    if not isinstance(fmt, BlockFormat) or isinstance(fmt.block, str):
        return 1
    return int(fmt.block[-1])


def _spread(x: Tensor, geometry: Geometry, blocks: int) -> Tensor:
    """(N, *sizes, groups, C), with the zeros beside and between."""
    count = len(geometry.kernel)
    x = x.movedim(1, -1).unflatten(-1, (geometry.groups, -1))
    if any(step > 1 for step in geometry.apart):
        sizes = [(n - 1) * s + 1 for n, s in zip(x.shape[1:], geometry.apart, strict=False)]
        wide = x.new_zeros((x.shape[0], *sizes, *x.shape[-2:]))
        index = (slice(None), *(slice(None, None, step) for step in geometry.apart))
        wide[index] = x
        x = wide
    pads = [0, -x.shape[-1] % blocks, 0, 0]
    for i in reversed(range(count)):
        pads += [geometry.before[i], geometry.after[i]]
    return F.pad(x, pads)


def _kernel(weight: Tensor, geometry: Geometry, blocks: int) -> Tensor:
    """(groups, outputs, K) of the weight as torch holds it."""
    w = weight.unflatten(0, (geometry.groups, -1))
    if geometry.transposed:
        w = w.transpose(1, 2).flip(tuple(range(3, w.dim())))
    w = w.movedim(2, -1)
    w = F.pad(w, (0, -w.shape[-1] % blocks))
    return w.flatten(2)


@torch.compiler.assume_constant_result
def _text(spec: Quantizer | Datapath | None) -> str:
    return "" if spec is None else spec.model_dump_json()


@lru_cache(maxsize=256)
def _quantizer(text: str) -> Quantizer | None:
    return Quantizer.model_validate_json(text) if text else None


@lru_cache(maxsize=64)
def _datapath(text: str) -> Datapath:
    return Datapath.model_validate_json(text)


@torch.library.custom_op("lowprec::convolution", mutates_args=())
def _operator(
    a: Tensor,
    w: Tensor,
    kernel: list[int],
    stride: list[int],
    dilation: list[int],
    seeds: list[int],
    activation: str,
    weight: str,
    datapath: str,
) -> Tensor:
    """a (N, *sizes, groups, C) by w (groups, outputs, K): (N, groups outputs, *sizes)."""
    path = _datapath(datapath)
    known = (_quantizer(activation), _quantizer(weight))
    left, right = (_codes(t, q, seed) for t, q, seed in zip((a, w), known, seeds, strict=True))
    y = a.new_empty(_shape(a, w, kernel, stride, dilation))
    for group in range(w.shape[0]):
        matrix = _part(right, group)
        channels = slice(group * w.shape[1], (group + 1) * w.shape[1])
        for n, rows in _tiles(y.shape, w.shape[-1]):
            patches = _patches(left, (n, rows, group), kernel, stride, dilation)
            out = matmul(patches, matrix, datapath=path).to(y.dtype)
            shape = (rows.stop - rows.start, *y.shape[3:], w.shape[1])
            y[n, channels, rows] = out.view(shape).movedim(-1, 0)
    return y


@_operator.register_fake
def _(a: Tensor, w: Tensor, kernel: Any, stride: Any, dilation: Any, *_: Any) -> Tensor:
    return a.new_empty(_shape(a, w, kernel, stride, dilation))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    a, w, *ctx.rest = inputs
    ctx.save_for_backward(a, w)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    kernel, stride, dilation, seeds, *texts, _ = ctx.rest
    values = []
    for t, text, seed in zip(ctx.saved_tensors, texts, seeds, strict=True):
        quantizer = _quantizer(text)
        random = None if seed < 0 else seed
        values.append(t if quantizer is None else fake_quantize(t, quantizer, random=random))
    a, w = values
    x = a.flatten(-2).movedim(-1, 1)  # as torch lays a convolution out
    weight = w.unflatten(-1, (*kernel, -1)).movedim(-1, 2).flatten(0, 1)
    none, wanted = [0] * len(kernel), [True, True, False]
    to_x, to_weight, _ = torch.ops.aten.convolution_backward(
        gradient, x, weight, None, stride, none, dilation, False, none, w.shape[0], wanted
    )
    to_a = to_x.movedim(1, -1).unflatten(-1, a.shape[-2:])
    to_w = to_weight.movedim(1, -1).flatten(1).unflatten(0, w.shape[:2])
    return to_a, to_w, *[None] * len(ctx.rest)


_operator.register_autograd(_backward, setup_context=_setup)


def _shape(a: Tensor, w: Tensor, kernel: Any, stride: Any, dilation: Any) -> tuple[int, ...]:
    sizes = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(a.shape[1:-2], kernel, stride, dilation, strict=True)
    ]
    return (a.shape[0], w.shape[0] * w.shape[1], *sizes)


def _codes(x: Tensor, quantizer: Quantizer | None, seed: int) -> Tensor | QTensor:
    if quantizer is None:
        return x
    return quantize(x, quantizer, random=None if seed < 0 else seed)


def _part(w: Tensor | QTensor, group: int) -> Tensor | QTensor:
    """One group's (outputs, K)."""
    return w[group] if isinstance(w, Tensor) else _mapped(w, lambda t: t[group])


def _mapped(q: QTensor, f: Any) -> QTensor:
    """A QTensor of which `f` has picked codes and all that blocks have of their own."""
    return replace(
        q,
        codes=f(q.codes),
        scales=None if q.scales is None else q.scales if q.scales.numel() == 1 else f(q.scales),
        inner=tuple(map(f, q.inner)),
        offset=None if q.offset is None else f(q.offset),
        outlier=None if q.outlier is None else f(q.outlier),
    )


def _tiles(shape: torch.Size, k: int) -> Iterator[tuple[int, slice]]:
    """Of the output: one of N, and so many of the first size that im2col's matrix stays small."""
    step = max(1, _TILE // max(1, math.prod(shape[3:]) * k))
    for n, start in itertools.product(range(shape[0]), range(0, shape[2], step)):
        yield n, slice(start, min(start + step, shape[2]))


def _patches(
    a: Tensor | QTensor,
    where: tuple[int, slice, int],
    kernel: list[int],
    stride: list[int],
    dilation: list[int],
) -> Any:
    """im2col's rows (positions, K) of a tile."""
    n, rows, group = where

    def pick(t: Tensor) -> Tensor:
        t = t[n, ..., group, :]  # (*sizes, C)
        for i, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True)):
            t = t.unfold(i, d * (k - 1) + 1, s)[..., ::d]
        t = t[rows]  # (*sizes, C, *kernel)
        count = len(kernel)
        t = t.movedim(count, -1)
        return t.reshape(math.prod(t.shape[:count]), -1)

    return pick(a) if isinstance(a, Tensor) else _mapped(a, pick)
