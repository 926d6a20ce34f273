"""Random Hadamard rotations of blocks, by the fast Walsh-Hadamard transform."""

from __future__ import annotations

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels.counter import bits

_CACHED = 1 << 15  # numbers whose two copies stay in a second-level cache


def signs(size: int, seed: int) -> Tensor:
    """D: `size` random signs, float32; the same for a seed on every machine."""
    return 1.0 - 2.0 * bits(seed, torch.Size([size]), 1, torch.device("cpu"))


def rotate(x: Tensor, signs: Tensor, axis: int = -1, where: str = "") -> Tensor:
    """x D H for every block of ``len(signs)`` along `axis`, in the dtype of `x` (float32 or
    float64).

    H is Sylvester's Hadamard matrix over sqrt(size), its own transpose and inverse. In each of
    log2(size) steps numbers at a distance of 1, 2, 4 ... become their sum and their difference;
    the last result is multiplied by 1 / sqrt(size): the same bits on every device. NaN and Inf
    spread over their block. Differentiable.
    LowprecError, which begins with `where`: `axis` is not made of whole blocks.
    """
    size, length = len(signs), x.shape[axis]
    if length % size:
        fits = length & -length
        raise LowprecError(
            f"{where or 'rotation'}: a rotation of {size} does not divide the {length} channels; "
            f"the largest that does is {fits}"
        )
    last = x.movedim(axis, -1)
    blocks = last.unflatten(-1, (-1, size)) * signs.to(x)
    return hadamard(blocks).flatten(-2).movedim(-1, axis)


@torch.library.custom_op("lowprec::hadamard", mutates_args=())
def hadamard(x: Tensor) -> Tensor:
    """x H along the last dimension, a power of two."""
    rows = x.reshape(-1, x.shape[-1])
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    some = max(1, _CACHED // x.shape[-1]) if x.device.type == "cpu" else max(1, len(rows))
    for first in range(0, len(rows), some):
        _transform(rows[first : first + some], out[first : first + some])
    return out.view(x.shape)


def _transform(rows: Tensor, out: Tensor) -> None:
    size, step = rows.shape[-1], 1
    # The numbers of a block one below the other: each step then adds and subtracts long rows.
    source = rows.T.clone(memory_format=torch.contiguous_format)
    target = torch.empty_like(source)
    while step < size:
        a, b = source.unflatten(0, (-1, 2, step)).unbind(1)
        sums, differences = target.unflatten(0, (-1, 2, step)).unbind(1)
        torch.add(a, b, out=sums)
        torch.sub(a, b, out=differences)
        source, target, step = target, source, 2 * step
    out.copy_(source.mul_(size**-0.5).T)


@hadamard.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


# H is symmetric, so that the gradient is transformed as the input was.
hadamard.register_autograd(lambda _, gradient: hadamard(gradient))
