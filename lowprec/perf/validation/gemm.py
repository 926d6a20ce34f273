"""Rows of dense matmuls: linear layers of serving libraries, tuned GEMM tables, square GEMMs."""

from __future__ import annotations

import re

from lowprec.errors import LowprecError
from lowprec.perf.hardware import machine as load_machine
from lowprec.perf.kernel.matmul import priced
from lowprec.perf.kernel.plan import Plan, plan_of
from lowprec.perf.roofline import Cost
from lowprec.perf.validation.formats import operands_of, quantized_before
from lowprec.perf.validation.point import Point, Prediction
from lowprec.perf.validation.text import in_unit, need, sizes
from lowprec.spec import Matmul

_WORDS = re.compile(
    r"gemm|gemv|matmul|linear|bmm|mm\b|dense|projection|_proj\b|lm_head|blas|cutlass|marlin|mamf",
    re.IGNORECASE,
)
_BOTH_WAYS = re.compile(r"backward|\bbwd|[+&] ?(?:dgrad|wgrad)", re.IGNORECASE)
_OTHERS = re.compile(r"group|moe|attention|layer gemms|decode|collective|all[-_]", re.IGNORECASE)
_NAMES = {"M": ("m", "tokens"), "N": ("n", "out", "out_features"), "K": ("k", "in", "in_features")}


def predict(point: Point) -> Prediction | None:
    """The point's value and interval; None if it is no dense matmul."""
    found = measured(point)
    if found is None:
        return None
    op, plan, quantized = found
    return answer(point, priced(op, plan, quantized=quantized), dispatch(point, plan.path))


def measured(point: Point) -> tuple[Matmul, Plan, bool] | None:
    """The operation of the row, how the model runs it, and whether its activation was quantized
    before the time began; None if it is no dense matmul."""
    if not _WORDS.search(point.what) or _OTHERS.search(point.what):
        return None
    if _BOTH_WAYS.search(point.what):
        raise LowprecError(
            f"what: {point.what!r}: expected one product, not those of the gradients"
        )
    found = sizes(point.shape)
    size = need(found, _NAMES, point.shape)
    batch = need({"batch": 1} | found, {"batch": ("b", "batch")}, point.shape)["batch"]
    if batch > 1 and not re.search("bmm|batch", point.what, re.IGNORECASE):
        raise LowprecError(f"shape: {point.shape!r}: a batch, but what is {point.what!r}")
    machine = load_machine(point.hw)
    formats = operands_of(point.format, machine)
    before = quantized_before(point.conditions, point.note, point.format)
    op = Matmul(
        kind="matmul",
        path="gemm",
        m=size["M"],
        n=size["N"],
        k=size["K"],
        batch=batch,
        weight=batch == 1,  # several products at once have as many weights
    )
    # A table of GEMMs speaks of the GEMM alone unless it says otherwise.
    return op, plan_of(formats.x, formats.w, machine, formats.dtype), before is not False


# Seconds that a framework takes to issue one kernel eagerly, which small ones wait for
# (PrincetonUniversity/LLMCompass@2e015fd: 21 us per matmul on A100).
EAGER = 21e-6
# Seconds between kernels that are timed one by one. TensorRT-LLM 1.0's weight-only and SmoothQuant
# layers were: all their times are whole ticks of 1.024 us, and the smallest are 7 to 8 us above
# those of the same chip's matmuls in a CUDA graph (ai-dynamo/aiconfigurator@095f58a, a100_sxm).
SINGLY = 7e-6
_PLUGINS = ("weight/", "token/int8")


def dispatch(point: Point, path: str) -> float:
    """Seconds that the way of timing adds to a kernel of `path`."""
    text = f"{point.what} {point.conditions} {point.note}".lower()
    if re.search(r"pytorch|eager|hipkittens", text) and "graph" not in text:
        return EAGER
    plugin = re.search(r"trtllm[ /]1\.0", f"{point.source} {point.note}".lower())
    return SINGLY if plugin and path.startswith(_PLUGINS) else 0.0


def answer(point: Point, cost: Cost, more: float = 0.0) -> Prediction:
    """`cost` and `more` seconds, in the unit of the point; a rate's ends are those of the time,
    swapped."""
    ends = (cost.seconds.total + more, cost.low + more, cost.high + more)
    value, low, high = (in_unit(point.unit, t, cost.flops, cost.bytes) for t in ends)
    return Prediction(value, min(low, high), max(low, high), point.unit, cost.calibration)
