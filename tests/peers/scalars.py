"""Casts of other libraries, on inputs that all of them take."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import torch
from onnx import numpy_helper
from torch import Tensor

import lowprec as lp
from lowprec.eval import hard_inputs
from tests.peers.case import Case, Reason, nan_input
from tests.peers.gfloats import GFLOAT, GFLOAT_MODES

RANDOM = 100_000


@cache
def inputs(name: str) -> Tensor:
    """Every bfloat16 and float16, random bits, and what lies around values and middles."""
    fmt = lp.format(name)
    return torch.cat([
        hard_inputs.every_bfloat16(),
        hard_inputs.every_float16(),
        hard_inputs.random_bits(RANDOM),
        hard_inputs.edges(fmt, torch.float32, 256),
    ])  # fmt: skip


def _numpy_cast(x: Tensor, dtype: type) -> Tensor:
    with np.errstate(all="ignore"):
        return torch.from_numpy(x.numpy().astype(dtype).astype(np.float32))


NO_NAN = Reason("turns NaN into zero, as the format has no NaN", nan_input)
TIES = Reason(
    "rounds ties up, beyond the largest value to NaN, where the even code is taken here",
    lambda c: (c.x > 0) & (c.x.frexp()[0] == 0.75),
)
EARLY = Reason(
    "leaves 2^-127 before the middle between it and 2^-126",
    lambda c: (c.x > 2.0**-127) & (c.x < 1.5 * 2.0**-127),
)
SIGN = Reason(
    "drops the sign; here a negative number becomes the smallest value, under OvfInf NaN",
    lambda c: (c.x < 0) & ~c.x.isnan(),
)
ZERO = Reason("takes 0 for 2^-127; under OvfInf it is NaN here", lambda c: c.x == 0)
INFINITY = Reason("gives NaN for Inf though it saturates", lambda c: c.x.isinf())
TINY = Reason(
    "rounds all that is at most 2^-127 up to 2^-126", lambda c: (c.x > 0) & (c.x <= 2.0**-127)
)

ML_DTYPES = {
    "float16": (),
    "bfloat16": (),
    "float8_e3m4": (),
    "float8_e4m3": (),
    "float8_e4m3b11fnuz": (),
    "float8_e4m3fn": (),
    "float8_e4m3fnuz": (),
    "float8_e5m2": (),
    "float8_e5m2fnuz": (),
    "float6_e2m3fn": (NO_NAN,),
    "float6_e3m2fn": (NO_NAN,),
    "float4_e2m1fn": (NO_NAN,),
    "float8_e8m0fnu": (TIES, EARLY),
}


def of_ml_dtypes() -> Iterator[Case]:
    for name, reasons in ML_DTYPES.items():
        x, dtype = inputs(name), np.float16 if name == "float16" else getattr(ml_dtypes, name)
        ours = lp.cast(x, name, saturation="OvfInf")
        theirs = _numpy_cast(x, dtype)
        yield Case("ml_dtypes", name, "nearest-even/OvfInf", x, ours, theirs, reasons)


def _rounds_twice(name: str, x: Tensor, theirs: Tensor, peer: str) -> Case:
    """From float64, where values and middles have neighbours that float32 cannot tell apart."""
    ours = lp.cast(x, name, saturation="OvfInf")
    reason = Reason(
        "rounds to float32 first",
        lambda c: c.theirs == lp.cast(c.x.float(), name, saturation="OvfInf").double(),
    )
    return Case(peer, f"{name} of float64", "nearest-even/OvfInf", x, ours, theirs, (reason,))


def of_float64() -> Iterator[Case]:
    for name in ("float8_e5m2", "float8_e4m3"):
        x = hard_inputs.edges(lp.format(name), torch.float64, 256)
        with np.errstate(all="ignore"):
            cast = x.numpy().astype(getattr(ml_dtypes, name)).astype(np.float64)
        yield _rounds_twice(name, x, torch.from_numpy(cast), "ml_dtypes")
    x = hard_inputs.edges(lp.format("float8_e5m2"), torch.float64, 256)
    yield _rounds_twice("float8_e5m2", x, x.to(torch.float8_e5m2).double(), "torch")


TORCH = {
    "float16": ("OvfInf", ()),
    "bfloat16": ("OvfInf", ()),
    "float8_e4m3fn": ("SatFinite", ()),
    "float8_e5m2": ("OvfInf", ()),
    "float8_e4m3fnuz": ("OvfInf", ()),
    "float8_e5m2fnuz": ("OvfInf", ()),
    "float8_e8m0fnu": ("OvfInf", (SIGN, ZERO, TIES, EARLY)),
}


def of_torch() -> Iterator[Case]:
    for name, (saturation, reasons) in TORCH.items():
        x = inputs(name)
        ours = lp.cast(x, name, saturation=saturation)
        theirs = x.to(getattr(torch, name)).float()
        yield Case("torch", name, f"nearest-even/{saturation}", x, ours, theirs, reasons)


ONNX = {
    "float8_e4m3fn": (),
    "float8_e4m3fnuz": (),
    "float8_e5m2": (),
    "float8_e5m2fnuz": (),
    "float6_e2m3fn": (NO_NAN,),
    "float6_e3m2fn": (NO_NAN,),
    "float4_e2m1fn": (NO_NAN,),
}
ONNX_INTEGERS = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4, "int2": ml_dtypes.int2,
                 "uint2": ml_dtypes.uint2, "int8": np.int8, "uint8": np.uint8}  # fmt: skip
ONNX_E8M0 = {
    ("nearest", True): ("nearest-even/SatFinite", (SIGN, INFINITY, TIES, EARLY)),
    ("nearest", False): ("nearest-even/OvfInf", (SIGN, ZERO, TIES, EARLY)),
    ("up", True): ("up/SatFinite", (SIGN, INFINITY, TINY)),
    ("up", False): ("up/OvfInf", (SIGN, ZERO, TINY)),
    ("down", True): ("down/SatFinite", (SIGN, INFINITY)),
    ("down", False): ("down/OvfInf", (SIGN, ZERO)),
}


def of_onnx() -> Iterator[Case]:
    for name, reasons in ONNX.items():
        x = inputs(name)
        with np.errstate(all="ignore"):
            cast = numpy_helper.saturate_cast(x.numpy(), np.dtype(getattr(ml_dtypes, name)))
        theirs = torch.from_numpy(cast.astype(np.float32))
        yield Case("onnx", name, "nearest-even/SatFinite", x, lp.cast(x, name), theirs, reasons)
    for name, dtype in ONNX_INTEGERS.items():
        x = inputs(name)
        x = x[~x.isnan()]
        with np.errstate(all="ignore"):
            cast = numpy_helper.saturate_cast(x.numpy(), np.dtype(dtype))
        theirs = torch.from_numpy(cast.astype(np.float32))
        yield Case("onnx", name, "nearest-even/SatFinite", x, lp.cast(x, name), theirs)
    x = inputs("float8_e8m0fnu")
    for (mode, saturate), (rule, reasons) in ONNX_E8M0.items():
        ours = lp.cast(x, "float8_e8m0fnu", *rule.split("/"))
        codes = numpy_helper.to_float8e8m0(x.numpy(), saturate, mode)
        theirs = torch.from_numpy(codes.astype(np.float32))
        yield Case("onnx", "float8_e8m0fnu", rule, x, ours, theirs, reasons)


def _gfloat_e8m0() -> Case:
    x = inputs("float8_e8m0fnu")
    x = x[(x >= 2.0**-127) & x.isfinite()]
    info = gfloat.formats.format_info_ocp_e8m0
    theirs = torch.from_numpy(gfloat.round_ndarray(info, x.double().numpy(), sat=True))
    rule = "nearest-even/SatFinite"
    return Case("gfloat", "float8_e8m0fnu", rule, x, lp.cast(x, "float8_e8m0fnu"), theirs)


def of_gfloat() -> Iterator[Case]:
    """All its deterministic modes, saturating or not. Without a NaN it refuses NaN and, where it
    does not saturate, Inf and overflow: those inputs are left out."""
    yield _gfloat_e8m0()
    for name, info in GFLOAT.items():
        fmt = lp.format(name)
        x = torch.cat([hard_inputs.every_bfloat16(), hard_inputs.edges(fmt, torch.float32, 256)])
        for saturation in ("SatFinite", "OvfInf") if fmt.has_nan else ("SatFinite",):
            kept = x if fmt.has_nan else x[~x.isnan()]
            ours = [lp.cast(kept, fmt, mode, saturation) for mode in GFLOAT_MODES]
            theirs = [
                gfloat.round_ndarray(info, kept.double().numpy(), mode, saturation == "SatFinite")
                for mode in GFLOAT_MODES.values()
            ]
            every = torch.from_numpy(np.concatenate(theirs))
            x_of_all = kept.repeat(len(GFLOAT_MODES))
            yield Case(
                "gfloat", name, f"5 roundings/{saturation}", x_of_all, torch.cat(ours), every
            )
