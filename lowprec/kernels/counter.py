"""Random bits that follow from a seed and an element's index alone: the same on every device, in
any number of threads and parts.

All arithmetic is modulo 2^32. mix is triple32 (C. Wellons, public domain):
  h ^= h >> 17; h *= 0xed5ad4bb; h ^= h >> 11; h *= 0xac4c1b51; h ^= h >> 15; h *= 0x31848bab;
  h ^= h >> 14
With the halves of the 64-bit seed and of the row-major index i,
  k0 = mix(seed_low ^ mix(i_high + 0x9e3779b9)), k1 = mix(seed_high ^ mix(k0 + 0x85ebca6b)),
the word of i is mix(i_low ^ k0) with k1 added before the second multiplication, and its n random
bits are the highest n. (With two multiplications, as in lowbias32, the highest byte of 2^22
successive words is not uniform: chi-squared about 490 for 255 degrees of freedom.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def bits(seed: int, shape: torch.Size, n: int, device: torch.device) -> Tensor:
    """int64 integers of `n` (1 to 32) random bits, of the given shape."""
    index = torch.arange(math.prod(shape), device=device)
    low, high = index & _MASK, index >> 32
    k0 = _mix(_mix(high + 0x9E3779B9) ^ (seed & _MASK))
    k1 = _mix(_mix(k0 + 0x85EBCA6B) ^ (seed >> 32))
    return (_mix(low ^ k0, k1) >> (32 - n)).view(shape)


def _mix(h: Tensor, key: Tensor | int = 0) -> Tensor:
    # A product of 64 bits wraps around; its low 32 bits are right.
    h = h & _MASK
    h = h ^ (h >> 17)
    h = (h * 0xED5AD4BB) & _MASK
    h = h ^ (h >> 11)
    h = (((h + key) & _MASK) * 0xAC4C1B51) & _MASK
    h = h ^ (h >> 15)
    h = (h * 0x31848BAB) & _MASK
    return h ^ (h >> 14)
