"""One quantization: its arguments, checked, and who computes it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import compiled, counter, cpu
from lowprec.kernels.block import scaled
from lowprec.kernels.element import projector
from lowprec.kernels.walk import Prepared, prepared
from lowprec.kernels.word import require, word_of
from lowprec.spec.block import BlockFormat
from lowprec.spec.quantizer import Quantizer

# The random bits of stochastic rounding: integers whose low bits count, where to draw them, or the
# seed of a counter-based generator.
Random = Tensor | torch.Generator | int
# Elements whose temporaries fit a second-level cache.
SLICE = 1 << 16


@dataclass(frozen=True)
class Call:
    """What a quantization needs beside the tensor. `axis` is counted from the end; random bits
    are given or follow from the seed."""

    quantizer: Quantizer
    axis: int
    random: Tensor | None = None
    seed: int | None = None
    scale: Tensor | None = None
    # What the CPU core needs for the tensor's shape, where that was asked already.
    prepared: Prepared | None = None

    @cached_property
    def is_plain(self) -> bool:
        """Whether the quantizer needs no more than the tensor."""
        return self.quantizer.projection.bits is None and self.quantizer.rule != "static"

    @property
    def is_whole(self) -> bool:
        """Whether an element depends on the whole tensor."""
        fmt = self.quantizer.format
        if not isinstance(fmt, BlockFormat):
            return False
        return fmt.block == "tensor" or (fmt.outer is not None and fmt.outer.block == "tensor")

    def bits_for(self, x: Tensor) -> Tensor | None:
        n = self.quantizer.projection.bits
        if self.seed is None or n is None:
            return self.random
        return counter.bits(self.seed, x.shape, n, x.device)


def call(
    x: Tensor,
    quantizer: Quantizer,
    axis: int,
    random: Random | None = None,
    scale: Tensor | None = None,
) -> Call:
    """The arguments checked: LowprecError for what does not fit together."""
    try:
        word_of(x.dtype)
    except AttributeError:
        raise LowprecError(f"x is a {type(x).__name__}; expected a tensor") from None
    plain = _plain_call(quantizer, x.shape, axis)
    if random is None and scale is None and plain.is_plain:
        return plain
    if (scale is None) != (quantizer.rule != "static"):
        raise LowprecError(
            f"{quantizer.spell()}: scale= belongs to the rule static, which needs it"
        )
    if scale is not None and not isinstance(scale, Tensor):
        raise LowprecError(f"scale={scale!r}: expected a tensor")
    axis = plain.axis
    bits = quantizer.projection.bits
    if (bits is None) != (random is None):
        raise LowprecError(
            f"{quantizer.spell()}: random bits belong to stochastic rounding, and it needs them"
        )
    if isinstance(random, int):
        if not 0 <= random < 1 << 64:
            raise LowprecError(f"random={random}: a seed is an integer from 0 to 2^64 - 1")
        return Call(quantizer, axis, None, random, scale)
    return Call(quantizer, axis, None if bits is None else _drawn(x, bits, random), None, scale)


# By identity: to hash a quantizer takes as long as to quantize a small tensor.
_PLAIN: dict[tuple[int, torch.Size, int], Call] = {}


def _plain_call(quantizer: Quantizer, shape: torch.Size, axis: int) -> Call:
    key = id(quantizer), shape, axis
    known = _PLAIN.get(key)
    if known is None:
        if len(_PLAIN) >= 4096:
            _PLAIN.clear()
        known = _PLAIN[key] = _checked(quantizer, shape, axis)
    return known


def _checked(quantizer: Quantizer, shape: torch.Size, axis: int) -> Call:
    if not isinstance(quantizer, Quantizer):
        raise LowprecError(f"quantizer {quantizer!r}: expected a text or a lowprec.spec.Quantizer")
    if not isinstance(axis, int):
        raise LowprecError(f"axis={axis!r}: expected an integer")
    rank = max(len(shape), 1)
    if not -rank <= axis < rank:
        raise LowprecError(f"axis {axis}: expected {-rank} to {rank - 1} for rank {len(shape)}")
    if isinstance(quantizer.format, BlockFormat):
        # LowprecError where the shape has no such blocks.
        quantizer.format.block_sizes(tuple(shape), axis)
    axis = axis - rank if axis >= 0 else axis
    return Call(quantizer, axis, prepared=prepared(quantizer, shape, axis))


def _drawn(x: Tensor, bits: int, random: Tensor | torch.Generator | None) -> Tensor:
    """int64 random bits of the shape of `x`."""
    if isinstance(random, torch.Generator):
        drawn = torch.randint(0, 1 << bits, x.shape, generator=random, device=random.device)
        return drawn.to(x.device)
    if not isinstance(random, Tensor):
        raise LowprecError(f"random={random!r}: expected a tensor, a torch.Generator or an integer")
    if random.shape != x.shape or random.dtype.is_floating_point:
        raise LowprecError(
            f"random of {random.dtype}, shape {tuple(random.shape)}: expected integers of shape "
            f"{tuple(x.shape)}"
        )
    return random.long() & ((1 << bits) - 1)


def define(x: Tensor, c: Call) -> Tensor:
    """The definition in torch."""
    fmt, word = c.quantizer.format, word_of(x.dtype)
    if x.numel() == 0:
        return x.clone()
    wide, random = x.to(word.dtype), c.bits_for(x)
    if isinstance(fmt, BlockFormat):
        return scaled(wide, c.quantizer, c.axis, random, c.scale).values.to(x.dtype)
    return projector(fmt, c.quantizer.projection, word)(wide, random).to(x.dtype)


def inside(x: Tensor, c: Call) -> Tensor:
    """Where an element lies within the finite values of its format, before it is rounded."""
    fmt, word = c.quantizer.format, word_of(x.dtype)
    units, element = x.to(word.dtype), fmt
    if isinstance(fmt, BlockFormat):
        units, element = (
            scaled(units, c.quantizer, c.axis, c.bits_for(x), c.scale).units,
            fmt.element,
        )
    assert not isinstance(element, BlockFormat)
    return (units >= float(element.min_exact)) & (units <= float(element.max_exact))


def compute(x: Tensor, c: Call, out: Tensor | None = None) -> Tensor:
    """The CPU core's answer where it has one, else the definition's: the same bits."""
    if not isinstance(c.quantizer.format, BlockFormat):
        require(x.dtype, c.quantizer.format)
    if c.random is None and c.scale is None and x.is_cpu:
        y = _by_core(x, c, out)
        if y is not None:
            return y
    if x.numel() and compiled.serves(x.device):
        return compiled.define(x, c.quantizer, c.axis, c.bits_for(x), c.scale, out)
    y = define_in_parts(x, c)
    return y if out is None else out.copy_(y)


def define_in_parts(x: Tensor, c: Call) -> Tensor:
    """`define`, on a CPU in slices of dimension 0 whose temporaries stay in the cache."""
    fmt = c.quantizer.format
    size = 1
    if c.is_whole or c.seed is not None or c.scale is not None or x.dim() == 0:
        return define(x, c)
    if isinstance(fmt, BlockFormat):
        coarse = fmt.outer.block if fmt.outer else fmt.block
        size = fmt.block_sizes(tuple(x.shape), c.axis, coarse)[0]
    elif x.is_contiguous() and c.random is None:
        return _slices(x.view(-1), c, SLICE).view(x.shape)
    row = x.numel() // x.shape[0] if x.shape[0] else 1
    return _slices(x, c, max(SLICE // (size * max(row, 1)), 1) * size)


def _slices(x: Tensor, c: Call, length: int) -> Tensor:
    if x.device.type != "cpu" or x.shape[0] <= length:
        return define(x, c)
    out = torch.empty_like(x)
    for start in range(0, x.shape[0], length):
        part = slice(start, start + length)
        bits = None if c.random is None else c.random[part]
        out[part] = define(x[part], Call(c.quantizer, c.axis, bits))
    return out


def _by_core(x: Tensor, c: Call, out: Tensor | None) -> Tensor | None:
    p = c.prepared or prepared(c.quantizer, x.shape, c.axis)
    if (y := cpu.computed(x, p, out, c.seed)) is not None:
        return y
    if x.dtype == torch.float64 or (x.dtype == torch.float32 and x.is_contiguous()):
        if out is None:
            return None
        return _copied(cpu.computed(x, p, seed=c.seed), out)
    # The core takes contiguous float32: widening is exact, and its answer is narrowed once.
    y = cpu.computed(x.float().contiguous(), p, seed=c.seed)
    return y if y is None else _copied(y, torch.empty_like(x) if out is None else out)


def _copied(y: Tensor | None, out: Tensor) -> Tensor | None:
    return y if y is None else out.copy_(y)
