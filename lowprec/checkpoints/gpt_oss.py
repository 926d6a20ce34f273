"""The MXFP4 experts of gpt-oss: read into codes, one expert at a time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from lowprec.checkpoints.files import Files
from lowprec.checkpoints.source import Quantized
from lowprec.errors import LowprecError
from lowprec.kernels import QTensor, layouts

_BLOCK = 32


def read(
    files: Files,
    settings: Mapping[str, Any],  # noqa: ARG001 - it says nothing of the tensors
) -> tuple[dict[str, Quantized], set[str], dict[str, str]]:
    """The quantized parameters by name, and the tensors they consist of.

    ``*_blocks`` are (experts, N, groups, 16) and ``*_scales`` (experts, N, groups), both uint8
    (else LowprecError); the model holds (experts, K, N).
    """
    found, used = {}, set()
    for name in sorted(files.entries):
        if not name.endswith("_blocks"):
            continue
        parameter = name.removesuffix("_blocks")
        scales = f"{parameter}_scales"
        files.expect(name, (torch.uint8,))
        shape = files.entries[name].shape
        if len(shape) != 4 or shape[-1] != _BLOCK // 2:
            raise LowprecError(
                f"{files.folder}: {name}: shape {shape}; expected (experts, N, groups, 16)"
            )
        files.expect(scales, (torch.uint8,), shape[:-1])
        experts, n, groups, _ = shape
        found[parameter] = Quantized(
            (n, groups * _BLOCK),
            tuple(partial(_read, files, parameter, i) for i in range(experts)),
            stacked=True,
            transposed=True,
        )
        used |= {name, scales}
    return found, used, {}


def _read(files: Files, parameter: str, expert: int) -> QTensor:
    blocks = files.read_at(f"{parameter}_blocks", expert)
    return layouts.from_gpt_oss(blocks, files.read_at(f"{parameter}_scales", expert))
