"""What lowprec knows of transformers: its Conv1D, configurations and experts."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D  # noqa: F401 - `lowprec.nn.modules` has it from here

from lowprec.errors import LowprecError
from lowprec.nn.emulation import Emulated, Emulator, handles, release, sites_of
from lowprec.nn.operations.matmul import grouped

_GROUPED = torch.ops.transformers.grouped_mm_fallback


def ghost(model: nn.Module) -> PreTrainedModel:
    """A copy of a transformers model with every tensor on the meta device; wrapped if it is."""
    if not isinstance(model, PreTrainedModel):
        raise LowprecError(
            f"{type(model).__name__} is no transformers model; only these can be traced yet"
        )
    memo: dict[int, Any] = {id(t): t.to("meta") for t in model.buffers()}
    memo |= {id(p): nn.Parameter(p.to("meta"), p.requires_grad) for p in model.parameters()}
    found: PreTrainedModel = copy.deepcopy(model, memo)
    for module in found.modules():
        if isinstance(module, Emulated):
            for site in sites_of(module):
                site.scales = {name: scale.to("meta") for name, scale in site.scales.items()}
    return found.to(torch.bfloat16)  # the only dtype of grouped matmuls on the meta device


def token_ids(model: PreTrainedModel, batch: int, tokens: int) -> dict[str, Any]:
    """Arguments of a pass over `batch` x `tokens` token ids of a model on the meta device."""
    if "input_ids" not in inspect.signature(model.forward).parameters:
        raise LowprecError(f"{type(model).__name__} takes no token ids: give the inputs of a pass")
    model.eval()
    model.config.pad_token_id = None  # or else some look for padding among the tokens' values
    if type(model)._can_set_experts_implementation():
        model.set_experts_implementation("grouped_mm")  # the one without data-dependent shapes
    ids = torch.zeros((batch, tokens), dtype=torch.long, device="meta")
    # With a cache the masks need no look at the positions' values.
    extra = {"use_cache": True} if hasattr(model.config, "use_cache") else {}
    if model.config.is_encoder_decoder:
        extra["decoder_input_ids"] = ids
    return {"input_ids": ids, **extra}


def meta_model(source: Any) -> tuple[PreTrainedModel, str]:
    """The model on the meta device, and its name."""
    if isinstance(source, nn.Module):
        model = ghost(source)
        for module in model.modules():
            if isinstance(module, Emulated):
                release(module)
        return model, model.config.name_or_path or model.config.model_type
    config, name = _config(source)
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16), name
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LowprecError(f"{name}: no causal language model ({first_line(error)})") from None


def _config(source: Any) -> tuple[PreTrainedConfig, str]:
    if isinstance(source, PreTrainedConfig):
        return copy.deepcopy(source), source.name_or_path or source.model_type
    if isinstance(source, Mapping):
        data = dict(source)
        name = str(data.pop("model_type", None))
        load, arguments, options = AutoConfig.for_model, [name], data
    else:
        path = Path(source)
        name = path.parent.name if path.name == "config.json" else path.stem
        if not path.suffix and not path.is_dir():
            name = str(source)
        load, arguments, options = AutoConfig.from_pretrained, [str(source)], {}
    try:
        return load(*arguments, **options), name
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LowprecError(f"{name}: no such configuration ({first_line(error)})") from None


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@handles(
    torch.ops.transformers.grouped_mm_fallback, torch.ops.transformers.grouped_mm_fallback.default
)
def _experts(mode: Emulator, input: Tensor, weight: Tensor, offs: Tensor) -> Any:
    """What transformers multiplies experts with where torch's grouped matmul has no kernel."""
    return grouped(mode, _GROUPED, input, weight, offs=offs)
