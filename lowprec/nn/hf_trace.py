"""The workload of a transformers model, from passes on the meta device."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode
from transformers import AttentionInterface, Cache, DynamicLayer, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from lowprec.errors import LowprecError
from lowprec.nn.hf import first_line, meta_model
from lowprec.nn.tracing import scans, sparse
from lowprec.nn.tracing.laws import UnlawfulError, UnlikeError
from lowprec.nn.tracing.layers import alike, bypassed
from lowprec.nn.tracing.recorder import Recorder
from lowprec.nn.tracing.symbolic import schedules
from lowprec.spec import Workload
from lowprec.spec.law import Sizes
from lowprec.spec.schedule import AnyOp, Schedule

_ATTENTION = "lowprec_trace"
# Laws by configuration, of the models that were made from one: a study asks for the same again.
_KNOWN: dict[str, tuple[Schedule, ...]] = {}


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
    of everything that no recipe quantizes. `Workload.at` gives the same model's workload at any
    other sizes without a further trace.

    As a serving engine would run it: logits for the last position of each sequence only; the KV
    cache is appended to and never copied; vector operations of one module are fused along the
    data flow (`lowprec.nn.tracing.fusion`); experts are multiplied as one grouped matmul, each
    token with its top_k; the scan of a state-space layer is one operation; multi-head latent
    attention is absorbed in decode passes. A recipe for a wrapped model does not change its
    workload. LowprecError: no such configuration; an operation that cannot be recorded.
    """
    for name, value, least in (("batch", batch, 1), ("tokens", tokens, 1), ("context", context, 0)):
        if value < least:
            raise LowprecError(f"trace: {name}: expected {least} or more, got {value}")
    model, name = meta_model(model_or_config)
    made = not isinstance(model_or_config, nn.Module)
    known = f"{type(model).__name__} {model.config.to_json_string()}" if made else None
    _prepare(model)
    return Workload(
        model=name,
        phase="decode" if tokens == 1 and context else "prefill",
        batch=batch,
        tokens=tokens,
        context=context,
        dtype=dtype,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        **_operations(model, Sizes(batch, tokens, context, 1), known),
    )


def _operations(model: PreTrainedModel, place: Sizes, known: str | None) -> dict[str, Any]:
    """What a workload at `place` is made from: laws, or what was recorded and why without."""

    sparsely = bool(sparse.indexed(model))  # its kernels have the absorbed form only

    def whole(sizes: Sizes) -> tuple[AnyOp, ...]:
        return _record(model, sizes, absorb=_is_decode(sizes) or sparsely)

    def short(sizes: Sizes) -> tuple[AnyOp, ...]:
        with bypassed(model, twins):
            return whole(sizes)

    if known in _KNOWN:
        return {"schedules": _KNOWN[known]}
    ops = whole(place)
    for apart in (0, 1):
        twins = alike(model, apart)
        try:
            found = schedules(whole, short, twins, place, ops)
            if known is not None:
                _KNOWN[known] = found
            return {"schedules": found}
        except UnlikeError as error:
            reason: Exception = error
        except UnlawfulError as error:
            reason = error
            break
    return {"ops": ops, "fixed": str(reason)}


def record(
    model: PreTrainedModel, batch: int, tokens: int, context: int, last_logits: bool
) -> tuple[AnyOp, ...]:
    """The operations of one pass of `model`, which is on the meta device and is altered, as
    transformers runs them: latent attention is expanded.

    last_logits: compute logits for the last position only, where the model can.
    """
    _prepare(model)
    sizes = Sizes(batch, tokens, context, 1 if last_logits else tokens)
    return _record(model, sizes, absorb=False)


def _is_decode(sizes: Sizes) -> bool:
    return sizes.tokens == 1 and sizes.context > 0


def _prepare(model: PreTrainedModel) -> None:
    parameters = inspect.signature(model.forward).parameters
    if "input_ids" not in parameters or "cache" not in parameters:
        raise LowprecError(
            f"{type(model).__name__} is no causal language model with a KV cache; only these can "
            "be traced yet"
        )
    model.eval()
    model.config.pad_token_id = None  # or else some look for padding among the tokens' values
    model.set_attn_implementation(_ATTENTION)
    head = model.get_output_embeddings()
    if head is not None:  # which would copy the last positions first, in some shapes only
        head.register_forward_pre_hook(lambda _, args: (args[0].new_empty(args[0].shape),))
    if type(model)._can_set_experts_implementation():
        model.set_experts_implementation("grouped_mm")  # the one without data-dependent shapes


def _record(model: PreTrainedModel, sizes: Sizes, absorb: bool) -> tuple[AnyOp, ...]:
    can_keep = "logits_to_keep" in inspect.signature(model.forward).parameters
    extra = {"logits_to_keep": sizes.logits} if can_keep else {}
    recorder = Recorder(model, sizes.batch * sizes.tokens)
    ids = torch.zeros((sizes.batch, sizes.tokens), dtype=torch.long, device="meta")
    try:
        with ExitStack() as active:
            active.enter_context(scans.recorded(model, recorder))
            active.enter_context(sparse.recorded(model, recorder, sizes.context))
            if absorb:
                active.enter_context(_absorbed(model))
            active.enter_context(recorder.watching())
            model(input_ids=ids, cache=_cache(model, sizes.context), use_cache=True, **extra)
    except (RuntimeError, NotImplementedError, AttributeError, ValueError) as error:
        if isinstance(error, LowprecError):
            raise
        raise LowprecError(
            f"{type(model).__name__} cannot be traced without values ({first_line(error)})"
        ) from error
    return recorder.ops


def _cache(model: PreTrainedModel, context: int) -> Cache:
    config = model.config.get_text_config(decoder=True)
    kinds = getattr(config, "layer_types", None) or [""] * config.num_hidden_layers
    return Cache(
        layers=[
            (_StateLayer if kind in ("linear_attention", "conv", "mamba") else _CacheLayer)(context)
            for kind in kinds
        ]
    )


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


class _StateLayer(LinearAttentionCacheLayerMixin):
    """States of a state-space layer, which `lowprec.nn.tracing.scans` counts; they are no tensors
    here, and there are some if there is a context."""

    def __init__(self, context: int) -> None:
        super().__init__()
        self._context = context
        if context:
            self.conv_states = {0: "state"}
            self.recurrent_states = {0: "state"}
            self.has_previous_state = {0: True}

    def get_seq_length(self) -> int:
        return self._context

    def lazy_initialization(self, *_: Any, **__: Any) -> None:
        """Nothing to allocate."""

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int = 0, **_: Any
    ) -> Tensor:
        del state_idx
        batch, channels, _tokens = conv_states.shape
        _recorder().scan("conv_state", [], [], 0, batch * channels * conv_kernel_size)
        return conv_states

    def update_recurrent_state(self, recurrent_states: Tensor, *_: Any, **__: Any) -> Tensor:
        return recurrent_states


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
    more: dict[str, Any] = {}
    seen = key.shape[2]
    if sliding_window is not None:
        more["window"] = sliding_window
        seen = min(seen, sliding_window - 1 + query.shape[2])
    if hasattr(module, "indexer"):  # chosen positions are of any place: several queries need all
        more["window"] = module.config.index_topk
        seen = min(seen, module.config.index_topk) if query.shape[2] == 1 else seen
    key, value = key[:, :, -seen:], value[:, :, -seen:]
    if hasattr(module, "expand_kv"):
        more["cached"] = module.kv_lora_rank + module.qk_rope_head_dim
        if key.shape[1] == 1:
            return _absorbed_attention(module, query, key, value, causal, more), None
    return _recorder().attention(query, key, value, causal, **more), None


@contextmanager
def _absorbed(model: nn.Module) -> Iterator[None]:
    """While active, latent attention works on the latents: what would expand keys is multiplied
    with the queries instead, and what would expand values with the result. transformers expands
    all cached latents in every pass."""
    found = [module for module in model.modules() if hasattr(module, "expand_kv")]
    for module in found:
        module.expand_kv = _latents
    try:
        yield
    finally:
        for module in found:
            del module.expand_kv


def _latents(kv: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values as they are cached, of one head; the values are part of the keys."""
    return kv.new_empty((*kv.shape[:-1], kv.shape[-1] + rotary.shape[-1])), kv


def _absorbed_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, causal: bool, more: dict[str, Any]
) -> Tensor:
    batch, heads, tokens, _ = query.shape
    recorder, path = _recorder(), f"{_recorder().path}.kv_b_proj"
    rank, rows = module.kv_lora_rank, batch * tokens
    recorder.use(query)
    recorder.product(f"{path}.key", rows, n=rank, k=module.qk_nope_head_dim, heads=heads)
    latent = query.new_empty((*query.shape[:-1], key.shape[-1]))
    recorder.attention(latent, key, value, causal, value_in_key=True, **more)
    recorder.product(f"{path}.value", rows, n=module.v_head_dim, k=rank, heads=heads)
    return query.new_empty((batch, tokens, heads, module.v_head_dim))


def _recorder() -> Recorder:
    mode = _get_current_dispatch_mode()
    assert isinstance(mode, Recorder)
    return mode


AttentionInterface.register(_ATTENTION, _attention)
