"""Rows of vector kernels: norms, softmax, activations, additions, copies and gathers."""

from __future__ import annotations

import re

from lowprec.perf.hardware import machine as load_machine
from lowprec.perf.kernel.chip import chip_of
from lowprec.perf.kernel.intervals import interval
from lowprec.perf.kernel.vector import streaming
from lowprec.perf.roofline import nbytes
from lowprec.perf.validation.formats import operands_of
from lowprec.perf.validation.point import Point, Prediction
from lowprec.perf.validation.text import in_unit, need, sizes

# Tensors of M x K read and written, by the kernel's name; the first that matches.
_KERNELS = (
    (r"(?:fused.*add|add.*fused|residual).*norm", 2, 2),
    (r"(?:silu|gelu|swiglu|geglu).*(?:mul|gate)|swiglu|geglu", 2, 1),
    (r"norm\b|softmax|silu|gelu|relu|sigmoid|swish|rope|rotary", 1, 1),
    (r"\badd\b|residual|elementwise", 2, 1),
    (r"\bcopy|memcpy|embedding|gather", 1, 1),
)
_OTHERS = re.compile(r"gemm|matmul|linear|attention|moe|layer\b|quant|reduce", re.IGNORECASE)
_NAMES = {"M": ("m", "tokens", "rows", "t", "b"), "K": ("k", "n", "hidden", "h", "d")}


def predict(point: Point) -> Prediction | None:
    """The point's value and interval; None if it is no such kernel. Shapes as in "M=4096 K=8192",
    K the width of what the kernel writes."""
    what = point.what.lower()
    if _OTHERS.search(what):
        return None
    tensors = next(((r, w) for words, r, w in _KERNELS if re.search(words, what)), None)
    if tensors is None:
        return None
    size, machine = need(sizes(point.shape), _NAMES, point.shape), load_machine(point.hw)
    dtype = operands_of(point.format, machine).dtype
    moved = sum(tensors) * nbytes(dtype, (size["M"], size["K"]))
    launch, stream, level = streaming("cast", moved, chip_of(machine))
    low, high = interval("vector", level, 1)
    ends = [in_unit(point.unit, (launch + stream) * f, 0, moved) for f in (1, low, high)]
    return Prediction(ends[0], min(ends[1:]), max(ends[1:]), point.unit, level)
