"""A recorded matmul under a rule: which kernel runs it, and what that takes."""

from __future__ import annotations

from collections.abc import Sequence

from lowprec.perf.datapath import Operand
from lowprec.perf.hardware import Machine
from lowprec.perf.kernel.gemm import Shape, kernel, overlap
from lowprec.perf.kernel.intervals import interval
from lowprec.perf.kernel.plan import Plan, plan_of
from lowprec.perf.kernel.quantizers import quantize_seconds
from lowprec.perf.kernel.routing import spread
from lowprec.perf.roofline import Cost, Seconds, operands
from lowprec.spec import Format, Matmul, Rule

Rows = Sequence[tuple[float, float]]


def matmul(
    op: Matmul, rule: Rule | None, machine: Machine, dtype: Format, skew: float = 0.0
) -> Cost:
    """Cost of `op` under `rule`: the kernel, and the one that quantizes its activation.

    skew: exponent of the power law of the experts' rows (see routing.py); 0: all get as many.
    """
    x, w = operands(op, rule, dtype)
    routed = op.experts > 1 and skew > 0
    rows = spread(op.m, op.m / op.top_k, op.experts, 1, skew) if routed else None
    return product(op, x, w, machine, dtype, rows=rows)


def product(
    op: Matmul,
    x: Operand,
    w: Operand,
    machine: Machine,
    dtype: Format,
    *,
    rows: Rows | None = None,
    quantized: bool = False,
) -> Cost:
    """Cost of `op` with operands stored as `x` and `w`.

    rows: the products by their number of rows, where that is known better than "evenly" (experts
    under a router); `op.m` is then their sum. quantized: the activation is quantized already.
    """
    return priced(op, plan_of(x, w, machine, dtype), rows=rows, quantized=quantized)


def priced(op: Matmul, plan: Plan, *, rows: Rows | None = None, quantized: bool = False) -> Cost:
    """Cost of `op` by `plan`, as `product`."""
    shape = _shape(op, rows)
    x_bytes = op.batch * plan.bytes_of(plan.x, op.m, op.k)
    read = x_bytes + shape.weights * plan.bytes_of(plan.w, op.n, op.k)
    written = op.batch * plan.bytes_of(plan.dtype, op.m, op.n)
    cores, memory = kernel(shape, plan, read, written)
    # Nothing is faster than its bound.
    cores = max(cores, op.flops / plan.rate)
    memory = max(memory, (read + written) / plan.chip.bandwidth)
    both = overlap(cores, memory)
    spent = 0.0 if quantized else quantize_seconds(plan, op.batch * op.m * op.k, x_bytes)
    seconds = Seconds.model_construct(
        compute=both if cores > memory else cores,
        memory=memory if cores > memory else both,
        launch=plan.constants.launch,
        quantize=spent,
        dequantize=0.0,
        network=0.0,
    )
    total = both + plan.constants.launch + spent
    low, high = interval("gemm", plan.level, op.m)
    return Cost(
        plan.choice, op.flops, read + written, seconds, total * low, total * high, plan.level
    )


def _shape(op: Matmul, rows: Rows | None) -> Shape:
    if rows is not None:
        return Shape(rows, op.n, op.k, sum(count for _, count in rows))
    if op.experts == 1:
        return Shape(((op.m, op.batch),), op.n, op.k, 1.0 if op.weight else op.batch)
    weights = op.distinct_weights
    return Shape(((op.m / weights, weights),), op.n, op.k, weights)
