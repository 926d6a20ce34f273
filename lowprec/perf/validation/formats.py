"""Formats by the many names that measurements give them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from lowprec.errors import LowprecError
from lowprec.perf.accelerator import Machine
from lowprec.perf.datapath import Operand
from lowprec.spec import BlockFormat, FloatFormat, Format, load_format

_SIXTEEN = r"(?:b(?:f|float)_?16|f(?:p|loat)?_?16|half)"
_E4M3 = "float8_e4m3fn"
# Operand of x, operand of w, by a pattern over the name in lower case; the first that matches.
_NAMES: tuple[tuple[str, str, str], ...] = (
    (r"w4a16.*mxfp4|mxfp4.*(?:w4a16|weight)|a16w4.*mxfp4", "wide", "mxfp4"),
    (r"w4a16.*nvfp4|nvfp4.*(?:w4a16|weight)", "wide", "nvfp4"),
    (r"w4a8.*mxfp4|mxfp4.*mxfp8|mxfp8.*mxfp4|a8w4.*mxfp4|a8w4_?mx", "mxfp8_e4m3", "mxfp4"),
    (r"w4a8.*(?:int4|awq)|(?:int4|awq).*w4a8", f"{_E4M3}_tensor", "int4_g128_bfloat16"),
    (r"(?:int4|w4|awq|gptq).*(?:wo|weight|a16|awq|gptq)|^awq|^gptq|^w4a16|a16w4|^u?int4$|marlin",
     "wide", "int4_g128_bfloat16"),
    (r"(?:int8|w8).*(?:wo|weight|a16)|^w8a16|a16w8", "wide", "int8_channel"),
    (r"fp8.*(?:wo\b|weight[-_ ]only|w8a16)", "wide", f"{_E4M3}_channel"),
    (r"nvfp4|fp4.*nv", "nvfp4", "nvfp4"),
    (r"mxfp4|mx[-_ ]?fp4|a4w4|w4a4|fp4", "mxfp4", "mxfp4"),
    (r"mxfp6|fp6", "mxfp6_e2m3", "mxfp6_e2m3"),
    (r"mxfp8|mx[-_ ]?fp8", "mxfp8_e4m3", "mxfp8_e4m3"),
    (r"(?:fp8|float8|e4m3|a8w8|w8a8).*(?:block|128|groupwise|deepseek)|^a8w8_blockscale",
     "block", "block"),
    (r"int8|i8|smooth|^sq\b|w8a8|a8w8", "int8_channel", "int8_channel"),
    (r"(?:fp8|float8|e4m3).*(?:tok|row|channel|ptpc|per[-_ ]?row)",
     f"{_E4M3}_channel", f"{_E4M3}_channel"),
    (r"fp8|float8|e4m3|f8", f"{_E4M3}_tensor", f"{_E4M3}_tensor"),
    (_SIXTEEN, "wide", "wide"),
    (r"tf32|tfloat32|fp32|float32", "tf32", "tf32"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operands:
    """Formats of the activation, of the weight, and of what is neither (`dtype`)."""

    x: Operand
    w: Operand
    dtype: Format


def operands_of(name: str, machine: Machine) -> Operands:
    """The operands of a matmul that is called `name`; LowprecError if that says nothing known."""
    text = name.strip().lower()
    wide = "float16" if re.search(r"(?<!b)(?<!bf)(?:fp16|float16|half)", text) else "bfloat16"
    for pattern, x, w in _NAMES:
        if re.search(pattern, text):
            dtype = _scalar(wide)
            if x == "tf32":
                dtype = _scalar("tfloat32")
            if x in ("wide", "tf32"):
                return Operands(dtype, dtype if w in ("wide", "tf32") else _format(w), dtype)
            if x == "block":
                suffix = "_e8m0" if _scales_blocks(machine) else ""
                x, w = f"{_E4M3}_1x128{suffix}", f"{_E4M3}_128x128{suffix}"
            return Operands(_own(_format(x), machine), _own(_format(w), machine), dtype)
    raise LowprecError(
        f"format: {name!r} is not known; expected a name such as bf16, fp8 (per tensor), "
        "fp8_block, fp8_ptok, int8, int8_wo, int4_wo, nvfp4, mxfp4 or mxfp8"
    )


def _own(operand: Operand, machine: Machine) -> Operand:
    """`operand` with the machine's own E4M3 in place of OCP's."""
    if not isinstance(operand, BlockFormat) or operand.element.name != _E4M3:
        return operand
    element = e4m3_of(machine)
    return operand if element.name == _E4M3 else _with(operand.name, element)


def e4m3_of(machine: Machine) -> FloatFormat:
    """What "fp8" is on `machine`: OCP's E4M3 where a unit takes it, or none has any; else the one
    that its units know (Trainium2's with infinities)."""
    usual = load_format(_E4M3)
    assert isinstance(usual, FloatFormat)
    if any(path.takes(usual) for path in machine.datapaths):
        return usual
    own = (
        fmt
        for path in machine.datapaths
        for fmt in path.operands
        if isinstance(fmt, FloatFormat) and fmt.bits == 8 and fmt.precision == 4
    )
    return next(own, usual)


@cache
def _with(name: str, element: FloatFormat) -> Operand:
    changed = {"element": element, "name": name.replace(_E4M3, element.name)}
    return _format(name).model_copy(update=changed)


def _scales_blocks(machine: Machine) -> bool:
    """Whether a unit applies E8M0 scales itself. Kernels then make the scales per 128 elements
    powers of two (deepseek-ai/DeepGEMM for SM100, use_ue8m0)."""
    return machine.vendor == "NVIDIA" and any(
        scaling.scale.name == "float8_e8m0fnu"
        for path in machine.datapaths
        for scaling in path.scalings
    )


@cache
def _format(name: str) -> Operand:
    found = load_format(name)
    assert isinstance(found, Format | BlockFormat)
    return found


@cache
def _scalar(name: str) -> Format:
    found = load_format(name)
    assert isinstance(found, FloatFormat)
    return found


def quantized_before(conditions: str, note: str, name: str) -> bool | None:
    """Whether the activation was quantized before the time began; None if nothing says so."""
    text = f"{conditions} {note} {name}".lower()
    if re.search(r"pre-?quanti[sz]ed|without quanti|quanti[sz]ed before|gemm only", text):
        return True
    if re.search(r"quant\w* inside|includes? (?:the )?(?:act\w* )?quanti|contains? .*quanti", text):
        return False
    return None
