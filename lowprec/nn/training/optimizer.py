"""Optimizer states and weights kept in low precision between steps."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lowprec.errors import LowprecError, unknown
from lowprec.kernels import QTensor, fake_quantize, quantize
from lowprec.spec import Quantizer, load_quantizer

MASTER = "master"
STEPS = "lowprec_steps"  # in the first parameter group, where state_dict saves it


def quantize_optimizer(
    optimizer: Optimizer,
    states: Mapping[str, Quantizer | str] | None = None,
    weight: Quantizer | str | None = None,
    master: Quantizer | str | None = "float32/cast",
    seed: int = 0,
) -> Optimizer:
    """Keep an optimizer's states and its weights in stated formats from one step to the next.

    Returns the same optimizer; schedulers and torch.amp.GradScaler work with it as before.
    states: the quantizer of each named state, such as Adam's ``exp_avg`` and ``exp_avg_sq``. It
    lies in ``optimizer.state`` as a `QTensor`, real codes; a step decodes it to float32, updates
    it, and quantizes it again. weight: the format of the parameters between steps, their dtype
    unchanged. master: that of the copies which the steps update, held in the state "master";
    None: there are none, the parameters themselves are updated, and what `weight` rounds away is
    lost unless it rounds stochastically. Without `weight` there is nothing to copy. Blocks run
    along the last axis. seed: of stochastic rounding; each step and tensor has its own bits.

    The update itself is computed in float32. NaN and Inf in a state are as its quantizer says.
    LowprecError: at the first step, a name that is none of the optimizer's states; a value without
    a code point (NaN, in a format that has none); a step with a closure.
    """
    chosen = {name: _loaded(quantizer) for name, quantizer in (states or {}).items()}
    kept = None if weight is None else _loaded(weight)
    copies = None if kept is None or master is None else _loaded(master)
    keeper = _Keeper(chosen, kept, copies, seed)
    keeper.begin(optimizer)
    optimizer.register_step_pre_hook(keeper.before)
    optimizer.register_step_post_hook(keeper.after)
    return optimizer


def optimizer_nbytes(optimizer: Optimizer) -> int:
    """Bytes that the states take between steps, masters included; those of codes densely packed."""
    values = [value for state in optimizer.state.values() for value in state.values()]
    return sum(v.nbytes for v in values if isinstance(v, Tensor | QTensor))


class _Keeper:
    """What happens before and after each step of one optimizer."""

    def __init__(
        self,
        states: dict[str, Quantizer],
        weight: Quantizer | None,
        master: Quantizer | None,
        seed: int,
    ) -> None:
        self.states, self.weight, self.master, self.seed = states, weight, master, seed
        self._own: dict[Tensor, Tensor] = {}

    def begin(self, optimizer: Optimizer) -> None:
        """The parameters take their format; where there are masters, those keep the values."""
        optimizer.param_groups[0].setdefault(STEPS, 0)
        for i, p in enumerate(parameters(optimizer)):
            self._store_weight(optimizer, i, p, p.detach().float())

    def before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Everything as float32 numbers."""
        if any(callable(value) for value in (*args[1:], *kwargs.values())):
            raise LowprecError(
                f"{type(optimizer).__name__}: a step with a closure evaluates the model between "
                "the formats; call it without one"
            )
        for p in parameters(optimizer):
            state = optimizer.state[p]
            for name, value in list(state.items()):
                if isinstance(value, QTensor):
                    state[name] = value.dequantize()
            master = state.pop(MASTER, None)
            if self.weight is not None:
                self._own[p] = p.data
                _become(p, p.data.float() if master is None else master)

    def after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        """Everything in its format."""
        optimizer.param_groups[0][STEPS] += 1
        for i, p in enumerate(parameters(optimizer)):
            state = optimizer.state[p]
            for name in self.states if state else ():
                state[name] = self._coded(optimizer, i, name, _state(optimizer, state, name))
            if self.weight is not None:
                updated = p.data
                _become(p, self._own.pop(p))
                self._store_weight(optimizer, i, p, updated)

    def _store_weight(self, optimizer: Optimizer, i: int, p: Tensor, value: Tensor) -> None:
        """`value`, float32, in the format of the weights, and what it was in the master's."""
        if self.weight is None:
            return
        seed = self._seed_for(optimizer, i, "weight", self.weight)
        with torch.no_grad():  # and not through .data, so that its version counts up
            p.copy_(fake_quantize(value, self.weight, random=seed))
        if self.master is not None:
            optimizer.state[p][MASTER] = self._coded(optimizer, i, MASTER, value)

    def _coded(self, optimizer: Optimizer, i: int, name: str, value: Tensor) -> QTensor:
        quantizer = self.states.get(name) or self.master
        assert quantizer is not None
        seed = self._seed_for(optimizer, i, name, quantizer)
        try:
            return quantize(value, quantizer, random=seed)
        except LowprecError as error:
            raise LowprecError(
                f"{type(optimizer).__name__}: {name} of parameter {i}: {error}"
            ) from None

    def _seed_for(self, optimizer: Optimizer, i: int, name: str, q: Quantizer) -> int | None:
        if q.projection.bits is None:
            return None
        return zlib.crc32(f"{self.seed} {i} {name} {optimizer.param_groups[0][STEPS]}".encode())


def _state(optimizer: Optimizer, state: dict[str, Any], name: str) -> Tensor:
    value = state.get(name)
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() == 0:
        known = [n for n, v in state.items() if isinstance(v, Tensor | QTensor) and v.shape]
        raise unknown("state", name, known, type(optimizer).__name__)
    return value


def _become(p: Tensor, value: Tensor) -> None:
    """`value` in the place of the parameter's own tensor, perhaps of another dtype."""
    gradient, p.grad = p.grad, None
    p.data = value.view(p.shape)
    p.grad = None if gradient is None else gradient.to(value.dtype)


def parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    """All parameters, in the order of the groups."""
    for group in optimizer.param_groups:
        yield from group["params"]


def _loaded(quantizer: Quantizer | str) -> Quantizer:
    return load_quantizer(quantizer) if isinstance(quantizer, str) else quantizer
