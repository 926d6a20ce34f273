"""Block formats of other libraries, on blocks that are hard and that all of them take."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from functools import cache

import gfloat
import gfloat.formats
import gguf
import numpy as np
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize, quantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from torch import Tensor

import lowprec as lp
from lowprec.eval import hard_inputs
from lowprec.kernels import layouts
from lowprec.spec import BlockFormat, Quantizer, load_format
from tests.peers.case import Case, Reason

with warnings.catch_warnings():  # torchao warns of its own optional parts
    warnings.simplefilter("ignore")
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

WIDTH = 64


@cache
def rows() -> Tensor:
    """Rows of 64: those built to break, every bfloat16 in random order, random bits, numbers of
    like magnitude."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(1 << 16, generator=generator)
    normal = hard_inputs.bell((1024, WIDTH), generator)
    exponents = torch.randint(-149, 120, (1024, 1), generator=generator)
    return torch.cat([
        *hard_inputs.breaking(WIDTH),
        hard_inputs.every_bfloat16()[order].view(-1, WIDTH),
        hard_inputs.random_bits(1 << 16).view(-1, WIDTH),
        normal,
        normal * 2.0**exponents,
        normal[:128] * 2.0**-127,
    ])  # fmt: skip


@cache
def finite_rows() -> Tensor:
    """Those of ordinary magnitudes, and zeros: for scales of a whole tensor, and of 16 bits."""
    x = rows()
    largest = x.abs().amax(1)
    usual = x[(largest < 1e4) & (x.abs().amin(1) > 0) & (largest > 1e-2)]
    return torch.cat([usual, torch.zeros(1, WIDTH)])


def amax(x: Tensor, size: int) -> Tensor:
    """The largest magnitude of its block, for every element, flat; NaN where one is NaN."""
    return x.reshape(-1, size).abs().amax(1, keepdim=True).expand(-1, size).flatten()


def scale(q: lp.QTensor) -> Tensor:
    """The scale of its block for every element, flat, in float64."""
    fmt = q.quantizer.format
    each = lp.decode(q.scales, fmt.scale).double() * (1 if q.outer_scale is None else q.outer_scale)
    return each.repeat_interleave(fmt.block[0], -1).flatten()


LEAST = Reason("takes a block scale of at least 2^-6", lambda c: c.ours < 2.0**-6)


def case(
    peer: str, what: str, rule: str, x: Tensor, theirs: Tensor, reasons: tuple[Reason, ...] = ()
) -> Case:
    ours = lp.fake_quantize(x, f"{what.partition(' ')[0]}/{rule}")
    return Case(peer, what, rule, x.flatten(), ours.flatten(), theirs.flatten(), reasons)


def not_finite(size: int, why: str) -> Reason:
    return Reason(why, lambda c: ~amax(c.x, size).isfinite())


def near_tie(q: lp.QTensor, why: str, tolerance: float) -> Reason:
    """Elements so close to a tie that a relative error of their scale decides."""

    def where(c: Case) -> Tensor:
        fmt = q.quantizer.format
        unit, shift = c.x.double() / scale(q), 0.0
        if q.offset is not None:
            offset = lp.decode(q.offset, fmt.offset).double()
            shift = offset.repeat_interleave(fmt.block[0], -1).flatten() / scale(q)
        error = tolerance * (unit.abs() + abs(shift))
        unit = unit + shift
        return lp.cast(unit - error, fmt.element) != lp.cast(unit + error, fmt.element)

    return Reason(why, where)


KEEPS_SIGN = Reason("keeps -0, which no integer has", lambda c: (c.ours == 0) & (c.theirs == 0))
ZERO_SIGN = Reason("gives +0 for -0", lambda c: (c.ours == 0) & (c.theirs == 0))


def _log2_rounds_up(c: Case) -> Tensor:
    largest = amax(c.x, 32)
    with np.errstate(divide="ignore"):
        theirs = torch.from_numpy(np.log2(largest.numpy())).floor()
    return theirs != largest.frexp()[1] - 1


LOG2 = Reason("takes floor(log2) in float32, which rounds up below 2^k", _log2_rounds_up)

TORCHAO = {
    "mxfp8_e4m3": torch.float8_e4m3fn,
    "mxfp8_e5m2": torch.float8_e5m2,
    "mxfp6_e2m3": "fp6_e2m3",
    "mxfp6_e3m2": "fp6_e3m2",
    "mxfp4": torch.float4_e2m1fn_x2,
}


def nibbles(packed: Tensor) -> Tensor:
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2)


def torchao_mx(x: Tensor, name: str, mode: str) -> Tensor:
    scales, codes = to_mx(x, TORCHAO[name], 32, ScaleCalculationMode(mode))
    fmt = load_format(name)
    if name == "mxfp4":
        codes = nibbles(codes)
    elements = (
        codes.double() if codes.is_floating_point() else lp.decode(codes, fmt.element).double()
    )
    return (elements * _each(scales.double(), 32)).float()


TORCHAO_INF = not_finite(
    32, "takes 2^128 for Inf: that stays Inf, and what else is in the block becomes small or zero"
)


def of_torchao() -> Iterator[Case]:
    x = rows()
    for name, mode in itertools.product(TORCHAO, ("floor", "ceil", "even", "rceil")):
        low = (scale(lp.quantize(x, f"{name}/{mode}")) == 2.0**-127).flatten()
        lost = "gives zeros" if mode == "rceil" else "divides by 2^-126 and multiplies by 2^-127"
        smallest = Reason(f"{lost} where the scale is 2^-127", lambda _, low=low: low)
        theirs = torchao_mx(x, name, mode)
        yield case("torchao", name, mode, x, theirs, (TORCHAO_INF, smallest))
    yield from _nvfp4_of_torchao()


def _torchao_nvfp4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Block scales and values."""
    t = per_tensor_amax_to_scale(x.abs().amax())
    scales, packed = nvfp4_quantize(x, 16, t)
    values = lp.decode(nibbles(packed), "float4_e2m1fn") * _each(scales.float() * t, 16)
    return scales.float(), values


def _nvfp4_of_torchao() -> Iterator[Case]:
    x = finite_rows()
    scales, theirs = _torchao_nvfp4(x)
    q = lp.quantize(x, "nvfp4/amax")
    clamped = Reason(LEAST.why, lambda _: scale(q) / q.outer_scale < 2.0**-6)
    yield case("torchao", "nvfp4", "amax", x, theirs, (clamped,))
    yield _nvfp4_scales("torchao", x, scales, (LEAST,))
    zeros = torch.zeros(1, 32)
    divided = Reason("divides 0 by 0 in a tensor of zeros", lambda c: c.x == 0)
    yield case("torchao", "nvfp4 of zeros", "amax", zeros, _torchao_nvfp4(zeros)[1], (divided,))


def _nvfp4_scales(peer: str, x: Tensor, theirs: Tensor, reasons: tuple[Reason, ...]) -> Case:
    """One of every block, by its largest magnitude."""
    ours = lp.decode(lp.quantize(x, "nvfp4/amax").scales, "float8_e4m3fn")
    largest = x.unflatten(-1, (-1, 16)).abs().amax(-1)
    flat = [t.flatten() for t in (largest, ours, theirs)]
    return Case(peer, "nvfp4 scales", "amax", *flat, reasons)


def _each(scales: Tensor, size: int) -> Tensor:
    return scales.repeat_interleave(size, -1)


def of_compressed_tensors() -> Iterator[Case]:
    with torch.compiler.set_stance("force_eager"):
        yield from _nvfp4_of_compressed_tensors()
        yield from _mx_of_compressed_tensors()
        yield from _groups_of_compressed_tensors()


def _parameters(x: Tensor, args: QuantizationArgs, g: Tensor | None = None) -> tuple[Tensor, ...]:
    parts = x.unflatten(-1, (-1, args.group_size))
    return calculate_qparams(parts.amin(-1), parts.amax(-1), args, g)


def _nvfp4_of_compressed_tensors() -> Iterator[Case]:
    """Scales and elements apart: its values are element * (scale / g), one ulp beside ours."""
    x = finite_rows()
    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16,
                            scale_dtype=torch.float8_e4m3fn)  # fmt: skip
    g = generate_gparam(x.amin(), x.amax())
    scales, _ = _parameters(x, args, g)
    eighth = Reason("takes 0.125 for a scale of zero", lambda c: c.ours == 0)
    yield _nvfp4_scales("compressed-tensors", x, scales.float(), (eighth,))
    elements = quantize(x, scales.float(), None, args, global_scale=g)
    ours = lp.decode(lp.quantize(x, "nvfp4/amax").codes, "float4_e2m1fn")
    yield Case(
        "compressed-tensors", "nvfp4 elements", "amax", x.flatten(), ours.flatten(),
        elements.flatten(),
    )  # fmt: skip


COMPRESSED_INF = not_finite(32, "takes 2^-127 or Inf for the scale of a block with NaN or Inf")
COMPRESSED_TOP = Reason(
    "rounds A up to 2^128, Inf, and with it the scale: the block is NaN",
    lambda c: amax(c.x, 32) >= 1.75 * 2.0**127,
)
COMPRESSED_E4M3 = Reason(
    "rounds A to the two bits of E2M1 for E4M3 too",
    lambda c: (amax(c.x, 32).frexp()[0] >= 0.875) & (amax(c.x, 32).frexp()[0] < 0.96875),
)
COMPRESSED_MX = {
    "mxfp4": (4, (COMPRESSED_INF, COMPRESSED_TOP, ZERO_SIGN)),
    "mxfp6_e2m3": (6, (COMPRESSED_INF, COMPRESSED_TOP)),
    "mxfp8_e4m3": (8, (COMPRESSED_INF, COMPRESSED_TOP, COMPRESSED_E4M3)),
}


def _mx_of_compressed_tensors() -> Iterator[Case]:
    x = rows()
    for name, (bits, reasons) in COMPRESSED_MX.items():
        args = QuantizationArgs(num_bits=bits, type="float", strategy="group", group_size=32,
                                scale_dtype=torch.uint8)  # fmt: skip
        scales, _ = _parameters(x, args)
        theirs = fake_quantize(x, scales.float(), None, args)
        yield case("compressed-tensors", name, "even", x, theirs, reasons)


def _groups_of_compressed_tensors() -> Iterator[Case]:
    """Symmetric: rounding under its scales, which are A / 7.5 where the rule amax has A / 7."""
    x = finite_rows()
    args = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    symmetric = QuantizationArgs(**args)
    scales, zero = _parameters(x, symmetric)
    theirs = fake_quantize(x, scales, zero, symmetric)
    ours = lp.fake_quantize(x, "int4_g32/static", scale=scales)
    yield Case(
        "compressed-tensors",
        "int4_g32",
        "static",
        x.flatten(),
        ours.flatten(),
        theirs.flatten(),
        (KEEPS_SIGN,),
    )
    asymmetric = QuantizationArgs(**args, symmetric=False)
    scales, zero = _parameters(x, asymmetric)
    theirs = fake_quantize(x, scales, zero, asymmetric)
    int4 = load_format("int4")
    fmt = BlockFormat(
        name="int4_zp_g32", element=int4, scale=load_format("float32"), block=(32,), zero_point=int4
    )
    ours = lp.fake_quantize(x, Quantizer(format=fmt, rule="minmax"))
    yield Case(
        "compressed-tensors",
        fmt.name,
        "minmax",
        x.flatten(),
        ours.flatten(),
        theirs.flatten(),
        (KEEPS_SIGN,),
    )


GFLOAT = {
    "mxfp8_e4m3": gfloat.formats.format_info_ocp_e4m3,
    "mxfp8_e5m2": gfloat.formats.format_info_ocp_e5m2,
    "mxfp6_e2m3": gfloat.formats.format_info_ocp_e2m3,
    "mxfp6_e3m2": gfloat.formats.format_info_ocp_e3m2,
    "mxfp4": gfloat.formats.format_info_ocp_e2m1,
    "mxint8": gfloat.formats.format_info_ocp_int8,
}


def of_gfloat() -> Iterator[Case]:
    """In float32, as it comes; blocks of finite numbers, as it refuses others."""
    x = torch.cat(hard_inputs.breaking(WIDTH))
    x = x[x.isfinite().all(1)].view(-1, 32)
    for name, element in GFLOAT.items():
        fmt = gfloat.BlockFormatInfo(name, element, 32, gfloat.formats.format_info_ocp_e8m0)
        blocks = [gfloat.quantize_block(fmt, b, gfloat.compute_scale_amax) for b in x.numpy()]
        theirs = torch.from_numpy(np.stack(blocks)).float()
        yield case("gfloat", name, "floor", x, theirs, (LOG2,))


GGUF = {
    "gguf_q4_0": "signed",
    "gguf_q4_1": "minmax",
    "gguf_q5_0": "signed",
    "gguf_q5_1": "minmax",
    "gguf_q8_0": "amax",
}


GGUF_TINY = Reason("lets the exponent of the scale wrap", lambda c: amax(c.x, 32) < 2.0**-125)


def _gguf(x: Tensor, name: str) -> Tensor:
    kind = gguf.GGMLQuantizationType[name.removeprefix("gguf_").upper()]
    with np.errstate(all="ignore"):
        return torch.from_numpy(gguf.dequantize(gguf.quantize(x.numpy(), kind), kind))


def of_gguf() -> Iterator[Case]:
    x = finite_rows()
    for name, rule in GGUF.items():
        q = lp.quantize(x, f"{name}/{rule}")
        why = "takes elements by scales not yet rounded to float16: 2^-11, which decides near ties"
        yield case("gguf", name, rule, x, _gguf(x, name), (near_tie(q, why, 2.0**-10),))
    x = rows()
    q = lp.quantize(x, "mxfp4/floor")
    tie = near_tie(q, "takes the smaller magnitude of two as near", 2.0**-40)
    infinite = not_finite(32, "gives zeros for a block with NaN or Inf")
    reasons = (infinite, ZERO_SIGN, tie, LOG2, GGUF_TINY)
    yield case("gguf", "mxfp4", "floor", x, _gguf(x, "mxfp4"), reasons)
    yield from _bytes_of_gguf()


def _bytes_of_gguf() -> Iterator[Case]:
    """Random bytes as each reads them. mxfp4 without 255, which is NaN here and 2^128 there, and
    tq2_0 without its code of two set bits."""
    generator = torch.Generator().manual_seed(0)
    for name, layout in layouts.gguf.LAYOUTS.items():
        kind = gguf.GGMLQuantizationType[name.removeprefix("gguf_").upper()]
        nbytes = gguf.GGML_QUANT_SIZES[kind][1]
        data = torch.randint(0, 256, (100, nbytes), generator=generator, dtype=torch.uint8)
        if name == "gguf_tq2_0":
            data[:, :-2] &= ~((data[:, :-2] >> 1) & data[:, :-2] & 0x55)
        if name == "mxfp4":
            data[:, 0] %= 255
        ours = layouts.from_gguf(data, name, (100, layout.size)).dequantize().flatten()
        with np.errstate(all="ignore"):
            theirs = torch.from_numpy(gguf.dequantize(data.numpy(), kind)).flatten()
        reasons = (ZERO_SIGN,) if name == "mxfp4" else ()
        yield Case("gguf", f"{name} bytes", "dequantize", ours, ours, theirs, reasons)
