"""Our formats as compressed-tensors says them: `QuantizationArgs`, and the tensors of a weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lowprec.checkpoints.formats import FLOATS
from lowprec.errors import LowprecError
from lowprec.kernels import QTensor, layouts
from lowprec.nn.stored.modules import Activation
from lowprec.spec import load_format
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import Format, IntFormat
from lowprec.spec.projection import Projection
from lowprec.spec.quantizer import POWER_OF_TWO_RULES

_E4M3 = "float8_e4m3fn"
_DTYPES = {name: dtype for dtype, name in FLOATS.items()}
_NVFP4 = {
    "num_bits": 4, "type": "float", "symmetric": True, "group_size": 16,
    "strategy": "tensor_group", "scale_dtype": "torch.float8_e4m3fn",
}  # fmt: skip


def weight_args(
    fmt: Format | BlockFormat, activation: dict[str, Any] | None, where: str
) -> tuple[str, dict[str, Any]]:
    """The name of the form a weight of that format is written in, and its arguments.

    activation: the arguments of the input. LowprecError for a format that has no such form.
    """
    if _is(fmt, "nvfp4"):
        return "nvfp4-pack-quantized", {**_NVFP4, "dynamic": False}
    if _is(fmt, "mxfp4"):
        return "mxfp4-pack-quantized", {**_microscaled(4), "dynamic": False}
    if _is(fmt, "mxfp8_e4m3"):
        return "mxfp8-quantized", {**_microscaled(8), "dynamic": False}
    args = _scaled(fmt)
    if args is None:
        raise LowprecError(
            f"{where}: format {fmt.name!r}: compressed-tensors has none like it; it has "
            "nvfp4, mxfp4, mxfp8_e4m3, and float8_e4m3fn or integers of up to 8 bits with scales "
            "of float32, bfloat16 or float16"
        )
    if args["type"] == "float":
        return "float-quantized", {**args, "dynamic": False}
    if args["num_bits"] == 8 and (activation is not None or args["strategy"] == "tensor"):
        return "int-quantized", {**args, "dynamic": False}
    if args["strategy"] not in ("channel", "group"):
        raise LowprecError(
            f"{where}: format {fmt.name!r}: compressed-tensors packs integers with a scale per "
            "channel or group only"
        )
    return "pack-quantized", {**args, "dynamic": False}


def activation_args(activation: Activation, where: str) -> dict[str, Any]:
    """The arguments of an input; LowprecError for a quantizer that they cannot say.

    How the scales of a dynamic input follow from its values is not said by them: of float8 and
    integers it is amax or minmax, and of the MX formats any rule is taken for that of the reader.
    """
    q, scale = activation.quantizer, activation.scale
    fmt, given = q.format, scale is not None or q.fixed is not None
    args: dict[str, Any] | None = None
    if _is(fmt, "nvfp4"):
        args = {**_NVFP4, "dynamic": "local"} if given else None
    elif _is(fmt, "mxfp4") or _is(fmt, "mxfp8_e4m3"):
        known = q.rule in POWER_OF_TWO_RULES
        args = {**_microscaled(4 if _is(fmt, "mxfp4") else 8), "dynamic": True} if known else None
    elif (args := _scaled(fmt)) is not None:
        args["strategy"] = {"channel": "token"}.get(args["strategy"], args["strategy"])
        dynamic = q.rule == ("amax" if args["symmetric"] else "minmax")
        static = given and args["strategy"] == "tensor" and q.rule in ("static", "fixed")
        float32 = isinstance(fmt, BlockFormat) and fmt.scale == load_format("float32")
        fits = (dynamic or static) and float32 and args["strategy"] != "block"
        args = {**args, "dynamic": dynamic} if fits else None
    if args is None or q.projection != Projection():
        raise LowprecError(
            f"{where}: activation={q.spell()}: compressed-tensors cannot say it; it has dynamic "
            "float8_e4m3fn and integers per tensor, token or group (amax, minmax), mxfp4, "
            "mxfp8_e4m3, and given scales per tensor and of nvfp4"
        )
    return args


def weight_tensors(q: QTensor, kind: str, activation: Activation | None) -> dict[str, Tensor]:
    """The tensors of a module: its weight in the form `kind`, and given scales of its input."""
    if kind == "nvfp4-pack-quantized":
        state = layouts.to_nvfp4_pack_quantized(q)
    elif kind == "mxfp4-pack-quantized":
        state = layouts.to_mxfp4_pack_quantized(q)
    elif kind == "pack-quantized":
        state = layouts.to_pack_quantized(q)
    else:
        state = _one_byte(q)
    scale = None if activation is None else _given(activation)
    if scale is not None:
        outer = activation.quantizer.format.outer is not None
        name = "input_global_scale" if outer else "input_scale"
        state[name] = (1 / scale if outer else scale).reshape(1)
    return state


def _given(activation: Activation) -> Tensor | None:
    fixed = activation.quantizer.fixed
    return activation.scale if fixed is None else torch.tensor(fixed, dtype=torch.float32)


def _one_byte(q: QTensor) -> dict[str, Tensor]:
    fmt = q.quantizer.format
    integers = isinstance(fmt.element, IntFormat)
    # Unsigned integers are theirs less half the range, and so are their zero points.
    flip = 0x80 if integers and not fmt.element.signed else 0
    dtype = torch.int8 if integers else torch.float8_e4m3fn
    dtypes = {**_DTYPES, "float8_e8m0fnu": torch.uint8}
    shape = (1,) if fmt.block == "tensor" else q.scales.shape
    state = {
        "weight": (q.codes ^ flip).view(dtype),
        "weight_scale": q.scales.view(dtypes[fmt.scale.name]).reshape(shape),
    }
    if q.offset is not None:
        state["weight_zero_point"] = (q.offset ^ flip).view(torch.int8).reshape(shape)
    return state


def _is(fmt: Format | BlockFormat, name: str) -> bool:
    return fmt.model_copy(update={"name": name}) == load_format(name)


def _microscaled(bits: int) -> dict[str, Any]:
    return {
        "num_bits": bits, "type": "float", "symmetric": True, "group_size": 32,
        "strategy": "group", "scale_dtype": "torch.uint8",
    }  # fmt: skip


def _scaled(fmt: Format | BlockFormat) -> dict[str, Any] | None:
    """Arguments of float8 or integers with float scales, ``dynamic`` aside; None for others."""
    if not isinstance(fmt, BlockFormat) or fmt.outer or fmt.inner or fmt.offset or fmt.outlier:
        return None
    element, zero = fmt.element, fmt.zero_point
    if not any(fmt.scale == load_format(name) for name in _DTYPES):
        return None
    integers = isinstance(element, IntFormat) and not element.exponent and element.bits <= 8
    if integers:
        same = zero is not None and (zero.bits, zero.signed) == (element.bits, element.signed)
        integers = element.signed if zero is None else same
    if not integers and (element != load_format(_E4M3) or zero is not None):
        return None
    group = fmt.block[0] if isinstance(fmt.block, tuple) and len(fmt.block) == 1 else None
    tile = fmt.block if isinstance(fmt.block, tuple) and len(fmt.block) == 2 else None
    strategy = "group" if group else "block" if tile else fmt.block
    args = {
        "num_bits": element.bits,
        "type": "int" if integers else "float",
        "symmetric": zero is None,
        "group_size": group,
        "strategy": strategy,
    }
    return args | ({"block_structure": list(tile)} if tile else {})
