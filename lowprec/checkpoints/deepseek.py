"""DeepSeek's block-scaled float8 (V3, R1 and models that follow them): read into codes.

A value is e * weight_scale_inv, of the weight's tile of 128 x 128 (`weight_block_size`). Inputs
are quantized in groups of 128 along K, by the group's largest magnitude, to a float32 scale, or
to a power of two where `scale_fmt` is ue8m0. (deepseek-ai/DeepSeek-V3, README_WEIGHTS.md and
inference/kernel.py.)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from lowprec.checkpoints.files import Files
from lowprec.checkpoints.formats import FLOATS, block_format, one_byte
from lowprec.checkpoints.source import Quantized
from lowprec.errors import LowprecError
from lowprec.kernels import QTensor
from lowprec.nn.stored.modules import Activation
from lowprec.spec import Quantizer, load_quantizer
from lowprec.spec.block import BlockFormat

_SUFFIX = ".weight_scale_inv"
_SCALES = {**FLOATS, torch.float8_e8m0fnu: "float8_e8m0fnu"}


def read(
    files: Files, settings: Mapping[str, Any]
) -> tuple[dict[str, Quantized], set[str], dict[str, str]]:
    """The quantized weights by name, and the tensors they consist of.

    settings: ``quantization_config`` of config.json. LowprecError: weights that are not E4M3 in
    tiles; static scales of inputs; a tensor that is missing, or of another shape or dtype.
    """
    where = f"{files.folder / 'config.json'}: quantization_config"
    tile, scheme = settings.get("weight_block_size"), settings.get("activation_scheme", "dynamic")
    if not (isinstance(tile, list) and len(tile) == 2 and all(isinstance(n, int) for n in tile)):
        raise LowprecError(f"{where}: weight_block_size: {tile}; expected [rows, columns]")
    if (settings.get("fmt", "e4m3"), scheme) != ("e4m3", "dynamic"):
        raise LowprecError(
            f"{where}: fmt {settings.get('fmt')!r}, activation_scheme {scheme!r}: expected 'e4m3' "
            "and 'dynamic'"
        )
    activation = Activation(_input(tile[1], settings.get("scale_fmt") == "ue8m0"))
    found, used = {}, set()
    for name in sorted(files.entries):
        if name.endswith(_SUFFIX):
            weight = name.removesuffix("_scale_inv")
            found[weight] = _weight(files, weight, name, (tile[0], tile[1]), activation)
            used |= {weight, name}
    return found, used, {}


def _input(group: int, powers: bool) -> Quantizer:
    if group == 128:
        name = "float8_e4m3fn_1x128"
        return load_quantizer(f"{name}_e8m0/rceil" if powers else f"{name}/amax")
    fmt = block_format("float8_e4m3fn", (group,), "float8_e8m0fnu" if powers else "float32")
    return Quantizer(format=fmt, rule="rceil" if powers else "amax")


def _weight(
    files: Files, weight: str, scale: str, tile: tuple[int, int], activation: Activation
) -> Quantized:
    files.expect(weight, (torch.float8_e4m3fn,))
    files.expect(scale, tuple(_SCALES))
    shape = files.entries[weight].shape
    if len(shape) != 2:
        raise LowprecError(f"{files.folder}: {weight}: shape {shape}; expected a matrix")
    fmt = block_format("float8_e4m3fn", tile, _SCALES[files.entries[scale].dtype])
    files.expect(scale, tuple(_SCALES), fmt.scale_shape(shape))
    return Quantized(shape, (partial(_read, files, weight, scale, fmt),), activation)


def _read(files: Files, weight: str, scale: str, fmt: BlockFormat) -> QTensor:
    return one_byte(fmt, files.read(weight), files.read(scale))
