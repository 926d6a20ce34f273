"""How the CPU core walks over the blocks of a tensor, and what calls of a kind share."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

from lowprec.kernels.core import Task
from lowprec.kernels.plan import Plan, plan_of
from lowprec.spec.block import Block, BlockFormat
from lowprec.spec.quantizer import Quantizer

# Elements of a vector of the core.
LANES = 8


@dataclass(frozen=True)
class Walk:
    """Blocks of b along the k elements that lie `inner` apart, in `outer` slabs of k * inner."""

    outer: int
    k: int
    inner: int
    b: int

    @cached_property
    def unit(self) -> int:
        """Elements that a thread does not share, and starts at multiples of."""
        return self.b * self.inner if self.outer == 1 else self.k * self.inner

    @cached_property
    def scales(self) -> int:
        """Scales of a unit."""
        return self.inner if self.outer == 1 else -(-self.k // self.b) * self.inner

    @cached_property
    def is_aligned(self) -> bool:
        """Whether all vectors begin at multiples of their size, if the first one does."""
        if self.inner > 1:
            return self.inner % LANES == 0
        return self.b % LANES == 0 and (self.outer == 1 or self.k % LANES == 0)

    def part(self, n: int) -> tuple[int, int, int, int]:
        """The same of n elements, which are whole units or the last of all."""
        if self.outer == 1:
            return 1, n // self.inner, self.inner, self.b
        return n // (self.k * self.inner), self.k, self.inner, self.b


@lru_cache(maxsize=1024)
def walk(shape: torch.Size, axis: int, block: Block | int) -> Walk:
    """The blocks along `axis` of a contiguous tensor that is not empty."""
    n = math.prod(shape)
    if block == "tensor":
        return Walk(1, n, 1, n)
    k, inner = shape[axis], math.prod(shape[axis:][1:])
    b = k if isinstance(block, str) else min(block if isinstance(block, int) else block[-1], k)
    # Whole blocks do not care where rows and slabs end: then all of them are one.
    return Walk(1, n // inner, inner, b) if k % b == 0 else Walk(n // (k * inner), k, inner, b)


@dataclass(frozen=True)
class Prepared:
    """What all calls with a quantizer, a shape and an axis share."""

    plan: Plan
    walk: Walk
    n: int
    scale_shape: tuple[int, ...] | None

    @cached_property
    def needs_largest(self) -> bool:
        """Whether an element depends on the whole tensor."""
        return self.plan.outer is not None or self.plan.block == "tensor"

    @cached_property
    def unit(self) -> int:
        """Elements that a thread does not share, and starts at multiples of."""
        return LANES if self.plan.block in (None, "tensor") else self.walk.unit

    @cached_property
    def is_aligned(self) -> bool:
        return self.plan.block in (None, "tensor") or self.walk.is_aligned

    @cached_property
    def task(self) -> Task:
        w, block = self.walk, self.plan.block
        k = 0 if w.outer == 1 else w.k
        return Task(*self.plan.addresses, k, w.inner, 0 if block in (None, "tensor") else w.b)

    @cached_property
    def address(self) -> int:
        """Of the task; good as long as this is."""
        return ctypes.addressof(self.task)


# By identity: to hash a quantizer takes as long as to quantize a small tensor.
_PREPARED: dict[tuple[int, torch.Size, int], tuple[Quantizer, Prepared | None]] = {}


def prepared(quantizer: Quantizer, shape: torch.Size, axis: int) -> Prepared | None:
    """None for what the core does not cover, and for empty tensors."""
    key = id(quantizer), shape, axis
    known = _PREPARED.get(key)
    if known is None:
        if len(_PREPARED) >= 4096:
            _PREPARED.clear()
        known = _PREPARED[key] = quantizer, _prepared(quantizer, shape, axis)
    return known[1]


def _prepared(quantizer: Quantizer, shape: torch.Size, axis: int) -> Prepared | None:
    plan, n = plan_of(quantizer), math.prod(shape)
    if plan is None or not n:
        return None
    blocked = isinstance(plan.format, BlockFormat)
    scale_shape = plan.format.scale_shape(tuple(shape), axis) if blocked else None
    return Prepared(plan, walk(shape, axis, plan.block or "tensor"), n, scale_shape)
