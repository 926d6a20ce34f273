"""Triton kernels of the formats, for compiler teams: quantization and block-scaled matmul.

Hand-written once; a format's numbers are constants of the compilation. They cover float and integer
elements with one scale per block along an axis, per channel or tensor, and an outer scale per
tensor, under the power-of-two rules and amax, and give the bits of `lowprec.kernels`. Each is an
operator of torch (``torch.ops.lowprec.triton_*``). They run on GPUs, and for tests on CPUs under
TRITON_INTERPRET=1.
"""

from __future__ import annotations

from importlib.util import find_spec

from lowprec.errors import LowprecError

if find_spec("triton") is None:
    raise LowprecError(
        "lowprec.kernels.triton needs the package triton: pip install 'lowprec[triton]'"
    )

from lowprec.kernels.triton.api import fake_quantize, matmul, quantize
from lowprec.kernels.triton.matmul import datapath_of, sums_are_exact

__all__ = ["datapath_of", "fake_quantize", "matmul", "quantize", "sums_are_exact"]
