"""Matmuls under a datapath by the CPU core, or None where it does not cover them."""

from __future__ import annotations

import ctypes
import math
from functools import cache

import torch
from torch import Tensor

from lowprec.kernels.core import load
from lowprec.kernels.matmul_case import Case, Extent, extent_of
from lowprec.kernels.matmul_plan import CMatmul, plan_of
from lowprec.kernels.threads import pool
from lowprec.spec.datapath import Aligned, Datapath
from lowprec.spec.format import FloatFormat, Format, IntFormat

Scales = tuple[Tensor, Tensor]
# Fewer products are not worth a second thread.
_PER_THREAD = 1 << 22


def multiply(
    a: Tensor, b: Tensor, path: Datapath, formats: tuple[Format, Format], scales: Scales | None
) -> Tensor | None:
    """a @ b.T of finite operands (M, K) and (N, K), float32, as `lowprec.kernels.dot` gives it."""
    if isinstance(path.accumulator, IntFormat):
        return _integers(a, b, path, path.accumulator)
    if not all(isinstance(fmt, FloatFormat) for fmt in formats):
        return None
    library = load()[0]
    if library is None or not (a.is_cpu and b.is_cpu):
        return None
    plan = None
    for extents in (_of_formats, _of_values):
        case = Case(path, formats, (extents(a, formats[0]), extents(b, formats[1])), a.shape[-1])
        if (found := _exact(a, b, case)) is not None:
            return found
        plan = plan_of(case)
        if plan is not None:
            return _run(library, plan, a, b, path, scales)
    return None


def _of_formats(_: Tensor, fmt: FloatFormat) -> Extent:
    return extent_of(fmt)


def _of_values(x: Tensor, fmt: FloatFormat) -> Extent:
    """Of what the values are, where all that they could be is too much."""
    if not x.numel() or not bool(x.any()):
        return Extent(0.0, 0, 0)
    # Zero becomes the largest integer, every other pattern one less than itself.
    pattern = x.contiguous().view(torch.int32) & 0x7FFFFFFF
    least = float(((pattern - 1) & 0x7FFFFFFF).amin().add(1).view(torch.float32))
    exponent = math.frexp(least)[1] - 1
    quantum = max(exponent, fmt.emin) - fmt.precision + 1
    return Extent(float(x.abs().amax()), exponent, quantum)


def _integers(a: Tensor, b: Tensor, path: Datapath, fmt: IntFormat) -> Tensor | None:
    """In float64, where the whole sum is exact and no step's saturates."""
    unit = 2.0**-fmt.exponent
    bound = (
        float(a.abs().amax()) * float(b.abs().amax()) * a.shape[-1]
        if a.numel() and b.numel()
        else 0.0
    )
    exponents = sum(f.exponent for f in path.inputs[:1] if isinstance(f, IntFormat))
    if bound * 2.0 ** -min(2 * exponents, fmt.exponent, 0) >= 2.0**53 or exponents or fmt.exponent:
        return None
    if path.overflow == "saturate" and bound * unit > fmt.max_integer:
        return None
    total = a.double() @ b.double().T
    if path.overflow == "wrap" and bound > fmt.max_integer:
        total = (total - fmt.min_integer).remainder_(2.0**fmt.bits) + fmt.min_integer
    return total


def _exact(a: Tensor, b: Tensor, case: Case) -> Tensor | None:
    """One rounding of the whole sum to float32, where float64 holds that sum in any order."""
    path, result = case.path, case.result
    whole = isinstance(path.addition, Aligned) and path.addition.fraction_bits is None
    if not whole or path.promotion or path.scaling or case.step < case.k:
        return None
    if (result.precision, result.emin, path.rounding) != (24, -126, "nearest-even"):
        return None
    if case.k * case.product >= math.ldexp(1.0, 53 + case.quantum):
        return None
    # A sum that is zero is +0; what is rounded to zero keeps its sign, or does not.
    y = ((a.double() @ b.double().T) + 0.0).float()
    return y if path.signed_zero else y + 0.0


@cache
def _order(path: Datapath, k: int) -> tuple[int, ...] | None:
    """The k in the order of the steps, each of two groups with those of the first one first."""
    groups = getattr(path.addition, "groups", 1)
    if not path.order and groups == 1:
        return None
    size = path.step or max(k, 1)
    order = path.order or tuple(range(size))
    found: list[int] = []
    for start in range(0, k, len(order)):
        for first in range(0, len(order), size):
            step = [start + i for i in order[first : first + size] if start + i < k]
            for g in range(groups):
                found += step[g::groups]
    return tuple(found)


def _ignores_zeros(path: Datapath) -> bool:
    """Whether a step of zeros leaves the accumulator as it is."""
    addition, fmt = path.addition, path.result or path.accumulator
    if not isinstance(addition, Aligned) or not isinstance(fmt, FloatFormat):
        return False
    bits = addition.fraction_bits
    fine = bits is None or fmt.precision - 1 <= bits
    low = addition.min_exponent
    if bits is not None and low is not None:
        fine = fine and low - bits <= fmt.emin - fmt.precision + 1
    return fine and not path.signed_zero


def _run(
    library: ctypes.CDLL, plan: CMatmul, a: Tensor, b: Tensor, path: Datapath, scales: Scales | None
) -> Tensor | None:
    k = a.shape[-1]
    if path.order and k % len(path.order):
        if not _ignores_zeros(path):
            return None
        a, b = (torch.nn.functional.pad(x, (0, -k % len(path.order))) for x in (a, b))
        k = a.shape[-1]
    if (order := _order(path, k)) is not None:
        index = torch.tensor(order)
        a, b = a.index_select(-1, index), b.index_select(-1, index)
    a, b = a.contiguous(), b.contiguous()
    m, n = len(a), len(b)
    d = torch.empty(m, n)
    job = CMatmul.from_buffer_copy(plan)
    job.a, job.b, job.d = a.data_ptr(), b.data_ptr(), d.data_ptr()
    job.k = job.lda = job.ldb = k
    job.ldd = n
    if scales is not None:
        scales = scales[0].contiguous(), scales[1].contiguous()
        job.scale_a, job.scale_b = scales[0].data_ptr(), scales[1].data_ptr()
        job.lds_a, job.lds_b = scales[0].shape[-1], scales[1].shape[-1]
    threads = max(min(torch.get_num_threads(), m * n * k // _PER_THREAD), 1)
    along_m = m >= n
    size = -(-(m if along_m else n) // threads)
    size = -(-size // 32) * 32
    # Blocks of rows of about the same length, so that the last one is no small one.
    rows = size if along_m else m
    job.rows = -(-rows // -(-rows // plan.rows))

    def work(first: int) -> int:
        if along_m:
            return library.lp_matmul(ctypes.byref(job), first, min(first + size, m), 0, n)
        return library.lp_matmul(ctypes.byref(job), 0, m, first, min(first + size, n))

    parts = range(0, m if along_m else n, size)
    failed = list(map(work, parts) if len(parts) < 2 else pool(threads).map(work, parts))
    if any(failed):
        raise MemoryError("lowprec matmul: no memory for its operands")
    return d
