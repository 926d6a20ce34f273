"""NVFP4 as NVIDIA's ModelOpt exports it: read into codes.

`weight`: two E2M1 codes to a byte, the first in the low nibble; `weight_scale`: E4M3, one per 16;
`weight_scale_2`: float32, which *multiplies* (compressed-tensors' divides); `input_scale`: the
same of the input, amax / (6 * 448). A value is e * (weight_scale * weight_scale_2).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from lowprec.checkpoints.files import Files
from lowprec.checkpoints.source import Quantized
from lowprec.errors import LowprecError
from lowprec.kernels import QTensor, unpack_bits
from lowprec.kernels.layouts.common import qtensor
from lowprec.nn.stored.modules import Activation
from lowprec.spec import Quantizer, load_format

_BLOCK = 16


def read(
    files: Files, settings: Mapping[str, Any]
) -> tuple[dict[str, Quantized], set[str], dict[str, str]]:
    """The quantized weights by name, the tensors they consist of, and those that nothing reads.

    settings: ``quantization_config`` of config.json, or ``quantization`` of hf_quant_config.json.
    LowprecError: another algorithm than NVFP4 in groups of 16; a tensor that is missing, or of
    another shape or dtype.
    """
    algorithm, size = settings.get("quant_algo"), settings.get("group_size", _BLOCK)
    if (algorithm, size) != ("NVFP4", _BLOCK):
        raise LowprecError(
            f"{files.folder}: ModelOpt's {algorithm!r} in groups of {size}: expected 'NVFP4' in "
            f"groups of {_BLOCK}"
        )
    found, used = {}, set()
    for name in sorted(files.entries):
        module, _, last = name.rpartition(".")
        if last == "weight_scale_2":
            found[f"{module}.weight"] = _weight(files, module)
            parts = ("weight", "weight_scale", "weight_scale_2", "input_scale")
            used |= {f"{module}.{part}" for part in parts}
    kept = {n: "scale of a quantized KV cache" for n in files.entries if n.endswith(_CACHE)}
    return found, used, kept


_CACHE = (".k_scale", ".v_scale")


def _weight(files: Files, module: str) -> Quantized:
    files.expect(f"{module}.weight", (torch.uint8,))
    n, half = _matrix(files, f"{module}.weight")
    files.expect(f"{module}.weight_scale", (torch.float8_e4m3fn,), (n, 2 * half // _BLOCK))
    files.expect(f"{module}.weight_scale_2", (torch.float32,), (), (1,))
    activation = None
    if f"{module}.input_scale" in files:
        files.expect(f"{module}.input_scale", (torch.float32,), (), (1,))
        scale = files.read(f"{module}.input_scale").reshape(())
        activation = Activation(Quantizer(format=load_format("nvfp4"), rule="static"), scale)
    return Quantized((n, 2 * half), (partial(_read, files, module),), activation)


def _matrix(files: Files, name: str) -> tuple[int, int]:
    shape = files.entries[name].shape
    if len(shape) != 2 or 2 * shape[1] % _BLOCK:
        raise LowprecError(
            f"{files.folder}: {name}: shape {shape}; expected (N, bytes), whole {_BLOCK}s of codes"
        )
    return shape


def _read(files: Files, module: str) -> QTensor:
    packed, scales, outer = (
        files.read(f"{module}.{part}") for part in ("weight", "weight_scale", "weight_scale_2")
    )
    codes = unpack_bits(packed, 4, 2 * packed.numel()).reshape(len(packed), -1)
    return qtensor(load_format("nvfp4"), codes, scales.view(torch.uint8), outer.reshape(()))
