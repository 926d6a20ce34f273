"""fake_quantize as an operator that autograd, vmap, torch.compile and torch.export know."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from lowprec.errors import LowprecError, unknown
from lowprec.kernels import compiled, counter, cpu
from lowprec.kernels.block import scaled
from lowprec.kernels.element import projector
from lowprec.kernels.word import check_out, require, word_of
from lowprec.spec.block import BlockFormat
from lowprec.spec.quantizer import Quantizer

# The random bits of stochastic rounding: integers whose low bits count, where to draw them, or the
# seed of a counter-based generator.
Random = Tensor | torch.Generator | int
GRADIENTS = ("straight-through", "saturation-mask")
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
    word_of(x.dtype)
    plain = _plain_call(quantizer, x.shape, axis)
    if random is None and scale is None and plain.is_plain:
        return plain
    if (scale is None) != (quantizer.rule != "static"):
        raise LowprecError(
            f"{quantizer.spell()}: scale= belongs to the rule static, which needs it"
        )
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
    rank = max(len(shape), 1)
    if not -rank <= axis < rank:
        raise LowprecError(f"axis {axis}: expected {-rank} to {rank - 1} for rank {len(shape)}")
    if isinstance(quantizer.format, BlockFormat):
        # LowprecError where the shape has no such blocks.
        quantizer.format.block_sizes(tuple(shape), axis)
    return Call(quantizer, axis - rank if axis >= 0 else axis)


def _drawn(x: Tensor, bits: int, random: Tensor | torch.Generator | None) -> Tensor:
    """int64 random bits of the shape of `x`."""
    if isinstance(random, torch.Generator):
        drawn = torch.randint(0, 1 << bits, x.shape, generator=random, device=random.device)
        return drawn.to(x.device)
    assert random is not None
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
    if (y := cpu.fake_quantize(x, c.quantizer, c.axis, out, c.seed)) is not None:
        return y
    if x.dtype == torch.float64 or (x.dtype == torch.float32 and x.is_contiguous()):
        if out is None:
            return None
        return _copied(cpu.fake_quantize(x, c.quantizer, c.axis, seed=c.seed), out)
    # The core takes contiguous float32: widening is exact, and its answer is narrowed once.
    y = cpu.fake_quantize(x.float().contiguous(), c.quantizer, c.axis, seed=c.seed)
    return y if y is None else _copied(y, torch.empty_like(x) if out is None else out)


def _copied(y: Tensor | None, out: Tensor) -> Tensor | None:
    return y if y is None else out.copy_(y)


class _StraightThrough(torch.autograd.Function):
    """The gradient outside torch.compile, torch.func's transforms included."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, *rest: Any) -> Tensor:
        return operator(x, *rest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _save(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _backward(ctx, gradient)


def fake_quantize(x: Tensor, c: Call, out: Tensor | None, gradient: str) -> Tensor:
    if gradient not in GRADIENTS:
        raise unknown("gradient", gradient, GRADIENTS)
    differentiable = torch.is_grad_enabled() and x.requires_grad
    if out is not None:
        check_out(out, x.shape, x.dtype)
        if differentiable or (torch.is_grad_enabled() and out.requires_grad):
            raise LowprecError("out= takes no part in autograd; use torch.no_grad()")
    masked = gradient == "saturation-mask"
    if differentiable or torch._C._are_functorch_transforms_active():
        y = _StraightThrough.apply(
            x, text_of(c.quantizer), c.axis, c.random, c.seed, c.scale, masked
        )
        return y if out is None else out.copy_(y)
    return compute(x, c, out)


@lru_cache(maxsize=256)
def text_of(quantizer: Quantizer) -> str:
    """The quantizer as the operator takes it: whole, so that an exported program needs no more."""
    return quantizer.model_dump_json()


@lru_cache(maxsize=256)
def _quantizer_of(text: str) -> Quantizer:
    return Quantizer.model_validate_json(text)


def _called(
    x: Tensor,
    quantizer: str,
    axis: int,
    random: Tensor | None,
    seed: int | None,
    scale: Tensor | None,
) -> Call:
    return call(x, _quantizer_of(quantizer), axis, random if seed is None else seed, scale)


@torch.library.custom_op("lowprec::fake_quantize", mutates_args=())
def operator(
    x: Tensor,
    quantizer: str,
    axis: int,
    random: Tensor | None = None,
    seed: int | None = None,
    scale: Tensor | None = None,
    masked: bool = False,  # noqa: ARG001
) -> Tensor:
    """What torch.compile, torch.export and torch.func see of `fake_quantize`."""
    return compute(x, _called(x, quantizer, axis, random, seed, scale))


@torch.library.custom_op("lowprec::inside", mutates_args=())
def inside_operator(
    x: Tensor,
    quantizer: str,
    axis: int,
    random: Tensor | None = None,
    seed: int | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    return inside(x, _called(x, quantizer, axis, random, seed, scale))


@operator.register_fake
def _(x: Tensor, *_: object, **__: object) -> Tensor:
    return torch.empty_like(x)


@inside_operator.register_fake
def _(x: Tensor, *_: object, **__: object) -> Tensor:
    return torch.empty_like(x, dtype=torch.bool)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    *arguments, masked = inputs
    ctx.save_for_backward(*([inside_operator(*arguments)] if masked else []))


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    masked = gradient * ctx.saved_tensors[0] if ctx.saved_tensors else gradient
    return masked, None, None, None, None, None, None


operator.register_autograd(_backward, setup_context=_save)


def _each_sample(op: Any) -> Any:
    """A vmap rule: one call for the batch where samples do not depend on each other, else a call
    for each; the same seed gives each sample the same bits."""

    def rule(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: Tensor,
        quantizer: str,
        axis: int,
        random: Tensor | None = None,
        seed: int | None = None,
        scale: Tensor | None = None,
        *rest: bool,
    ) -> tuple[Tensor, int]:
        # Arguments at their defaults are left out, and their dimensions with them.
        x_dim, _, _, random_dim, _, scale_dim = (*in_dims[:6], *[None] * (6 - len(in_dims)))

        def batched(t: Tensor | None, dim: int | None) -> Tensor | None:
            if t is None:
                return None
            return t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)

        random, scale = batched(random, random_dim), batched(scale, scale_dim)
        x = x.expand(info.batch_size, *x.shape) if x_dim is None else x.movedim(x_dim, 0)
        axis = axis if axis < 0 else axis - (x.dim() - 1)
        called = Call(_quantizer_of(quantizer), axis, random, seed, scale)
        if not (called.is_whole or seed is not None or scale is not None or x.dim() < 3):
            return op(x, quantizer, axis, random, seed, scale, *rest), 0
        samples = [
            op(
                x[i],
                quantizer,
                axis,
                None if random is None else random[i],
                seed,
                None if scale is None else scale[i],
                *rest,
            )
            for i in range(info.batch_size)
        ]
        return torch.stack(samples), 0

    return rule


operator.register_vmap(_each_sample(operator))
inside_operator.register_vmap(_each_sample(inside_operator))
