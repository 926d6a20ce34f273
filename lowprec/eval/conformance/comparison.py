"""How many answers of the kernels were held against the oracle's, and which differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
LISTED = 5


@dataclass(frozen=True)
class Comparison:
    """compared: answers of the kernels that were held against the oracle's. differing: those that
    differ in a bit. problems: one line for each kind of them."""

    compared: int = 0
    differing: int = 0
    problems: tuple[str, ...] = ()

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(
            self.compared + other.compared,
            self.differing + other.differing,
            self.problems + other.problems,
        )


Step = Callable[[], Comparison]


def compare(title: str, found: Tensor, expected: Tensor, x: Tensor) -> Comparison:
    """Two tensors of answers to `x`."""
    wrong = differing(found, expected)
    if not (count := int(wrong.sum())):
        return Comparison(found.numel())
    of, got, want = (t.expand_as(wrong)[wrong][:LISTED].tolist() for t in (x, found, expected))
    line = f"{title}: {count} of {found.numel()} differ: of {of} {got}, expected {want}"
    return Comparison(found.numel(), count, (line,))


def differing(found: Tensor, expected: Tensor) -> Tensor:
    """Where two tensors of one dtype differ in a bit."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if not found.is_floating_point():
        return found != expected
    as_int = INTEGERS.get(found.dtype, torch.int16)
    bits = found.contiguous().view(as_int) != expected.contiguous().view(as_int)
    return bits & ~(found.isnan() & expected.isnan())
