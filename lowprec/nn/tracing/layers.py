"""Layers of a model that are alike: what one of them does, the others do too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

_PLAIN = (bool, int, float, str, type(None))


def alike(model: nn.Module, apart: int = 0) -> dict[str, str]:
    """Of every layer that has a like before it: its path, and that of the first such layer.

    Layers are the entries of the outermost module lists. They are alike if all their modules have
    the same class, plain attributes (their own number aside) and shapes of parameters. apart:
    how many layers in front have no likes; what enters the first may be of another type.
    """
    first: dict[Any, str] = {}
    found = {}
    for path, layer in _outermost(model):
        if int(path.rpartition(".")[2]) < apart:
            continue
        like = first.setdefault((path.rpartition(".")[0], _structure(layer)), path)
        if like != path:
            found[path] = like
    return found


@contextmanager
def bypassed(model: nn.Module, twins: dict[str, str]) -> Iterator[None]:
    """While active, the layers in `twins` hand on their input, in the form of their like's output:
    a pass of a deep model takes the time of its distinct layers."""
    last: dict[str, Any] = {}
    modules = dict(model.named_modules())
    watched = set(twins.values())
    handles = [
        modules[path].register_forward_hook(lambda _m, _a, out, path=path: last.update({path: out}))
        for path in watched
    ]
    inside = {path: modules[path]._modules for path in twins}
    for path, like in twins.items():
        modules[path].forward = _handing_on(last, like)
        modules[path]._modules = {}  # nothing in there runs, so nothing has to be watched
    try:
        yield
    finally:
        for path in twins:
            del modules[path].forward
            modules[path]._modules = inside[path]
        for handle in handles:
            handle.remove()


def _handing_on(last: dict[str, Any], like: str) -> Any:
    def forward(*args: Any, **kwargs: Any) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]
        out = last[like]
        return (hidden, *out[1:]) if isinstance(out, tuple) else hidden

    return forward


def _outermost(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    for name, child in model.named_children():
        path = f"{prefix}.{name}" if prefix else name
        if isinstance(child, nn.ModuleList):
            yield from ((f"{path}.{i}", layer) for i, layer in child.named_children())
        else:
            yield from _outermost(child, path)


def _structure(layer: nn.Module) -> tuple[Any, ...]:
    return tuple(
        (
            name,
            type(module),
            tuple(
                (n, tuple(t.shape), t.dtype)
                for n, t in {**module._parameters, **module._buffers}.items()
                if isinstance(t, Tensor)
            ),
            tuple(
                (n, value)
                for n, value in vars(module).items()
                if isinstance(value, _PLAIN) and not n.startswith("_") and n != "layer_idx"
            ),
        )
        for name, module in layer.named_modules()
    )
