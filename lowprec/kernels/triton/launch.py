"""What every launch needs: a device that runs Triton, and exact arithmetic."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from lowprec.errors import LowprecError

# Without it a multiplication and an addition are contracted, which rounds once where the
# definition rounds twice.
EXACT = {"enable_fp_fusion": False}


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


def on_device(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """The device of `x` as the current one; LowprecError where Triton does not run there."""
    if x.is_cuda:
        return torch.cuda.device(x.device)
    if x.is_cpu and is_interpreted():
        return contextlib.nullcontext()
    hint = "; on the CPU, for tests: TRITON_INTERPRET=1 before Python starts" if x.is_cpu else ""
    raise LowprecError(f"triton: a tensor on {x.device}: expected a GPU's{hint}")
