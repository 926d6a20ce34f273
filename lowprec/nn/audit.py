"""Every multiplication that a model performs, and whether a recipe decided about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lowprec.errors import LowprecError
from lowprec.nn.attention.attends import attends
from lowprec.nn.tracing.fusion import key
from lowprec.nn.tracing.recorder import MATMULS, MULTIPLIES
from lowprec.nn.tracing.running import Running
from lowprec.spec import Recipe

if TYPE_CHECKING:
    from lowprec.nn.site import Site

aten = torch.ops.aten
_UNDER_DATAPATH = torch.ops.lowprec.matmul


class Audit(TorchDispatchMode):
    """Counts, while active, the FLOP of every operation that multiplies matrices, by the running
    module, the kind of operation, and the site that emulates it (None where none does).

    FLOP are those of the dense product: positions that a mask leaves out count. An operation whose
    FLOP no formula here gives is listed with 0. strict: the first operation that is neither
    emulated nor kept by a rule is a LowprecError.
    """

    def __init__(self, model: nn.Module, recipe: Recipe | None, strict: bool = False) -> None:
        super().__init__()
        self.flops: Counter[tuple[str, str, Site | None]] = Counter()
        self.calls: Counter[Site] = Counter()  # how often the work of each site has run
        self._recipe, self._strict = recipe, strict
        self._running = Running(model)
        self._site: Site | None = None
        self._counted = False
        self.inside: str | None = None  # the operation whose parts are running
        self._parameters = {key(p) for p in model.parameters()}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Active, with the path of the running module known."""
        with self._running.watching(), _Within(self), self:
            yield

    @contextmanager
    def credited(self, site: Site, flops: int | None = None) -> Iterator[None]:
        """What runs inside is the emulation of `site`; `flops`: all of it, so that nothing inside
        counts."""
        outer = self._site, self._counted
        self._site, self._counted = site, flops is not None
        self.calls[site] += 1
        if flops is not None:
            self.flops[site.path, site.operation, site] += flops
        try:
            yield
        finally:
            self._site, self._counted = outer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        packet = func.overloadpacket
        name = packet.__name__
        named = func.namespace != "lowprec" and MULTIPLIES.search(name)
        multiplies = packet in MATMULS or packet is _UNDER_DATAPATH or named
        if multiplies and self._site is None:
            self._refuse_hole(self._kind(packet, args), name)
        out = func(*args, **(kwargs or {}))
        if multiplies and not self._counted:
            kind = self._site.operation if self._site else self._kind(packet, args)
            path = self._site.path if self._site else self._running.path
            self.flops[path, kind, self._site] += _flops(packet, args, out)
        return out

    def _kind(self, packet: Any, args: tuple[Any, ...]) -> str:
        if self.inside or "attention" in packet.__name__:
            return self.inside or "attention"
        if "conv" in packet.__name__:
            return "conv"
        operands = [args[i] for i in MATMULS.get(packet, ())] or args
        weight = any(isinstance(t, Tensor) and key(t) in self._parameters for t in operands)
        if weight:
            return "linear"
        return "attention" if attends(type(self._running.stack[-1][1])) else "matmul"

    def _refuse_hole(self, kind: str, name: str) -> None:
        if not self._strict:
            return
        rule = self._recipe.rule_for(self._running.path, kind) if self._recipe else None
        if rule is None or not rule.keep:
            why = "no rule speaks of it" if rule is None else "its rule has no way to emulate it"
            raise LowprecError(
                f"strict: {self._running.name}: {name} ({kind}) is not emulated: {why}"
            )


class _Within(TorchFunctionMode):
    """Tells the audit that matmuls are parts of a scaled dot product attention."""

    def __init__(self, audit: Audit) -> None:
        super().__init__()
        self._audit = audit

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        self._audit.inside = "attention"
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._audit.inside = None


def _flops(packet: Any, args: tuple[Any, ...], out: Any) -> int:
    """2 FLOP a multiply-add; 0 where no formula is known."""
    name = packet.__name__
    if "grouped_mm" in name:  # of another library's
        return 2 * args[0].numel() * int(args[1].shape[-1])
    if packet in MATMULS:
        a, b = (args[i] for i in MATMULS[packet])
        return 2 * a.numel() * int(b.shape[-1])
    if "attention" in name:
        query, keys, values = args[:3]
        pairs = query.numel() // query.shape[-1] * keys.shape[-2]
        return 2 * pairs * int(query.shape[-1] + values.shape[-1])
    if packet is _UNDER_DATAPATH:
        return 2 * args[0].numel() * int(args[1].shape[-2])
    if "convolution" in name:
        transposed = len(args) > 6 and args[6] is True
        return 2 * (args[0] if transposed else out).numel() * args[1][0].numel()
    if name in ("dot", "vdot", "mv"):
        return 2 * args[0].numel()
    return 0
