"""What transformers knows of GGUF files: the configuration they describe, and their names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
    load_gguf_checkpoint,
)

from lowprec.checkpoints.hf import make_config
from lowprec.errors import LowprecError

# What transformers' processors do to a tensor as ggml holds it: (values, name) -> values.
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


def gguf_names(
    model: PreTrainedModel, architecture: str, data: dict[str, Any]
) -> tuple[dict[str, str], Process]:
    """ggml's names of the model's parameters, and what happens to their values on the way."""
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=data)
    try:
        names = get_gguf_hf_weights_map(model, processor)
    except NotImplementedError as error:
        raise LowprecError(f"GGUF architecture {architecture!r}: {_first_line(error)}") from None

    def process(values: np.ndarray, name: str) -> np.ndarray | None:
        made = processor.process(
            weights=values,
            name=name,
            tensor_key_mapping=names,
            parsed_parameters={"tensors": {}},
        )
        return made.weights if made.name == name else None

    return names, process


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
