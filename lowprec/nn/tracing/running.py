"""Which module of a model is running."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class Running:
    """The stack of running modules, with their paths, while a model is watched."""

    def __init__(self, model: nn.Module) -> None:
        self.stack: list[tuple[str, nn.Module]] = [("", model)]

    @property
    def path(self) -> str:
        """Path of the innermost running module."""
        return self.stack[-1][0]

    @property
    def name(self) -> str:
        """What to call it in a message."""
        return self.path or type(self.stack[-1][1]).__name__

    @contextmanager
    def watching(self) -> Iterator[None]:
        handles = []
        for path, module in self.stack[0][1].named_modules():
            handles.append(module.register_forward_pre_hook(self._enter(path), prepend=True))
            handles.append(module.register_forward_hook(self._leave, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, path: str) -> Callable[[nn.Module, Any], None]:
        return lambda module, _: self.stack.append((path, module))

    def _leave(self, *_: Any) -> None:
        self.stack.pop()
