"""Seconds of the kernels that quantize an activation before a matmul reads it."""

from __future__ import annotations

from lowprec.perf.datapath import same_encoding
from lowprec.perf.kernel.plan import Plan, sees_whole_tensor


def quantize_seconds(plan: Plan, elements: float, stored: float) -> float:
    """Seconds to turn `elements` of the workload's type into `stored` bytes; 0 if they are equal.

    A scale of the whole tensor takes one kernel for the largest magnitude and one that casts, so
    the tensor is read twice; `Constants.quantize_launch` is then of both.
    """
    if same_encoding(plan.x, plan.dtype):
        return 0.0
    reads = 2 if sees_whole_tensor(plan.x) else 1
    moved = reads * elements * plan.dtype.storage_bits / 8 + stored
    c = plan.constants
    return c.quantize_launch + c.quantize * moved / plan.chip.bandwidth
