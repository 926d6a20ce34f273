"""The public functions: text or spec objects in, tensors out."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from lowprec.errors import LowprecError, unknown
from lowprec.kernels import ops, packing, qtensor
from lowprec.kernels.calls import Random, call
from lowprec.kernels.packing import Packed
from lowprec.kernels.qtensor import QTensor
from lowprec.kernels.word import check_out
from lowprec.spec import build, load_format, load_quantizer
from lowprec.spec.format import Format
from lowprec.spec.projection import Projection
from lowprec.spec.quantizer import Quantizer


def cast(
    x: Tensor,
    fmt: Format | str,
    rounding: str = "nearest-even",
    saturation: str = "SatFinite",
    bits: int | None = None,
    random: Random | None = None,
    out: Tensor | None = None,
    gradient: str = "straight-through",
) -> Tensor:
    """Each element of `x` projected onto a scalar format, in the dtype of `x`.

    See `lowprec.spec.Projection` for NaN, Inf, -0 and overflow. float32 and float64 are computed
    in themselves, bfloat16 and float16 in float32, which holds them. LowprecError where the dtype
    does not hold every value of the format. random, out, gradient: as in `fake_quantize`.
    """
    if torch.compiler.is_compiling():
        return _traced(
            x, _text_of_cast(fmt, rounding, saturation, bits), -1, random, None, out, gradient
        )
    quantizer = _cast(fmt, rounding, saturation, bits)
    return fake_quantize(x, quantizer, out=out, random=random, gradient=gradient)


def fake_quantize(
    x: Tensor,
    quantizer: Quantizer | str,
    axis: int = -1,
    out: Tensor | None = None,
    random: Random | None = None,
    scale: Tensor | None = None,
    gradient: str = "straight-through",
) -> Tensor:
    """The values that `x` has after quantization, in the dtype of `x`; blocks run along `axis`.

    See `lowprec.spec.Quantizer`. Blocks of float64 are computed in float64, others in float32; the
    values are rounded to nearest once more where `x` is bfloat16 or float16. out: a tensor of the
    shape and dtype of `x`, `x` itself allowed. random: for stochastic rounding, integers of the
    shape of `x` whose low bits are used, a torch.Generator, or an integer, the seed of a
    counter-based generator that gives the same bits on every device. scale: for the rule static,
    the outermost scales (of `BlockFormat.scale_shape`, of rank 0 for an outer scale per tensor).
    gradient: "straight-through" (1 everywhere), or "saturation-mask" (0 where x / S lies beyond the
    finite values of the element).
    """
    if torch.compiler.is_compiling():
        return _traced(x, _text_of(quantizer), axis, random, scale, out, gradient)
    c = call(x, _quantizer(quantizer), axis, random, scale)
    return ops.fake_quantize(x, c, out, gradient)


def quantize(
    x: Tensor,
    quantizer: Quantizer | str,
    axis: int = -1,
    random: Random | None = None,
    scale: Tensor | None = None,
) -> QTensor:
    """`x` as code points of elements and scales; blocks run along `axis`. No gradient.

    In a block whose scale is NaN the elements are the format's NaN, or code 0 where it has none.
    LowprecError where a NaN has no code point: in the scale, or in an element of a scalar format.
    random, scale: as in `fake_quantize`.
    """
    return qtensor.quantize_tensor(x.detach(), call(x, _quantizer(quantizer), axis, random, scale))


def quantize_packed(
    x: Tensor,
    quantizer: Quantizer | str,
    axis: int = -1,
    random: Random | None = None,
    scale: Tensor | None = None,
) -> Packed:
    """``quantize(x, ...).pack()``, faster: the same bits, without unpacked codes in memory."""
    c = call(x, _quantizer(quantizer), axis, random, scale)
    return packing.quantize_packed(x.detach(), c)


def encode(
    x: Tensor,
    fmt: Format | str,
    rounding: str = "nearest-even",
    saturation: str = "SatFinite",
    bits: int | None = None,
    random: Random | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Code points of `cast(x, ...)`, in the smallest unsigned integer dtype that holds them.

    LowprecError for NaN in a format that has none. out: a tensor of that dtype.
    """
    quantizer = _cast(fmt, rounding, saturation, bits)
    codes = qtensor.encode_tensor(x.detach(), call(x, quantizer, -1, random))
    check_out(out, codes.shape, codes.dtype)
    return codes if out is None else out.copy_(codes)


def decode(
    codes: Tensor,
    fmt: Format | str,
    dtype: torch.dtype = torch.float32,
    out: Tensor | None = None,
) -> Tensor:
    """The values of code points, into `out` if given; LowprecError where `dtype` does not hold the
    format's values, or a code is none of the format's."""
    return qtensor.decode_tensor(codes, _scalar(fmt), dtype, out)


def _traced(
    x: Tensor,
    quantizer: str,
    axis: int,
    random: Random | None,
    scale: Tensor | None,
    out: Tensor | None,
    gradient: str,
) -> Tensor:
    """What torch.compile traces: one operator, which checks its arguments when it runs."""
    if isinstance(random, torch.Generator):
        raise LowprecError("under torch.compile random bits are a tensor or a seed")
    if gradient not in ops.GRADIENTS:
        raise unknown("gradient", gradient, ops.GRADIENTS)
    seed = random if isinstance(random, int) else None
    bits = random if isinstance(random, Tensor) else None
    masked = gradient == "saturation-mask"
    y = ops.operator(x, quantizer, axis, bits, seed, scale, masked)
    return y if out is None else out.copy_(y)


@torch.compiler.assume_constant_result
def _text_of(quantizer: Quantizer | str) -> str:
    return ops.text_of(_quantizer(quantizer))


@torch.compiler.assume_constant_result
def _text_of_cast(fmt: Format | str, rounding: str, saturation: str, bits: int | None) -> str:
    return ops.text_of(_cast(fmt, rounding, saturation, bits))


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
