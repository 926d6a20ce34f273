"""What transformers knows of GGUF files: the configuration they describe, and other orders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedConfig
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    TensorProcessor,
    load_gguf_checkpoint,
)

from lowprec.checkpoints.hf import make_config
from lowprec.errors import LowprecError

# (values as ggml holds them, ggml's name) -> the parameter's, or None where it is not one to one.
Process = Callable[[np.ndarray, str], np.ndarray | None]


def gguf_config(path: Path) -> tuple[PreTrainedConfig, dict[str, Any]]:
    """The configuration of a file, and the plain data that it was made from."""
    try:
        data = dict(load_gguf_checkpoint(str(path))["config"])
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OSError) as error:
        raise LowprecError(
            f"{path}: transformers reads no configuration from it ({_first_line(error)})"
        ) from None
    options = {k: v for k, v in data.items() if k != "model_type"}
    return make_config(str(data.get("model_type")), options, str(path)), data


def processor(architecture: str, data: dict[str, Any]) -> Process:
    """What happens to the values of a tensor on their way to the model's parameter."""
    its = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=data)

    def process(values: np.ndarray, name: str) -> np.ndarray | None:
        aside = {"tensors": {}}  # where a tensor ends that makes more than one parameter, or a part
        made = its.process(weights=values, name=name, parsed_parameters=aside)
        return made.weights if made.name == name else None

    return process


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
