"""GGUF files (llama.cpp): read into codes, block for block.

Only whole rows may move on the way from ggml's order to a model's, as those of Llama's queries and
keys do: a block of codes lies within one row.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
from gguf import GGMLQuantizationType as Type
from torch import Tensor

from lowprec.checkpoints.gguf_header import GgufTensor, read_header
from lowprec.checkpoints.hf import empty_model
from lowprec.checkpoints.hf_gguf import Process, gguf_config, processor
from lowprec.checkpoints.source import Checkpoint, Plain, Quantized
from lowprec.errors import LowprecError, unknown
from lowprec.kernels import QTensor, layouts
from lowprec.kernels.layouts.gguf import LAYOUTS

# By ggml's name of a type, that of the format.
FORMATS = {name.removeprefix("gguf_").upper(): name for name in LAYOUTS}
_PLAIN = {Type.F32: torch.float32, Type.F16: torch.float16, Type.BF16: torch.bfloat16}


def read(path: Path) -> Checkpoint:
    """The tensors of a file by the names of transformers' parameters.

    LowprecError: a damaged file, an architecture that transformers does not read, a tensor type
    without a format, or a quantized tensor whose rows transformers takes apart.
    """
    architecture, tensors = read_header(path)
    config, data = gguf_config(path)
    model = empty_model(config, torch.float32, str(path))
    names = _names(model.state_dict(), architecture, config.num_hidden_layers, path)
    process = processor(architecture, data)
    plain: dict[str, Plain] = {}
    quantized: dict[str, Quantized] = {}
    set_aside: dict[str, str] = {}
    for each in tensors:
        if each.name not in names:
            set_aside[each.name] = "transformers has no parameter for it"
        elif each.type in _PLAIN:
            plain[names[each.name]] = _plain(each, process, path)
        else:
            quantized[names[each.name]] = _quantized(each, process, path)
    return Checkpoint(str(path), config, plain, quantized, set_aside)


def _names(parameters: Iterable[str], architecture: str, layers: int, path: Path) -> dict[str, str]:
    """The name of each parameter by ggml's, as gguf knows them."""
    kinds = {name: kind for kind, name in MODEL_ARCH_NAMES.items()}
    if architecture not in kinds:
        raise unknown("GGUF architecture", architecture, kinds, str(path))
    table = get_tensor_name_map(kinds[architecture], layers)
    pairs = ((table.get_name(name, (".weight", ".bias")), name) for name in parameters)
    return {ggml: name for ggml, name in pairs if ggml is not None}


def _plain(each: GgufTensor, process: Process, path: Path) -> Plain:
    def read_it() -> Tensor:
        values = torch.from_numpy(np.array(each.data)).view(_PLAIN[each.type]).float()
        made = process(values.reshape(each.shape).numpy(), each.name)
        return torch.from_numpy(np.ascontiguousarray(made, dtype=np.float32))

    probe = process(np.broadcast_to(np.float32(1), each.shape), each.name)
    if probe is None:
        raise LowprecError(f"{path}: {each.name}: transformers splits or joins it; not read")
    return Plain(probe.shape, _PLAIN[each.type], read_it)


def _quantized(each: GgufTensor, process: Process, path: Path) -> Quantized:
    name, shape = each.type.name, each.shape
    if name not in FORMATS:
        raise LowprecError(
            f"{path}: {each.name}: type {name}; expected F32, F16, BF16, {', '.join(FORMATS)}"
        )
    order = row_order(shape, process, each.name)
    if order is None:
        raise LowprecError(
            f"{path}: {each.name}: of type {name} and shape {shape}; transformers takes apart more "
            "than its rows, which codes cannot follow"
        )
    return Quantized(
        shape, (partial(_read, each.data.reshape(shape[0], -1), order, FORMATS[name], shape),)
    )


def _read(data: np.ndarray, order: np.ndarray, name: str, shape: tuple[int, int]) -> QTensor:
    return layouts.from_gguf(torch.from_numpy(data[order]), name, shape)


def row_order(shape: tuple[int, ...], process: Process, name: str) -> np.ndarray | None:
    """Which row of the file each row of the parameter is; None where it is not made of rows."""
    if len(shape) != 2:
        return None
    # Two columns, of which each number says where it was.
    probe = np.arange(2 * shape[0]).reshape(shape[0], 2)
    try:
        made = process(probe, name)
    except (ValueError, KeyError, TypeError):
        return None
    if made is None or made.shape != probe.shape:
        return None
    rows = made[:, 0] // 2
    return rows if np.array_equal(made, probe[rows]) else None
