"""fake_quantize as an operator that autograd and torch.compile know."""

from __future__ import annotations

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import cpu
from lowprec.kernels.block import scaled
from lowprec.kernels.element import projector
from lowprec.kernels.word import require, word_of
from lowprec.spec.block import BlockFormat
from lowprec.spec.quantizer import Quantizer

# The random bits of stochastic rounding: integers whose low bits count, or where to draw them.
Random = Tensor | torch.Generator
# Elements whose temporaries fit a second-level cache.
SLICE = 1 << 16


def check(x: Tensor, quantizer: Quantizer, axis: int) -> int:
    """The axis counted from the end."""
    word_of(x.dtype)
    if isinstance(quantizer.format, BlockFormat) and x.dtype == torch.float64:
        raise LowprecError(
            f"{quantizer.spell()}: blocks are defined in float32; convert the float64 tensor first"
        )
    rank = max(x.dim(), 1)
    if not -rank <= axis < rank:
        raise LowprecError(f"axis {axis}: expected {-rank} to {rank - 1} for rank {x.dim()}")
    if isinstance(quantizer.format, BlockFormat):
        # LowprecError where the shape has no such blocks.
        quantizer.format.block_sizes(tuple(x.shape), axis)
    return axis - rank if axis >= 0 else axis


def random_bits(x: Tensor, quantizer: Quantizer, random: Random | None) -> Tensor | None:
    """int64 random bits of the shape of `x`, or None."""
    bits = quantizer.projection.bits
    if (bits is None) != (random is None):
        raise LowprecError(
            f"{quantizer.spell()}: random bits belong to stochastic rounding, and it needs them"
        )
    if bits is None or random is None:
        return None
    if isinstance(random, torch.Generator):
        drawn = torch.randint(0, 1 << bits, x.shape, generator=random, device=random.device)
        return drawn.to(x.device)
    if random.shape != x.shape or random.dtype.is_floating_point:
        raise LowprecError(
            f"random of {random.dtype}, shape {tuple(random.shape)}: expected integers of shape "
            f"{tuple(x.shape)}"
        )
    return random.long() & ((1 << bits) - 1)


def define(x: Tensor, quantizer: Quantizer, axis: int, random: Tensor | None) -> Tensor:
    """The definition in torch."""
    fmt = quantizer.format
    if x.numel() == 0:
        return x.clone()
    if isinstance(fmt, BlockFormat):
        return scaled(x.float(), quantizer, axis, random).values.to(x.dtype)
    word = word_of(x.dtype)
    return projector(fmt, quantizer.projection, word)(x.to(word.dtype), random).to(x.dtype)


def compute(
    x: Tensor, quantizer: Quantizer, axis: int, random: Tensor | None, out: Tensor | None
) -> Tensor:
    """The CPU core's answer where it has one, else the definition's: the same bits."""
    if not isinstance(quantizer.format, BlockFormat):
        require(x.dtype, quantizer.format)
    if random is None and x.device.type == "cpu":
        y = _by_core(x, quantizer, axis, out)
        if y is not None:
            return y
    y = define_in_parts(x, quantizer, axis, random)
    return y if out is None else out.copy_(y)


def define_in_parts(x: Tensor, quantizer: Quantizer, axis: int, random: Tensor | None) -> Tensor:
    """`define`, on a CPU in slices of dimension 0 whose temporaries stay in the cache."""
    fmt = quantizer.format
    size = 1
    if isinstance(fmt, BlockFormat):
        if fmt.block == "tensor" or fmt.outer is not None or x.dim() == 0:
            return define(x, quantizer, axis, random)
        size = fmt.block_sizes(tuple(x.shape), axis)[0]
    elif x.is_contiguous() and random is None:
        return _slices(x.view(-1), quantizer, -1, None, SLICE).view(x.shape)
    row = x.numel() // x.shape[0] if x.dim() and x.shape[0] else 1
    return _slices(x, quantizer, axis, random, max(SLICE // (size * max(row, 1)), 1) * size)


def _slices(
    x: Tensor, quantizer: Quantizer, axis: int, random: Tensor | None, length: int
) -> Tensor:
    if x.device.type != "cpu" or x.dim() == 0 or x.shape[0] <= length:
        return define(x, quantizer, axis, random)
    out = torch.empty_like(x)
    for start in range(0, x.shape[0], length):
        part = slice(start, start + length)
        bits = None if random is None else random[part]
        out[part] = define(x[part], quantizer, axis, bits)
    return out


def _by_core(x: Tensor, quantizer: Quantizer, axis: int, out: Tensor | None) -> Tensor | None:
    if (y := cpu.fake_quantize(x, quantizer, axis, out)) is not None:
        return y
    if x.dtype == torch.float64 or (x.dtype == torch.float32 and x.is_contiguous()):
        return None if out is None else _copied(cpu.fake_quantize(x, quantizer, axis), out)
    # The core takes contiguous float32: widening is exact, and its answer is narrowed once.
    y = cpu.fake_quantize(x.float().contiguous(), quantizer, axis)
    return y if y is None else _copied(y, torch.empty_like(x) if out is None else out)


def _copied(y: Tensor | None, out: Tensor) -> Tensor | None:
    return y if y is None else out.copy_(y)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, quantizer: Quantizer, axis: int, random: Tensor | None) -> Tensor:
        return compute(x, quantizer, axis, random, None)

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[object, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ARG004
        return gradient, None, None, None


def fake_quantize(
    x: Tensor, quantizer: Quantizer, axis: int, random: Tensor | None, out: Tensor | None
) -> Tensor:
    if out is not None:
        if out.shape != x.shape or out.dtype != x.dtype:
            raise LowprecError(
                f"out: {out.dtype} of shape {tuple(out.shape)}; expected {x.dtype} of shape "
                f"{tuple(x.shape)}"
            )
        if torch.is_grad_enabled() and (x.requires_grad or out.requires_grad):
            raise LowprecError("out= takes no part in autograd; use torch.no_grad()")
    if torch.is_grad_enabled() and x.requires_grad:
        return _StraightThrough.apply(x, quantizer, axis, random)
    return compute(x, quantizer, axis, random, out)


# torch.compile sees one operator whose quantizer is a name in this table.
_NAMED: dict[str, Quantizer] = {}


def name_of(quantizer: Quantizer) -> str:
    """The name by which the operator finds the quantizer."""
    name = quantizer.digest
    _NAMED[name] = quantizer
    return name


@torch.library.custom_op("lowprec::fake_quantize", mutates_args=())
def operator(x: Tensor, quantizer: str, axis: int, random: Tensor | None = None) -> Tensor:
    """What torch.compile and torch.export see of `fake_quantize`."""
    found = _NAMED[quantizer]
    return compute(x, found, check(x, found, axis), random_bits(x, found, random), None)


@operator.register_fake
def _(x: Tensor, quantizer: str, axis: int, random: Tensor | None = None) -> Tensor:  # noqa: ARG001
    return torch.empty_like(x)


operator.register_autograd(lambda _, gradient: (gradient, None, None, None))
