"""The public functions: text or spec objects in, tensors out."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import ops, qtensor
from lowprec.kernels.qtensor import QTensor
from lowprec.kernels.word import require, word_of
from lowprec.spec import build, load_format, load_quantizer
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import Format
from lowprec.spec.projection import Projection
from lowprec.spec.quantizer import Quantizer

# The random bits of stochastic rounding: integers whose low bits count, or where to draw them.
Random = Tensor | torch.Generator


def cast(
    x: Tensor,
    fmt: Format | str,
    rounding: str = "nearest-even",
    saturation: str = "SatFinite",
    bits: int | None = None,
    random: Random | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Each element of `x` projected onto a scalar format, in the dtype of `x`.

    See `lowprec.spec.Projection` for NaN, Inf, -0 and overflow. float32 and float64 are computed
    in themselves, bfloat16 and float16 in float32, which holds them. LowprecError where the dtype
    does not hold every value of the format. random: for stochastic rounding, integers of the
    shape of `x` whose low `bits` bits are used, or a generator. The gradient is straight-through.
    """
    return fake_quantize(x, _cast(fmt, rounding, saturation, bits), out=out, random=random)


def fake_quantize(
    x: Tensor,
    quantizer: Quantizer | str,
    axis: int = -1,
    out: Tensor | None = None,
    random: Random | None = None,
) -> Tensor:
    """The values that `x` has after quantization, in the dtype of `x`; blocks run along `axis`.

    See `lowprec.spec.Quantizer`. Block formats compute in float32: the values are rounded to
    nearest once more where `x` is bfloat16 or float16, and float64 is a LowprecError. out: a
    tensor of the shape and dtype of `x`, `x` itself allowed. The gradient is straight-through.
    """
    quantizer = _quantizer(quantizer)
    axis = _check(x, quantizer, axis)
    if not isinstance(quantizer.format, BlockFormat):
        require(x.dtype, quantizer.format)
    return ops.fake_quantize(x, quantizer, axis, _random(x, quantizer, random), out)


def quantize(
    x: Tensor, quantizer: Quantizer | str, axis: int = -1, random: Random | None = None
) -> QTensor:
    """`x` as code points of elements and scales; blocks run along `axis`. No gradient.

    In a block whose scale is NaN the elements are the format's NaN, or code 0 where it has none.
    LowprecError where a NaN has no code point: in the scale, or in an element of a scalar format.
    """
    quantizer = _quantizer(quantizer)
    axis = _check(x, quantizer, axis)
    return qtensor.quantize_tensor(x.detach(), quantizer, axis, _random(x, quantizer, random))


def encode(
    x: Tensor,
    fmt: Format | str,
    rounding: str = "nearest-even",
    saturation: str = "SatFinite",
    bits: int | None = None,
    random: Random | None = None,
) -> Tensor:
    """Code points of `cast(x, ...)`, in the smallest unsigned integer dtype that holds them.

    LowprecError for NaN in a format that has none.
    """
    quantizer = _cast(fmt, rounding, saturation, bits)
    word_of(x.dtype)
    return qtensor.encode_tensor(x.detach(), quantizer, _random(x, quantizer, random))


def decode(codes: Tensor, fmt: Format | str, dtype: torch.dtype = torch.float32) -> Tensor:
    """The values of code points; LowprecError where `dtype` does not hold the format's values, or
    a code is none of the format's."""
    return qtensor.decode_tensor(codes, _scalar(fmt), dtype)


def _scalar(fmt: Format | str) -> Format:
    fmt = load_format(fmt) if isinstance(fmt, str) else fmt
    if not isinstance(fmt, Format):
        raise LowprecError(f"{fmt.name!r} is a block format; expected a scalar one")
    return fmt


def _quantizer(quantizer: Quantizer | str) -> Quantizer:
    return _loaded(quantizer) if isinstance(quantizer, str) else quantizer


@lru_cache(maxsize=256)
def _loaded(text: str) -> Quantizer:
    return load_quantizer(text)


@lru_cache(maxsize=1024)
def _cast(fmt: Format | str, rounding: str, saturation: str, bits: int | None) -> Quantizer:
    projection = {"rounding": rounding, "saturation": saturation, "bits": bits}
    return Quantizer(
        format=_scalar(fmt), rule="cast", projection=build(Projection, projection, "cast")
    )


def _check(x: Tensor, quantizer: Quantizer, axis: int) -> int:
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
        quantizer.format.block_sizes(tuple(x.shape), axis)  # an error where there are no blocks
    return axis - rank if axis >= 0 else axis


def _random(x: Tensor, quantizer: Quantizer, random: Random | None) -> Tensor | None:
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
