"""Inputs and comparisons of the tests of layouts."""

from __future__ import annotations

from dataclasses import fields

import torch

import lowprec as lp


def random_bytes(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """NaN equals NaN whatever its bits, and zeros have signs."""
    a, b = a.float(), b.float()
    bits = a.view(torch.int32) == b.view(torch.int32)
    return a.shape == b.shape and bool((bits | (a.isnan() & b.isnan())).all())


def same_codes(a: lp.QTensor, b: lp.QTensor) -> bool:
    """All tensors alike, dtypes included, whatever rule chose the scales."""

    def equal(x: object, y: object) -> bool:
        if isinstance(x, torch.Tensor):
            return x.dtype == y.dtype and torch.equal(x, y)
        return x == y

    names = [field.name for field in fields(a) if field.name != "quantizer"]
    return all(equal(getattr(a, n), getattr(b, n)) for n in names)
