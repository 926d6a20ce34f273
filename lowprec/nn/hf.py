"""What lowprec knows of transformers: its Conv1D, configurations, attention interface and cache."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    Cache,
    DynamicLayer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D  # noqa: F401 - `lowprec.nn.modules` has it from here

from lowprec.errors import LowprecError
from lowprec.nn.emulation import Emulated, Emulator, handles, release, sites_of
from lowprec.nn.operations.matmul import grouped
from lowprec.nn.tracing.recorder import Recorder
from lowprec.spec import Workload

_ATTENTION = "lowprec_trace"
_GROUPED = torch.ops.transformers.grouped_mm_fallback


def trace(
    model_or_config: PreTrainedModel | PreTrainedConfig | Mapping[str, Any] | str | Path,
    batch: int = 1,
    tokens: int = 1,
    context: int = 0,
    dtype: str = "bfloat16",
) -> Workload:
    """The operations of one forward pass of a causal language model, recorded on the meta device.

    model_or_config: a loaded model, a transformers configuration (object or plain data), a
    config.json, a model folder or a Hugging Face id; no weights are needed or touched. The pass
    has `batch` sequences of `tokens` new tokens each, behind `context` tokens in the KV cache;
    it is a decode pass where tokens is 1 and context is not 0, else a prefill. dtype: the format
    of everything that no recipe quantizes.

    As a serving engine would run it: logits for the last position of each sequence only; the KV
    cache is appended to and never copied; vector operations of one module are fused along the
    data flow (`lowprec.nn.tracing.fusion`); experts are multiplied as one grouped matmul, each
    token with its top_k. A recipe for a wrapped model does not change its workload.
    LowprecError: no such configuration; an operation that cannot be recorded.
    """
    for name, value, least in (("batch", batch, 1), ("tokens", tokens, 1), ("context", context, 0)):
        if value < least:
            raise LowprecError(f"trace: {name}: expected {least} or more, got {value}")
    model, name = _meta_model(model_or_config)
    return Workload(
        model=name,
        phase="decode" if tokens == 1 and context > 0 else "prefill",
        batch=batch,
        tokens=tokens,
        context=context,
        dtype=dtype,
        ops=record(model, batch, tokens, context, last_logits=True),
    )


def record(
    model: PreTrainedModel, batch: int, tokens: int, context: int, last_logits: bool
) -> tuple[Any, ...]:
    """The operations of one pass of `model`, which is on the meta device and is altered.

    last_logits: compute logits for the last position only, where the model can.
    """
    parameters = inspect.signature(model.forward).parameters
    if "input_ids" not in parameters or "cache" not in parameters:
        raise LowprecError(
            f"{type(model).__name__} is no causal language model with a KV cache; only these can "
            "be traced yet"
        )
    model.eval()
    model.config.pad_token_id = None  # or else some look for padding among the tokens' values
    model.set_attn_implementation(_ATTENTION)
    if type(model)._can_set_experts_implementation():
        model.set_experts_implementation("grouped_mm")  # the one without data-dependent shapes
    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    cache = Cache(layers=[_CacheLayer(context) for _ in range(layers)])
    extra = {"logits_to_keep": 1} if last_logits and "logits_to_keep" in parameters else {}
    recorder = Recorder(model, batch * tokens)
    ids = torch.zeros((batch, tokens), dtype=torch.long, device="meta")
    try:
        with recorder.watching():
            model(input_ids=ids, cache=cache, use_cache=True, **extra)
    except (RuntimeError, NotImplementedError) as error:
        raise LowprecError(
            f"{type(model).__name__} cannot be traced without values ({_first_line(error)})"
        ) from error
    return recorder.ops


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


def _meta_model(source: Any) -> tuple[PreTrainedModel, str]:
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
        raise LowprecError(f"{name}: no causal language model ({_first_line(error)})") from None


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
        raise LowprecError(f"{name}: no such configuration ({_first_line(error)})") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class _CacheLayer(DynamicLayer):
    """`context` cached positions; new ones are written behind them without copying the old."""

    def __init__(self, context: int) -> None:
        super().__init__()
        self._context = context

    def get_seq_length(self) -> int:
        return self._context

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        written = []
        for new in (key_states, value_states):
            batch, heads, tokens, size = new.shape
            written.append(new.new_empty((batch, heads, self._context + tokens, size)))
        stored = [whole[:, :, self._context :] for whole in written]
        _recorder().vector("kv_cache", [key_states, value_states], stored)
        return tuple(written)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - causality says it all
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What the model calls for its scaled dot products while it is traced."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    keys = key.shape[2]
    if sliding_window is not None and keys > sliding_window:
        if query.shape[2] > 1:
            raise LowprecError(
                f"a sliding window of {sliding_window} below {keys} positions can be traced for "
                "decode only yet"
            )
        key, value = key[:, :, -sliding_window:], value[:, :, -sliding_window:]
    return _recorder().attention(query, key, value, causal), None


def _recorder() -> Recorder:
    mode = _get_current_dispatch_mode()
    assert isinstance(mode, Recorder)
    return mode


@handles(
    torch.ops.transformers.grouped_mm_fallback, torch.ops.transformers.grouped_mm_fallback.default
)
def _experts(mode: Emulator, input: Tensor, weight: Tensor, offs: Tensor) -> Any:
    """What transformers multiplies experts with where torch's grouped matmul has no kernel."""
    return grouped(mode, _GROUPED, input, weight, offs=offs)


AttentionInterface.register(_ATTENTION, _attention)
