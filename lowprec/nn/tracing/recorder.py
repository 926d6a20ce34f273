"""Record the operations of a forward pass, from the dispatcher."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lowprec.errors import LowprecError
from lowprec.nn.tracing.fusion import Fuser, Kernel, key
from lowprec.nn.tracing.running import Running
from lowprec.spec import Attention, Embedding, Matmul, Vector

aten = torch.ops.aten
# Where a matmul's two operands stand among its arguments.
MATMULS: dict[Any, tuple[int, int]] = {
    aten.mm: (0, 1),
    aten.bmm: (0, 1),
    aten.addmm: (1, 2),
    aten.baddbmm: (1, 2),
    aten._grouped_mm: (0, 1),
}
# Any other operation of such a name multiplies too; to drop it would falsify the workload.
MULTIPLIES = re.compile(
    r"mm|mv|dot|matmul|linear$|addr|einsum|conv|attention|rnn|lstm|gru|cdist|embedding_bag"
)


class Recorder(TorchDispatchMode):
    """Records, while active, what a model on the meta device does.

    new_tokens: batch times tokens of the pass, which makes top_k of a grouped matmul's rows.
    LowprecError: a multiplication of a kind that the workload has no name for.
    """

    def __init__(self, model: nn.Module, new_tokens: int) -> None:
        super().__init__()
        self._new_tokens = new_tokens
        self._events: list[Matmul | Attention | Embedding | Kernel] = []
        self._fuser = Fuser()
        self._running = Running(model)
        self._parameters: dict[int, tuple[str, Tensor]] = {}
        self._first_name: dict[int, str] = {}  # of parameters that have several
        for path, parameter in model.named_parameters(remove_duplicate=False):
            if key(parameter) in self._parameters:
                self._first_name.setdefault(key(parameter), self._parameters[key(parameter)][0])
            self._parameters[key(parameter)] = path, parameter

    @property
    def ops(self) -> tuple[Matmul | Attention | Embedding | Vector, ...]:
        """What was recorded, in order; a fused kernel stands where its first operation did."""
        found = (self._fuser.finish(e) if isinstance(e, Kernel) else e for e in self._events)
        return tuple(op for op in found if op is not None)

    @property
    def path(self) -> str:
        """Path of the running module."""
        return self._running.path

    def use(self, tensor: Tensor) -> None:
        """Something outside the recorded operations reads `tensor`."""
        self._fuser.use([tensor])

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Active, with the path of the running module known."""
        with self._running.watching(), torch.no_grad(), self:
            yield

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        outputs = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        self._record(func, args, inputs, outputs)
        return out

    def _record(
        self, func: Any, args: tuple[Any, ...], inputs: list[Tensor], outputs: list[Tensor]
    ) -> None:
        packet, name = func.overloadpacket, func.overloadpacket.__name__
        if packet in MATMULS:
            a, b = (args[i] for i in MATMULS[packet])
            self._event(self._matmul(a, b, grouped=packet is aten._grouped_mm), inputs, outputs)
        elif packet is aten.embedding:
            op = Embedding(
                kind="embedding",
                path=self._running.path,
                rows=args[1].numel(),
                width=args[0].shape[-1],
                table=args[0].shape[0],
            )
            self._event(op, args[1:2], outputs)
        elif func.namespace not in ("aten", "prim") or MULTIPLIES.search(name):
            raise LowprecError(
                f"{self._running.name}: {func} is an operation that cannot be recorded yet"
            )
        elif not inputs or name.endswith("_like") or name.startswith("new_"):
            pass  # reads no tensor's values
        elif not func._schema.is_mutable and _only_views(inputs, outputs):
            pass
        elif packet is aten.clone:
            self._fuser.relaid(inputs[0], outputs[0])
        elif packet is aten._to_copy and key(inputs[0]) in self._parameters:
            # A parameter in another type is still that parameter.
            self._parameters[key(outputs[0])] = self._parameters[key(inputs[0])]
            self._event(None, inputs, outputs)
        else:
            self.vector(name, inputs, outputs)

    def vector(self, name: str, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Record an elementwise operation, reduction or copy of the running module."""
        kernel = self._fuser.vector(self._scope(), name, inputs, outputs)
        if kernel is not None:
            self._events.append(kernel)

    def scan(
        self, name: str, inputs: list[Tensor], outputs: list[Tensor], flops: int, state: int
    ) -> None:
        """Record a recurrence of the running module, or a depthwise convolution, as a kernel of its
        own. state: elements of the state that it starts from and leaves, where they are no
        tensors; `inputs` and `outputs` are the other ones."""
        op = Vector(
            kind="vector",
            path=self._running.path,
            name=name,
            read=sum(t.numel() for t in inputs) + state,
            written=sum(t.numel() for t in outputs) + state,
            flops=flops,
            state=state,
        )
        self._event(op, inputs, outputs)

    def product(self, path: str, rows: int, n: int, k: int, heads: int) -> None:
        """Record `rows` rows, for each of `heads` heads, times that head's own part of the weight
        at `path`."""
        op = Matmul(
            kind="matmul", path=path, m=rows * heads, n=n, k=k, experts=heads, top_k=heads
        )  # fmt: skip
        self._events.append(op)

    def attention(
        self, query: Tensor, keys: Tensor, values: Tensor, causal: bool, **more: Any
    ) -> Tensor:
        """Record scaled dot products of (batch, heads, tokens, head_dim) tensors.

        more: further fields of `Attention`. Returns an output of the shape (batch, tokens, heads,
        value_dim).
        """
        batch, heads, queries, head_dim = query.shape
        op = Attention(
            kind="attention",
            path=self._running.path,
            batch=batch,
            heads=heads,
            kv_heads=keys.shape[1],
            queries=queries,
            keys=keys.shape[2],
            head_dim=head_dim,
            value_dim=values.shape[-1],
            causal=causal,
            **more,
        )
        out = query.new_empty((batch, queries, heads, values.shape[-1]))
        self._event(op, [query, keys, values], [out])
        return out

    def _event(self, op: Any, inputs: Any, outputs: list[Tensor]) -> None:
        self._fuser.use(inputs)
        self._fuser.use(outputs)
        if op is not None:
            self._events.append(op)

    def _scope(self) -> str:
        """The running module. One without parameters is a part of the module that calls it: an
        activation function belongs to its MLP."""
        for path, module in reversed(self._running.stack):
            if next(module.parameters(), None) is not None:
                return path
        return ""

    def _matmul(self, a: Tensor, b: Tensor, grouped: bool) -> Matmul:
        """a (..., M, K) times b (..., K, N), either of which may be the parameter."""
        path = self._parameter_path(b)
        if path is None and (path := self._parameter_path(a)) is not None:
            a, b = b.mT, a.mT
        m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
        shape: dict[str, Any] = {"m": m, "n": n, "k": k}
        if grouped:
            shape |= {"experts": b.shape[0], "top_k": max(1, m // self._new_tokens)}
        elif path is not None and b.dim() == 3:  # every expert for all rows
            shape |= {"m": a.shape[0] * m, "experts": b.shape[0], "top_k": b.shape[0]}
        elif b.dim() == 3:
            shape["batch"] = b.shape[0]
        if path is None:
            return Matmul(kind="matmul", path=self._running.path, weight=False, **shape)
        parameter = b if key(b) in self._parameters else a
        first = self._first_name.get(key(parameter), path).removesuffix(".weight")
        tied = {"tied_to": first} if first != path else {}
        return Matmul(kind="matmul", path=path, **tied, **shape)

    def _parameter_path(self, tensor: Tensor) -> str | None:
        """Path of the parameter that `tensor` is a view of, without a final ``.weight``.

        Of the names that a shared parameter has, the one in the innermost running module.
        """
        if key(tensor) not in self._parameters:
            return None
        path, parameter = self._parameters[key(tensor)]
        for prefix, module in reversed(self._running.stack):
            own = [n for n, p in module.named_parameters(recurse=False) if p is parameter]
            if own:
                path = f"{prefix}.{own[0]}" if prefix else own[0]
                break
        return path.removesuffix(".weight")


def _only_views(inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    return {key(t) for t in outputs} <= {key(t) for t in inputs}
