"""What transformers knows of a checkpoint: its configuration, an empty model, names of tensors."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    rename_source_key,
    revert_weight_conversion,
)

from lowprec.checkpoints.files import read_json
from lowprec.errors import LowprecError


def read_config(folder: Path) -> tuple[PreTrainedConfig, dict[str, Any] | None]:
    """The configuration of config.json without its ``quantization_config``, and that."""
    path = folder / "config.json"
    data = read_json(path)
    settings = data.pop("quantization_config", None)
    if settings is not None and not isinstance(settings, dict):
        raise LowprecError(f"{path}: quantization_config: expected an object")
    name = data.pop("model_type", None)
    if not isinstance(name, str):
        raise LowprecError(f"{path}: model_type: missing")
    return make_config(name, data, str(path)), settings


def make_config(model_type: str, data: dict[str, Any], where: str) -> PreTrainedConfig:
    """transformers' own configuration of that type; code that came with a model is never run."""
    try:
        return AutoConfig.for_model(model_type, **data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LowprecError(f"{where}: no such configuration ({_first_line(error)})") from None


def empty_model(config: PreTrainedConfig, dtype: torch.dtype, where: str) -> PreTrainedModel:
    """The model of `config` in evaluation mode, its parameters and buffers on the meta device,
    but for the buffers that no checkpoint holds: those have their values."""
    names = getattr(config, "architectures", None) or [""]
    cls = getattr(transformers, names[0], None)
    if not (isinstance(cls, type) and issubclass(cls, PreTrainedModel)):
        cls = AutoModelForCausalLM
    config = copy.deepcopy(config)
    try:
        with torch.device("meta"):
            if cls is AutoModelForCausalLM:
                model = cls.from_config(config, dtype=dtype)
            else:
                model = cls._from_config(config, dtype=dtype)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise LowprecError(
            f"{where}: no model of this configuration ({_first_line(error)})"
        ) from None
    for name, buffer in list(model.named_non_persistent_buffers()):
        owner, _, last = name.rpartition(".")
        model.get_submodule(owner)._buffers[last] = torch.empty_like(buffer, device="cpu")
    model.initialize_weights()  # of the parameters nothing happens, on the meta device
    return model.eval()


@dataclass
class Target:
    """The tensors of a checkpoint that one parameter is made of, in order.

    parts: their names, by the pattern of transformers' converter that they match, of which the
    parameter is `converter`'s; without converter one tensor, as it is.
    """

    name: str
    converter: WeightConverter | None = None
    parts: dict[str, list[str]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [name for part in self.parts.values() for name in part]

    @property
    def stacks(self) -> list[list[str]] | None:
        """For each expert the names of its matrices, below each other; None where the parameter
        is made in another way."""
        operations = self.converter.operations if self.converter else ()
        kinds = [type(operation) for operation in operations]
        if kinds not in ([MergeModulelist], [MergeModulelist, Concatenate]):
            return None
        if [operation.dim for operation in operations] != [0, 1][: len(operations)]:
            return None
        order = self.converter.source_patterns
        columns = [sorted(self.parts.get(pattern, ()), key=_natural) for pattern in order]
        if len({len(column) for column in columns}) != 1:
            return None
        return [list(row) for row in zip(*columns, strict=True)]


def targets(model: PreTrainedModel, names: Iterable[str]) -> dict[str, Target]:
    """Which parameter of the model each tensor of a checkpoint belongs to, as transformers says."""
    mapping = get_model_conversion_mapping(model)
    renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
    converters = [each for each in mapping if isinstance(each, WeightConverter)]
    of_pattern = {p: each for each in converters for p in each.source_patterns}
    state = model.state_dict()
    found: dict[str, Target] = {}
    for name in sorted(names, key=_natural):
        target, pattern = rename_source_key(
            name, renamings, converters, model.base_model_prefix, state
        )
        each = found.setdefault(target, Target(target))
        if pattern is not None and each.converter is None:
            each.converter = copy.deepcopy(of_pattern[pattern])
        each.parts.setdefault(pattern or name, []).append(name)
    return found


def convert(
    model: PreTrainedModel, target: Target, tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The parameters that transformers' converter makes of plain tensors, by name."""
    if target.converter is None:
        return {target.name: tensors[target.names[0]]}
    for pattern, names in target.parts.items():
        for name in names:
            target.converter.add_tensor(target.name, name, pattern, lambda n=name: tensors[n])
    made = target.converter.convert(target.name, model=model, config=model.config)
    return {k: v[0] if isinstance(v, list) else v for k, v in made.items()}


def saved_names(model: PreTrainedModel, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters as the model's checkpoints hold and name them."""
    return revert_weight_conversion(model, tensors)


def is_ignored(model: PreTrainedModel, name: str) -> bool:
    """Whether the model's class says that checkpoints may hold such a tensor and it does not."""
    patterns = [*(model._keys_to_ignore_on_load_unexpected or ()), r"rotary_emb\.inv_freq$"]
    return any(re.search(pattern, name) for pattern in patterns)


def dtype_of(model: PreTrainedModel, name: str, dtype: torch.dtype) -> torch.dtype:
    """`dtype`, or float32 for the parameters that the model's class never narrows."""
    kept = set(model._keep_in_fp32_modules_strict or ())
    kept |= set(model._keep_in_fp32_modules or ()) if dtype == torch.float16 else set()
    narrow = dtype in (torch.float16, torch.bfloat16)
    return torch.float32 if narrow and any(k in name.split(".") for k in kept) else dtype


def use_one_expert_at_a_time(model: PreTrainedModel) -> None:
    """Let experts be multiplied one by one, which asks for one expert's weights at a time."""
    if type(model)._can_set_experts_implementation():
        model.set_experts_implementation("eager")


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(p), "") if p.isdecimal() else (-1, p) for p in re.split(r"(\d+)", name)]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
