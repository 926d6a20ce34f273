"""GGUF files (llama.cpp): read into codes, block for block.

Only whole rows may move on the way from ggml's order to a model's, as those of Llama's queries and
keys do: a block of codes lies within one row.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from torch import Tensor

from lowprec.checkpoints.hf import empty_model
from lowprec.checkpoints.hf_gguf import Process, gguf_config, gguf_names
from lowprec.checkpoints.source import Checkpoint, Plain, Quantized
from lowprec.errors import LowprecError
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
    tensors = _tensors(path)
    config, data = gguf_config(path)
    names, process = gguf_names(
        empty_model(config, torch.float32, str(path)), _architecture(config, data), data
    )
    plain: dict[str, Plain] = {}
    quantized: dict[str, Quantized] = {}
    set_aside: dict[str, str] = {}
    for each in tensors:
        if each.name not in names:
            set_aside[each.name] = "transformers has no parameter for it"
        elif each.tensor_type in _PLAIN:
            plain[names[each.name]] = _plain(each, process, path)
        else:
            quantized[names[each.name]] = _quantized(each, process, path)
    return Checkpoint(str(path), config, plain, quantized, set_aside)


def _tensors(path: Path) -> list[Any]:
    """What the file says of its tensors, their data mapped and not read."""
    try:
        return gguf.GGUFReader(path).tensors
    except FileNotFoundError:
        raise LowprecError(f"{path}: no such file") from None
    except (ValueError, IndexError, KeyError, OSError, UnicodeDecodeError, OverflowError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise LowprecError(f"{path}: damaged, or no GGUF file ({reason})") from None


def _architecture(config: Any, data: dict[str, Any]) -> str:
    """ggml's name of it, of which transformers' type differs for Gemma 3."""
    return str(data.get("model_type", config.model_type)).removesuffix("_text")


def _plain(each: Any, process: Process, path: Path) -> Plain:
    shape = tuple(int(n) for n in reversed(each.shape))

    def read_it() -> Tensor:
        values = np.array(each.data)
        if each.tensor_type == Type.BF16:
            values = torch.from_numpy(values).view(torch.bfloat16).float().numpy()
        made = process(values.astype(np.float32).reshape(shape), each.name)
        if made is None:
            raise LowprecError(f"{path}: {each.name}: transformers splits it; not read")
        return torch.from_numpy(np.ascontiguousarray(made, dtype=np.float32))

    probe = process(np.zeros(shape, np.float32), each.name)
    return Plain(shape if probe is None else probe.shape, _PLAIN[each.tensor_type], read_it)


def _quantized(each: Any, process: Process, path: Path) -> Quantized:
    name = Type(each.tensor_type).name
    if name not in FORMATS:
        raise LowprecError(
            f"{path}: {each.name}: type {name}; expected F32, F16, BF16, {', '.join(FORMATS)}"
        )
    shape = tuple(int(n) for n in reversed(each.shape))
    order = _order(shape, process, each.name)
    if order is None:
        raise LowprecError(
            f"{path}: {each.name}: of type {name} and shape {shape}; transformers takes apart more "
            "than its rows, which codes cannot follow"
        )
    return Quantized(shape, (partial(_read, each.data, order, FORMATS[name], shape),))


def _read(data: np.ndarray, order: np.ndarray, name: str, shape: tuple[int, int]) -> QTensor:
    return layouts.from_gguf(torch.from_numpy(data[order]), name, shape)


def _order(shape: tuple[int, ...], process: Process, name: str) -> np.ndarray | None:
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
