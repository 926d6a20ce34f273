"""Rows of kernels that quantize: the search for the largest magnitude, and the cast."""

from __future__ import annotations

import re

from lowprec.perf.accelerator import Machine
from lowprec.perf.datapath import Operand
from lowprec.perf.hardware import machine as load_machine
from lowprec.perf.kernel.chip import chip_of
from lowprec.perf.kernel.intervals import interval
from lowprec.perf.kernel.vector import streaming
from lowprec.perf.roofline import nbytes
from lowprec.perf.validation.formats import operands_of
from lowprec.perf.validation.point import Point, Prediction
from lowprec.perf.validation.text import in_unit, need, sizes
from lowprec.spec import load_format

_WORDS = re.compile(r"\bcast\b|quanti[sz]e\b|amax|compute_?scale", re.IGNORECASE)
_OTHERS = re.compile(r"gemm|matmul|linear|attention|moe|layer", re.IGNORECASE)
_NAMES = {"M": ("m", "tokens", "rows"), "K": ("k", "n", "hidden", "h")}


def predict(point: Point) -> Prediction | None:
    """The point's value and interval; None if it is no such kernel."""
    found = measured(point)
    if found is None:
        return None
    kernel, moved, machine = found
    launch, stream, level = streaming(kernel, moved, chip_of(machine))
    seconds = launch + stream
    low, high = interval("vector", level, 1)
    ends = [in_unit(point.unit, seconds * f, 0, moved) for f in (1, low, high)]
    return Prediction(ends[0], min(ends[1:]), max(ends[1:]), point.unit, level)


def measured(point: Point) -> tuple[str, float, Machine] | None:
    """The kernel of the row, the bytes it moves, and where; None if it is no such kernel."""
    if not _WORDS.search(point.what) or _OTHERS.search(point.what):
        return None
    size = need(sizes(point.shape), _NAMES, point.shape)
    machine = load_machine(point.hw)
    target: Operand = operands_of(point.format, machine).x
    shape = (size["M"], size["K"])
    read = nbytes(load_format("bfloat16"), shape)
    if re.search(r"amax|scale", point.what) and not re.search(r"cast|quanti", point.what):
        return "amax", read, machine
    return "cast", read + nbytes(target, shape), machine
