"""Formats by the many names that measurements give them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache

from lowprec.errors import LowprecError
from lowprec.perf.accelerator import Machine
from lowprec.perf.datapath import Operand
from lowprec.spec import BlockFormat, FloatFormat, Format, load_format

_E4M3, _E5M2 = "float8_e4m3fn", "float8_e5m2"
_WO = r"(?:wo\b|weight[-_ ]?only|a16\b|a16w|a16_)"
_16 = r"(?:b(?:f|float)_?16|f(?:p|loat)?_?16|half)"
_FP8 = r"(?:fp8|float8|e4m3|e5m2|f8)"
_INT4 = r"(?:int4|awq|gptq)"
# What a kernel writes or adds up in is not what it multiplies.
_RESULT = re.compile(
    r"[,;(/ ]*\b(?:bf16|bfloat16|fp16|float16|fp32|float32|int32)[-_ ]*(?:out|acc)\w*\)?"
)
# Operand of x, operand of w, by a pattern over the name in lower case; the first that matches.
# "wide": the type that nothing was quantized to; "1x128" and "128x128": DeepSeek's blocks; "int4":
# in groups; "fp4": the vendor's own; "": the name itself; "?": two that no kernel multiplies.
_NAMES: tuple[tuple[str, str, str], ...] = (
    (r"^hif4$", "hif4", "hif4"),
    (r"^hi(?:float|f)8", "hifloat8_tensor", "hifloat8_tensor"),
    (r"^(mx[469]|msfp1[26]|nvint4|mxint8)$", "", ""),
    (r"^(?:gguf[-_ ])?q4_k\w*", "wide", "gguf_q4_k"),
    (r"^(?:gguf[-_ ])?q([2-8]_[01k])\w*", "wide", r"gguf_q\1"),
    (r"\bnf4|^bnb.*4", "wide", "nf4_g64"),
    (rf"mxfp4.*{_WO}|{_WO}.*mxfp4|{_16} ?[x_+-] ?mxfp4|mxfp4_{_16}|mxfp4.*\b{_16} act", "wide",
     "mxfp4"),
    (rf"nvfp4.*{_WO}|{_WO}.*nvfp4|{_16} ?[x_+-] ?nvfp4|nvfp4_{_16}|nvfp4.*\b{_16} act", "wide",
     "nvfp4"),
    (rf"nvfp4 ?[x+/] ?(?:mx)?fp8|fp8 ?[x+/] ?nvfp4|{_FP8} ?[x+] ?{_16}|{_16} ?\+", "", "?"),
    (r"w4a8.*fp4|mxfp4.*mxfp8|mxfp8.*mxfp4|a8w4.*mxfp4|a8w4_?mx|fp8 ?x ?(?:mx)?fp4", "mxfp8_e4m3",
     "mxfp4"),
    (rf"w4a8.*(?:{_INT4}|{_FP8})|{_INT4}.*w4a8", f"{_E4M3}_tensor", "int4"),
    (r"w4a8.*(?:int8|qserve)|qserve", "int8_channel", "int4"),
    (r"w4a4.*int4|int4.*w4a4|int4 ?x ?int4", "int4_channel", "int4_channel"),
    (rf"(?:int4|w4).*(?:wo|weight|a16|{_16} ?act)|awq|gptq|a16w4|marlin", "wide", "int4"),
    (rf"^u?int4(?:[-_ ,]*(?:g|group).*)?$|{_16} ?x ?u?int4", "wide", "int4"),
    (rf"{_FP8}.*{_WO}|{_WO}.*{_FP8}|{_16} ?x ?{_FP8}|w8a16.*{_FP8}|{_FP8}.*w8a16", "wide",
     f"{_E4M3}_channel"),
    (rf"(?:int8|w8).*(?:wo|weight|a16|{_16} ?act)|^w8a16|a16w8|{_16}.*int8 weight|{_16} ?x ?int8",
     "wide", "int8_channel"),
    (rf"fp6.*{_WO}|{_WO}.*fp6|fp6[-_ ]?llm|w6a16|a16w6|quant-?llm", "wide",
     "float6_e3m2fn_channel"),
    (r"nvfp4|fp4.*nv", "nvfp4", "nvfp4"),
    (r"mxfp4|mx[-_ ]?fp4|a4w4", "mxfp4", "mxfp4"),
    (r"fp4\b", "fp4", "fp4"),
    (r"(?:mx)?fp6.*e3m2", "mxfp6_e3m2", "mxfp6_e3m2"),
    (r"(?:mx)?fp6(?!\d)", "mxfp6_e2m3", "mxfp6_e2m3"),
    (r"mx[-_ ]?fp8.*e5m2", "mxfp8_e5m2", "mxfp8_e5m2"),
    (r"mxfp8|mx[-_ ]?fp8", "mxfp8_e4m3", "mxfp8_e4m3"),
    (rf"(?:{_FP8}|a8w8|w8a8).*(?:block|128|groupwise|deepseek)", "1x128", "128x128"),
    (rf"{_FP8}.*(?:tok|row|channel|ptpc)", f"{_E4M3}_channel", f"{_E4M3}_channel"),
    (r"e5m2(?!.*e4m3)", f"{_E5M2}_tensor", f"{_E5M2}_tensor"),
    (_FP8, f"{_E4M3}_tensor", f"{_E4M3}_tensor"),
    (r"int8|i8|smooth|^sq\b|w8a8|a8w8", "int8_channel", "int8_channel"),
    (rf"{_16}|a16w16|w16a16", "wide", "wide"),
    (r"tf32|tfloat32", "tfloat32", "tfloat32"),
    (r"fp32|float32", "float32", "float32"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operands:
    """Formats of the activation, of the weight, and of what is neither (`dtype`)."""

    x: Operand
    w: Operand
    dtype: Format


def operands_of(name: str, machine: Machine) -> Operands:
    """The operands of a matmul that is called `name`; LowprecError if that says nothing known."""
    wide, x, w = _sides(name)
    dtype = _scalar(wide)
    return Operands(_operand(x, dtype, machine), _operand(w, dtype, machine), dtype)


@lru_cache(maxsize=4096)
def _sides(name: str) -> tuple[str, str, str]:
    """The type that nothing was quantized to, and what `_NAMES` calls both sides."""
    text = _RESULT.sub("", name.strip().lower())
    wide = "float16" if re.search(r"(?<!b)(?<!bf)(?:fp16|float16|half)", text) else "bfloat16"
    for pattern, x, w in _NAMES:
        if found := re.search(pattern, text):
            if w == "?":
                break
            if x in ("tfloat32", "float32"):
                return x, "wide", "wide"
            x, w = (_spelled(which or found[1], found, text) for which in (x, w))
            return wide, x, w
    raise LowprecError(
        f"format: {name!r} is not known; expected a name such as bf16, fp8 (per tensor), "
        "fp8_block, fp8_ptok, int8, int8_wo, int4_wo, w4a8 fp8, nvfp4, mxfp4 or mxfp8"
    )


def _spelled(which: str, found: re.Match[str], text: str) -> str:
    """One side of `_NAMES`, as far as the text alone says it."""
    if which == "int4":
        size = re.search(r"\bg(?:roup)?(?:[-_ ]?size)?[-_ =]?(\d+)", text)
        return f"int4_g{size[1] if size else 128}_bfloat16"
    return found.expand(which)


def _operand(name: str, dtype: Format, machine: Machine) -> Operand:
    if name == "wide":
        return dtype
    if name == "fp4":
        name = "nvfp4" if machine.vendor == "NVIDIA" else "mxfp4"
    elif name in ("1x128", "128x128"):
        name = f"{_E4M3}_{name}{'_e8m0' if _scales_blocks(machine) else ''}"
    return _own(_format(name), machine)


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
