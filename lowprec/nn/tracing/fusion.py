"""Vector operations of a forward pass, fused into kernels as a serving engine would."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from lowprec.spec import Vector

Key = int  # of a storage, which all views of a tensor share


@dataclass(eq=False)
class Kernel:
    """Vector operations that run as one: each tensor from outside is read once, and each result
    that something else uses, or nothing at all, is written once."""

    path: str
    names: dict[str, None] = field(default_factory=dict)
    reads: dict[Key, dict[tuple[object, ...], int]] = field(default_factory=dict)
    writes: dict[Key, int] = field(default_factory=dict)
    used_inside: set[Key] = field(default_factory=set)
    used_outside: set[Key] = field(default_factory=set)

    def absorb(self, other: Kernel) -> None:
        self.names |= other.names
        for storage, views in other.reads.items():
            self.reads.setdefault(storage, {}).update(views)
        self.writes |= other.writes
        self.used_inside |= other.used_inside
        other.names.clear()

    def read(self, storage: Key, tensor: Tensor) -> None:
        """Views of one tensor that differ, such as halves, are read one by one."""
        view = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        stored = math.prod(
            n for n, step in zip(tensor.shape, tensor.stride(), strict=True) if step != 0
        )
        self.reads.setdefault(storage, {})[view] = stored

    def vector(self, sizes: dict[Key, int]) -> Vector:
        """The kernel's traffic; `sizes` are the storages' elements, which bound what is read."""
        written = self.used_outside | (self.writes.keys() - self.used_inside)
        return Vector(
            kind="vector",
            path=self.path,
            name=" ".join(self.names),
            read=sum(min(sizes[s], sum(views.values())) for s, views in self.reads.items()),
            written=sum(self.writes[s] for s in written),
        )


class Fuser:
    """Groups vector operations along the data flow, within a module.

    An operation joins the kernels of its own module that wrote its inputs as long as nothing else
    has used what they wrote; so a kernel never waits for something that waits for it.
    """

    def __init__(self) -> None:
        self._writer: dict[Key, Kernel] = {}
        self._sizes: dict[Key, int] = {}
        self._alive: list[object] = []  # a storage's key is its own while the storage lives
        self._same: dict[Key, Key] = {}  # a storage with the values of another one in other order

    def vector(
        self, path: str, name: str, inputs: Iterable[Tensor], outputs: Iterable[Tensor]
    ) -> Kernel | None:
        """Record an operation; its kernel if that is a new one."""
        inputs = list(inputs)
        known = [self._writer[self._key(t)] for t in inputs if self._key(t) in self._writer]
        mine = [k for k in dict.fromkeys(known) if k.path == path and not k.used_outside]
        kernel = mine[0] if mine else Kernel(path)
        for other in mine[1:]:
            kernel.absorb(other)
            self._writer.update(dict.fromkeys(other.writes, kernel))
        for tensor in inputs:
            if self._writer.get(self._key(tensor)) is kernel:
                kernel.used_inside.add(self._key(tensor))
            else:
                self.use([tensor])
                kernel.read(self._key(tensor), tensor)
        kernel.names[name] = None
        for tensor in outputs:
            self._remember(tensor)
            kernel.writes[self._key(tensor)] = tensor.numel()
            kernel.used_inside.discard(self._key(tensor))
            self._writer[self._key(tensor)] = kernel
        return None if mine else kernel

    def relaid(self, tensor: Tensor, copy: Tensor) -> None:
        """`copy` has the values of `tensor` in another layout, which a kernel writes or reads as
        well as the first: it is the same tensor."""
        self._remember(tensor)
        self._remember(copy)
        self._same[key(copy)] = self._key(tensor)

    def use(self, inputs: Iterable[Tensor]) -> None:
        """Something other than a vector operation of the same kernel reads `inputs`."""
        for tensor in inputs:
            self._remember(tensor)
            if writer := self._writer.get(self._key(tensor)):
                writer.used_outside.add(self._key(tensor))

    def finish(self, kernel: Kernel) -> Vector | None:
        """The operation of `kernel`, or None where another one absorbed it."""
        return kernel.vector(self._sizes) if kernel.names else None

    def _key(self, tensor: Tensor) -> Key:
        return self._same.get(key(tensor), key(tensor))

    def _remember(self, tensor: Tensor) -> None:
        if key(tensor) not in self._sizes:
            self._alive.append(tensor.untyped_storage())
            self._sizes[key(tensor)] = tensor.untyped_storage().nbytes() // tensor.itemsize


def key(tensor: Tensor) -> Key:
    return tensor.untyped_storage()._cdata
