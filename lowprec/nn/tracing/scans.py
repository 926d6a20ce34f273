"""State-space layers while they are traced: their recurrences as one operation each.

What transformers runs without a kernel of its own is a loop over tokens, or over chunks of them,
whose operations depend on the number of tokens; a serving engine runs one kernel. FLOP per token
and element of the state, exponentials left out: a selective scan has 6 (dt*A, (dt*x)*B, two to
update, two to read out), a gated delta rule 7 (one to decay, two for what the key recalls, two to
update, two to read out), and so have its chunked forms, which do more work but in matrix units.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

from torch import Tensor, nn

from lowprec.nn.tracing.recorder import Recorder


@contextmanager
def recorded(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """While active, the functions of `model`'s classes that have a name in `_SCANS` record."""
    replaced = []
    for module in {sys.modules[type(m).__module__] for m in model.modules()}:
        for name, scan in _SCANS.items():
            if hasattr(module, name):
                replaced.append((module, name, getattr(module, name)))
                setattr(module, name, _bound(scan, recorder))
    try:
        yield
    finally:
        for module, name, original in replaced:
            setattr(module, name, original)


def _bound(scan: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    return lambda *args, **kwargs: scan(recorder, *args, **kwargs)


def _tensors(*values: Any) -> list[Tensor]:
    return [value for value in values if isinstance(value, Tensor)]


def _conv(recorder: Recorder, x: Tensor, weight: Tensor, bias: Any = None, **_: Any) -> Tensor:
    out = x.new_empty(x.shape)
    flops = 2 * x.numel() * weight.shape[-1]
    recorder.scan("causal_conv1d", _tensors(x, weight, bias), [out], flops, 0)
    return out


def _conv_step(
    recorder: Recorder, x: Tensor, _state: Any, weight: Tensor, bias: Any = None, *_: Any, **__: Any
) -> Tensor:
    out = x.new_empty(x.shape)
    state = x.shape[0] * weight.shape[0] * weight.shape[-1]
    flops = 2 * x.numel() * weight.shape[-1]
    recorder.scan("causal_conv1d", _tensors(x, weight, bias), [out], flops, state)
    return out


def _selective_step(
    recorder: Recorder, _state: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor,
    D: Any = None, z: Any = None, dt_bias: Any = None, **_: Any,
) -> Tensor:  # fmt: skip
    """x (batch, channels) of Mamba, (batch, heads, head_dim) of Mamba 2."""
    state = x.numel() * B.shape[-1]
    out = x.new_empty(x.shape)
    inputs = _tensors(x, dt, A, B, C, D, z, dt_bias)
    recorder.scan("selective_scan", inputs, [out], 6 * state, state)
    return out


def _selective_scan(
    recorder: Recorder, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Any = None,
    z: Any = None, delta_bias: Any = None, return_last_state: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """x (batch, channels, tokens), A (channels, state)."""
    out, last = x.new_empty(x.shape), x.new_empty((*x.shape[:2], A.shape[-1]))
    inputs = _tensors(x, dt, A, B, C, D, z, delta_bias)
    flops = 6 * x.numel() * A.shape[-1]
    recorder.scan("selective_scan", inputs, [out], flops, last.numel())
    return (out, last) if return_last_state else out


def _chunk_scan(
    recorder: Recorder, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor,
    chunk_size: int = 0, D: Any = None, dt_bias: Any = None, return_final_states: bool = False,
    **_: Any,
) -> Any:  # fmt: skip
    """x (batch, tokens, heads, head_dim), B (batch, tokens, groups, state) of Mamba 2."""
    del chunk_size
    out, last = x.new_empty(x.shape), x.new_empty((x.shape[0], *x.shape[2:], B.shape[-1]))
    inputs = _tensors(x, dt, A, B, C, D, dt_bias)
    recorder.scan("selective_scan", inputs, [out], 6 * x.numel() * B.shape[-1], last.numel())
    return (out, last) if return_final_states else out


def _delta_rule(
    recorder: Recorder, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **_: Any
) -> tuple[Tensor, Tensor]:
    """value (batch, tokens, heads, value_dim)."""
    batch, tokens, heads, value_dim = value.shape
    out = value.new_empty(value.shape)
    last = value.new_empty((batch, heads, key.shape[-1], value_dim))
    inputs = [query, key, value, g, beta]
    flops = 7 * tokens * prod(last.shape)
    recorder.scan("gated_delta_rule", inputs, [out], flops, last.numel())
    return out, last


_SCANS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _conv,
    "causal_conv1d_update": _conv_step,
    "mamba_selective_state_update": _selective_step,
    "mamba2_selective_state_update": _selective_step,
    "mamba_selective_scan": _selective_scan,
    "mamba2_chunk_scan": _chunk_scan,
    "torch_recurrent_gated_delta_rule": _delta_rule,
    "torch_chunk_gated_delta_rule": _delta_rule,
}
