"""KV caches that hold code points: layers of transformers' caches, and a cache of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    Cache,
    DynamicCache,
    EncoderDecoderCache,
    PreTrainedConfig,
    PreTrainedModel,
    StaticCache,
)
from transformers.cache_utils import (
    CacheLayerMixin,
    DummyLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from lowprec.errors import LowprecError
from lowprec.nn.attention.rows import check_rowwise, decode_rows, encode_rows
from lowprec.nn.site import Site
from lowprec.spec import Quantizer, Rule, build, load_quantizer

_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer)
# How a forward says that it attends to another sequence.
_CROSS = ("key_value_states", "encoder_hidden_states")


class KVCache(Cache):
    """A cache of code points for any transformers model, passed as its cache argument.

    config: the model's configuration, or the model. key, value: quantizers, or None to keep that as
    it is. max_length: of a static cache, which is allocated whole; else it grows. Layers with a
    sliding window hold that many tokens.

    Keys and values are quantized along head_dim, each token alone: it is written once, and no later
    token changes it. For keys that is the axis that attention contracts; values are contracted
    along the tokens, but blocks of tokens would have to wait for the last of them. What models
    with latent attention (MLA) cache, the latent and the rotary key, goes by the same two names.
    LowprecError for a quantizer whose scale is shared by tokens and depends on them, as is the
    outer one of ``nvfp4/amax``: ``nvfp4/fixed=NUMBER`` gives it.
    """

    def __init__(
        self,
        config: PreTrainedConfig | PreTrainedModel,
        key: Quantizer | str | None = None,
        value: Quantizer | str | None = None,
        max_length: int | None = None,
    ) -> None:
        config = config.config if isinstance(config, PreTrainedModel) else config
        given = {"key_cache": key, "value_cache": value}
        quantizers = {
            name: load_quantizer(q) if isinstance(q, str) else q for name, q in given.items()
        }
        rule = build(Rule, {"match": "*", "operation": "attention", **quantizers}, "KVCache")
        site = Site("KVCache", "attention", rule)
        like = (
            DynamicCache(config=config)
            if max_length is None
            else StaticCache(config=config, max_cache_len=max_length)
        )
        super().__init__(layers=[coded(layer, site) for layer in like.layers])

    @property
    def nbytes(self) -> int:
        """Bytes of all that is stored."""
        return sum(layer.nbytes for layer in self.layers if isinstance(layer, CodedLayer))


def coded(layer: Any, site: Site) -> Any:
    """A cache layer that stores what `layer` would as `site` quantizes it; with what `layer` holds
    already. LowprecError for a layer of an unknown kind, or one of other codes."""
    if isinstance(layer, DummyLayer):
        return layer
    if isinstance(layer, CodedLayer):
        layer.check(site)
        return layer
    if type(layer) not in _LAYERS:
        raise LowprecError(f"{site.path}: a cache layer {type(layer).__name__} cannot hold codes")
    _check(site)
    return CodedLayer(layer, site)


def _check(site: Site) -> None:
    """LowprecError for a rule under which a later token would change what is stored."""
    for name in ("key_cache", "value_cache"):
        if (quantizer := getattr(site.rule, name)) is not None:
            check_rowwise(quantizer, f"{site.path}: {name}")
            if quantizer.rule == "static" and site.rule.delayed is not None:
                raise LowprecError(
                    f"{site.path}: {name}: delayed scales would change under a cache"
                )


class CodedLayer(CacheLayerMixin):
    """A cache layer whose `inner` one stores, for each token and head, the bytes of its codes."""

    def __init__(self, inner: Any, site: Site) -> None:
        self.inner = inner
        static = isinstance(inner, StaticLayer)
        self._parts = (_Part(site, "key_cache", static), _Part(site, "value_cache", static))
        if inner.is_initialized and inner.keys is not None:
            inner.keys, inner.values = self._encode(inner.keys, inner.values)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def keys(self) -> Tensor | None:
        return self._parts[0].decode(self.inner.keys)

    @property
    def values(self) -> Tensor | None:
        return self._parts[1].decode(self.inner.values)

    @property
    def nbytes(self) -> int:
        """Bytes of what is stored."""
        stored = (self.inner.keys, self.inner.values)
        return sum(x.nbytes for x in stored if x is not None)

    def check(self, site: Site) -> None:
        """LowprecError unless `site` would store the same codes."""
        for part in self._parts:
            wanted = getattr(site.rule, part.name)
            if wanted != part.quantizer:
                raise LowprecError(
                    f"{site.path}: {part.name}={wanted and wanted.spell()}, but the cache holds "
                    f"{part.quantizer and part.quantizer.spell()}"
                )

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        new = key_states, value_states
        stored = self.inner.update(*self._encode(*new), *args, **kwargs)
        found = [part.decode(rows) for part, rows in zip(self._parts, stored, strict=True)]
        if torch.is_grad_enabled() and any(x.requires_grad for x in new):
            found = [
                part.with_gradient(y, x) for part, y, x in zip(self._parts, found, new, strict=True)
            ]
        return tuple(found)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.inner.lazy_initialization(*self._encode(key_states, value_states))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.inner.get_mask_sizes(query_length)

    def get_seq_length(self) -> int:
        return self.inner.get_seq_length()

    def get_max_length(self) -> int:
        return self.inner.get_max_length()

    def offload(self) -> None:
        self.inner.offload()

    def prefetch(self) -> None:
        self.inner.prefetch()

    def reset(self) -> None:
        self.inner.reset()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.inner.reorder_cache(beam_idx)

    @property
    def is_compileable(self) -> bool:  # type: ignore[override]
        return self.inner.is_compileable

    @property
    def is_croppable(self) -> bool:  # type: ignore[override]
        return self.inner.is_croppable

    def _encode(self, *states: Tensor) -> list[Tensor]:
        return [part.encode(x) for part, x in zip(self._parts, states, strict=True)]


class _Part:
    """Keys or values, `name` of a site's rule: codes, or what they are without a quantizer."""

    def __init__(self, site: Site, name: str, static: bool) -> None:
        self.site, self.name, self._is_static = site, name, static
        self.quantizer: Quantizer | None = getattr(site.rule, name)
        self._size, self._dtype = 0, torch.float32

    def encode(self, x: Tensor) -> Tensor:
        self._size, self._dtype = x.shape[-1], x.dtype
        if self.quantizer is None:
            return x
        seed = self.site.seed_for(self.name, self.quantizer)
        return encode_rows(x.detach(), self.quantizer, self._scale(), seed)

    def decode(self, rows: Tensor | None) -> Tensor | None:
        if rows is None or self.quantizer is None:
            return rows
        if rows.dim() < 2:  # nothing is stored yet
            return rows.to(self._dtype)
        return decode_rows(rows, self.quantizer, self._size, self._dtype, self._scale())

    def with_gradient(self, y: Tensor, x: Tensor) -> Tensor:
        """`y`, whose last tokens are `x` quantized, with a gradient straight through to these."""
        if self.quantizer is None or not x.requires_grad:
            return y
        new, before = x.shape[-2], y.shape[-2] - x.shape[-2]
        if self._is_static:
            raise LowprecError(f"{self.site.path}: {self.name}: a static cache passes no gradient")
        last = _StraightThrough.apply(x, y[..., before:, :])
        return last if not before else torch.cat([y[..., :-new, :], last], -2)

    def _scale(self) -> Tensor | None:
        assert self.quantizer is not None
        if self.quantizer.rule != "static":
            return None
        return self.site.calibrated(self.name, self.quantizer)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:  # noqa: ARG004
        return y.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return gradient, None


class _Passing:
    """The cache of a module that is given none: what is stored comes back and is gone."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.is_updated: dict[Any, bool] = {}
        self.self_attention_cache = self.cross_attention_cache = self

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self._site.operand("key_cache", keys), self._site.operand("value_cache", values)

    def get_seq_length(self, *_: Any) -> int:
        return 0


def with_codes(
    site: Site,
    module: nn.Module,
    parameters: tuple[str, Sequence[str]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of an attention's forward whose cache holds codes, as the rule of `site` says.

    parameters: the name of its cache and of all. A cache's layer is exchanged in place, as soon as
    the module it belongs to runs. A module without a cache gets one that keeps nothing, so that
    keys and values are the same with and without.
    """
    rule, (name, names) = site.rule, parameters
    if rule.key_cache is None and rule.value_cache is None:
        return args, kwargs
    given = dict(zip(names, args, strict=False)) | kwargs
    cache = given.get(name, given.get("past_key_values"))
    if cache is None or site.statistics is not None:
        _check(site)
        place = names.index(name)
        if place < len(args):
            return (*args[:place], _Passing(site), *args[place + 1 :]), kwargs
        return args, {k: v for k, v in kwargs.items() if k != "past_key_values"} | {
            name: _Passing(site)
        }
    if isinstance(cache, EncoderDecoderCache):
        crosses = any(given.get(other) is not None for other in _CROSS)
        cache = cache.cross_attention_cache if crosses else cache.self_attention_cache
    index = module.layer_idx
    if cache.layer_class_to_replicate is not None:
        while len(cache.layers) <= index:
            cache.layers.append(cache.layer_class_to_replicate())
    cache.layers[index] = coded(cache.layers[index], site)
    return args, kwargs
