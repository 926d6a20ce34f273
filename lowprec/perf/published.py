"""Published areas, energies and widths of arithmetic, against the structural model.

A published number depends on what the model cannot see: node, library, timing, what else was
counted. So each kind of number has an interval of its own, as a factor up and down, fitted to the
rows of ``benchmarks/validation/datapath_cost.csv`` so that it holds 90 % of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lowprec.errors import LowprecError
from lowprec.perf.datapath_cost import constants, format_cost, gates
from lowprec.perf.pieces import Count, array, float_add
from lowprec.spec import (
    BlockFormat,
    FloatFormat,
    Format,
    IntFormat,
    load_datapath,
    load_format,
)

# um2 of a NAND2 at 45 nm (NanGate Open Cell Library, NAND2_X1); areas go with the node's square.
UM2, NODE = 0.798, 45.0
# pJ of a gate per operation at 45 nm, the median of the rows; goes with the node's square, too.
PJ = 0.47e-3
# How far up and down published numbers lie from the model.
AREA, ENERGY, RATIO, TRANSISTORS = 2.5, 3.7, 1.5, 1.35


@dataclass(frozen=True)
class Predicted:
    """low and high hold 90 %; of facts that follow from a definition they are the value."""

    value: float
    low: float
    high: float

    @classmethod
    def within(cls, value: float, factor: float = 1.0) -> Predicted:
        return cls(value, value / factor, value * factor)


def predict(row: Mapping[str, str]) -> Predicted | None:
    """What the model says of a row of the file; None where it says nothing: whole chips and
    clusters, memories, laws of other models, formats without a description here."""
    try:
        match row["metric"]:
            case "bits per element":
                return _bits(row)
            case "aligned fractional bits kept in the fused dot":
                return _fraction_bits(row)
            case "area" | "energy" if "nm" in row["node"]:
                return _operator(row)
            case "area x memory":
                return _area_times_memory(row)
            case "transistors" if "dot product" in row["datapath"]:
                return _dot_product(row)
            case "area" | "energy" if "=" in row["normalised_to"]:
                return _ratio(row)
    except LowprecError:
        return None
    return None


_SPELLED = {
    "MXFP8": "mxfp8_e4m3", "MXFP6": "mxfp6_e2m3", "MXINT8": "mxint8", "MXFP4": "mxfp4",
    "NVFP4": "nvfp4", "NVINT4": "nvint4", "HiF4": "hif4", "MX9": "mx9", "MX6": "mx6", "MX4": "mx4",
    "FP8 1x128 + FP32 scale": "float8_e4m3fn_1x128", "INT4 g128 + FP16 scale": "int4_g128_float16",
    "FP16": "float16", "BF16": "bfloat16", "FP32": "float32", "FP8": "float8_e4m3fn",
    "E4M3": "float8_e4m3fn", "E5M2": "float8_e5m2", "E2M1": "float4_e2m1fn",
    "E2M3": "float6_e2m3fn", "E3M2": "float6_e3m2fn", "E3M0": "float4_e3m0",
    "E1M2": "float4_e1m2", "E3M4": "float8_e3m4", "MXFP8-E4M3": "mxfp8_e4m3",
}  # fmt: skip


def _format(spelled: str) -> Format | BlockFormat:
    if whole := re.fullmatch(r"INT(\d+)", spelled):
        return IntFormat(name=spelled.lower(), kind="int", bits=int(whole[1]))
    return load_format(_SPELLED.get(spelled, spelled))


def _bits(row: Mapping[str, str]) -> Predicted:
    fmt = _format(row["format"])
    return Predicted.within(
        fmt.bits_per_element if isinstance(fmt, BlockFormat) else float(fmt.bits)
    )


_UNITS = {
    ("Volta", "FP16"): "volta_fp16", ("Ampere", "FP16"): "ampere_fp16",
    ("Hopper", "FP16"): "hopper_fp16", ("Hopper", "FP8"): "hopper_fp8",
    ("Blackwell", "FP8"): "blackwell_tcgen05_fp8", ("Blackwell", "MXFP4"): "blackwell_mxf4",
    ("CDNA3", "FP16"): "cdna3_fp16", ("CDNA3", "FP8"): "cdna3_fp8",
}  # fmt: skip


def _fraction_bits(row: Mapping[str, str]) -> Predicted | None:
    kind = re.split(r"[/ (]", row["format"])[0]
    for (family, fmt), name in _UNITS.items():
        if family in row["datapath"] and fmt == kind:
            addition = load_datapath(name).addition
            bits = getattr(addition, "fraction_bits", None) or getattr(addition, "term_bits", None)
            return Predicted.within(float(bits)) if bits else None
    return None


def _operator(row: Mapping[str, str]) -> Predicted | None:
    """One adder, multiplier, shifter, register or multiply-adder."""
    count, spelled, what = Count(), row["format"], row["datapath"].lower()
    if size := re.fullmatch(r"(\d+)-bit", spelled):
        spelled = f"{'FP' if 'fp' in what else 'INT'}{size[1]}"
    spelled = spelled.split()[0]
    if "register" in what:
        return _in_silicon(5.667, row)
    if "shift" in what:
        width = int(spelled[3:])
        count.put("align", mux=width * (width - 1).bit_length())
        return _in_silicon(_total(count), row)
    fmt = _format(spelled)
    known = re.search(r"\b(add|adder|multiply|multiplier|pe|mac|fma)\b", what)
    if isinstance(fmt, BlockFormat) or not known:
        return None
    if known[1] not in ("add", "adder"):
        _multiplier(count, fmt)
    if known[1] not in ("multiply", "multiplier"):
        _adder(count, fmt)
    return _in_silicon(_total(count), row)


def _multiplier(count: Count, fmt: Format) -> None:
    if isinstance(fmt, IntFormat):
        count.put("multiply", 1, array(fmt.bits, fmt.bits))
        return
    assert isinstance(fmt, FloatFormat)
    x = count.unpack(fmt, 2)
    count.multiply(x, x, 1)
    count.round(fmt, "nearest-even", x.e_bits)


def _adder(count: Count, fmt: Format) -> None:
    if isinstance(fmt, FloatFormat):
        float_add(count, fmt)
    else:
        count.put("add", add=fmt.bits)


def _total(count: Count) -> float:
    return sum(gates(each, constants().gates) for each in count.components.values())


def _in_silicon(found: float, row: Mapping[str, str]) -> Predicted | None:
    node = re.match(r"(\d+) nm", row["node"])
    if node is None or row["unit"] not in ("um2", "pJ/op"):
        return None
    scale = (int(node[1]) / NODE) ** 2
    if row["metric"] == "area":
        return Predicted.within(found * UM2 * scale, AREA)
    return Predicted.within(found * PJ * scale, ENERGY)


def per_lane(fmt: Format | BlockFormat, lanes: int, fraction_bits: int | None = None) -> float:
    """Gates per product of the unit that today's tensor cores would be for the format, with the
    window that they have or another one."""
    return format_cost(fmt, lanes, fraction_bits).gates_per_lane


def _area_times_memory(row: Mapping[str, str]) -> Predicted:
    """Of a dot product of 64, as in the shared-microexponents study, against FP8."""
    base, fmt = load_format("float8_e4m3fn"), _format(row["format"].split(" (")[0])
    bits = fmt.bits_per_element if isinstance(fmt, BlockFormat) else fmt.bits
    ratio = per_lane(fmt, 64) / per_lane(base, 64)
    return Predicted.within(ratio * bits / 8, RATIO)


def _ratio(row: Mapping[str, str]) -> Predicted | None:
    """A unit of one format in units of another."""
    base = row["normalised_to"].split("=")[0].strip()
    fmt, other = _format(row["format"]), _format(base)
    return Predicted.within(per_lane(fmt, 16) / per_lane(other, 16), RATIO)


def _dot_product(row: Mapping[str, str]) -> Predicted | None:
    """A dot product without accumulator: what of the whole unit comes before it."""
    fmt, what = _format(row["format"]), row["datapath"]
    lanes = re.match(r"(\d+)-lane", what)
    window = re.search(r"(\d+)-bit window|max-align (\d+)", what)
    if lanes is None:
        return None
    n = int(lanes[1])
    element = fmt.element if isinstance(fmt, BlockFormat) else fmt
    bits = int(next(filter(None, window.groups()))) if window else None
    count = Count()
    if isinstance(element, IntFormat):
        count.put("multiply", n, array(element.bits, element.bits))
        count.add(n, 2 * element.bits)
    else:
        x = count.unpack(element, 2 * n)
        terms = count.multiply(x, x, n)
        if bits is None:
            count.add(n, count.align_fixed(terms, n))
        else:
            count.align_max(n, terms.e_bits)
            count.add(n, count.align(terms, bits - 3, "toward-zero", terms.e_bits, n))
    if isinstance(fmt, BlockFormat) and isinstance(fmt.scale, FloatFormat):
        width, scale = terms.bits + terms.span + n.bit_length(), 2 * fmt.scale.precision
        count.put("scale", add=fmt.scale.exponent_bits + 2)
        if fmt.scale.precision > 1:
            count.put("scale", 1, array(fmt.scale.precision, fmt.scale.precision))
            count.put("scale", 1, array(width, scale))
    return Predicted.within(_total(count) * constants().transistors, TRANSISTORS)
