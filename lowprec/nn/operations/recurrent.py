"""Recurrent layers and cells, as the matmuls of their gates and elementwise functions.

A cell's two weights are linear sites of their own names (``weight_ih_l0``, ``weight_hh_l0``), its
projection (``weight_hr_l0``) a third; sigmoid and tanh (relu) are elementwise. The gates' sums and
products are not quantized.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lowprec.nn.emulation import HANDLERS, Emulator
from lowprec.nn.operations import units
from lowprec.nn.operations.matmul import linear
from lowprec.nn.operations.vector import run

State = tuple[Tensor, ...]  # h, and for an LSTM c
Weights = Sequence[Tensor | None]  # w_ih, w_hh, b_ih, b_hh, w_hr
Cell = Callable[[Emulator, Tensor, State, Weights], State]


def _product(mode: Emulator, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    site = mode.site("linear", weight)
    if site is None:
        return F.linear(x, weight, bias)
    with mode.emulating(site):
        return linear(site, x, weight, bias)


def _elementwise(mode: Emulator, function: Any, approximate: Any, x: Tensor) -> Tensor:
    y = run(mode, "elementwise", function, approximate, -1, x)
    return function(x) if y is NotImplemented else y


def _sigmoid(mode: Emulator, x: Tensor) -> Tensor:
    return _elementwise(mode, torch.sigmoid, units.sigmoid, x)


def _tanh(mode: Emulator, x: Tensor) -> Tensor:
    return _elementwise(mode, torch.tanh, units.tanh, x)


def _sums(mode: Emulator, x: Tensor, h: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    """The input's and the state's part of all gates."""
    w_ih, w_hh, b_ih, b_hh, *_ = weights
    assert w_ih is not None
    assert w_hh is not None
    return _product(mode, x, w_ih, b_ih), _product(mode, h, w_hh, b_hh)


def lstm_cell(mode: Emulator, x: Tensor, state: State, weights: Weights) -> State:
    h, c = state
    of_input, of_state = _sums(mode, x, h, weights)
    i, f, g, o = (of_input + of_state).chunk(4, -1)
    c = _sigmoid(mode, f) * c + _sigmoid(mode, i) * _tanh(mode, g)
    h = _sigmoid(mode, o) * _tanh(mode, c)
    projection = weights[4] if len(weights) > 4 else None
    return (h if projection is None else _product(mode, h, projection, None)), c


def gru_cell(mode: Emulator, x: Tensor, state: State, weights: Weights) -> State:
    (h,) = state
    of_input, of_state = _sums(mode, x, h, weights)
    (r, z, n), (hr, hz, hn) = of_input.chunk(3, -1), of_state.chunk(3, -1)
    r, z = _sigmoid(mode, r + hr), _sigmoid(mode, z + hz)
    n = _tanh(mode, n + r * hn)
    return (n + z * (h - n),)


def rnn_cell(activation: Any) -> Cell:
    def cell(mode: Emulator, x: Tensor, state: State, weights: Weights) -> State:
        of_input, of_state = _sums(mode, x, state[0], weights)
        approximate = units.tanh if activation is torch.tanh else None
        return (_elementwise(mode, activation, approximate, of_input + of_state),)

    return cell


_CELLS: dict[str, Cell] = {
    "lstm": lstm_cell,
    "gru": gru_cell,
    "rnn_tanh": rnn_cell(torch.tanh),
    "rnn_relu": rnn_cell(torch.relu),
}


def _kept(mode: Emulator, weights: Sequence[Tensor | None]) -> bool:
    sites = [mode.site("linear", w) for w in weights if w is not None and w.dim() > 1]
    return mode.site("elementwise") is None and not any(sites)


def _cell_handler(cell: Cell) -> Callable[..., Any]:
    def handler(
        mode: Emulator,
        input: Tensor,
        hx: Any,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Any:
        if _kept(mode, (w_ih, w_hh)):
            return NotImplemented
        state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        state = cell(mode, input, state, (w_ih, w_hh, b_ih, b_hh))
        return state[0] if isinstance(hx, Tensor) else state

    return handler


def _layers_handler(cell: Cell) -> Callable[..., Any]:
    def handler(mode: Emulator, input: Tensor, *args: Any) -> Any:
        packed = isinstance(args[1], Tensor | list | tuple) and isinstance(args[0], Tensor)
        packed = packed and args[0].dtype == torch.int64 and not isinstance(args[1], bool)
        if packed:
            sizes, hx, flat, *rest = args
        else:
            sizes, (hx, flat, *rest) = None, args
        if _kept(mode, flat):
            return NotImplemented
        return _layers(mode, cell, input, sizes, hx, flat, rest)

    return handler


def _layers(
    mode: Emulator,
    cell: Cell,
    x: Tensor,
    sizes: Tensor | None,
    hx: Any,
    flat: Sequence[Tensor],
    rest: Sequence[Any],
) -> tuple[Tensor, ...]:
    """torch.lstm and its like: the output and the last states, each (layers directions, N, H)."""
    biases, layers, dropout, training, bidirectional, *batch_first = rest
    first = sizes is None and bool(batch_first and batch_first[0])
    steps = _steps(x.transpose(0, 1) if first else x, sizes)
    states = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    directions = 2 if bidirectional else 1
    count = len(flat) // (layers * directions)
    last: list[State] = []
    for layer in range(layers):
        ways = []
        for way in range(directions):
            index = layer * directions + way
            weights = _ordered(flat[index * count : (index + 1) * count], biases)
            start = tuple(state[index] for state in states)
            outputs, end = _direction(mode, cell, steps, start, weights, backwards=way == 1)
            ways.append(outputs)
            last.append(end)
        steps = [torch.cat(step, -1) for step in zip(*ways, strict=True)]
        if dropout and training and layer < layers - 1:
            steps = [F.dropout(step, dropout) for step in steps]
    y = torch.cat(steps) if sizes is not None else torch.stack(steps, 1 if first else 0)
    return (y, *(torch.stack(part) for part in zip(*last, strict=True)))


def _steps(x: Tensor, sizes: Tensor | None) -> list[Tensor]:
    """One (N, features) for each time; of packed sequences, the first `sizes` of the batch."""
    return list(x) if sizes is None else list(x.split(sizes.tolist()))


def _ordered(flat: Sequence[Tensor], biases: bool) -> Weights:
    """A direction's parameters as torch lists them: weights, biases, and then the projection."""
    w_ih, w_hh, *others = flat
    b_ih, b_hh = others[:2] if biases else (None, None)
    projection = others[2:] if biases else others
    return (w_ih, w_hh, b_ih, b_hh, *projection)


def _direction(
    mode: Emulator,
    cell: Cell,
    steps: list[Tensor],
    start: State,
    weights: Weights,
    backwards: bool,
) -> tuple[list[Tensor], State]:
    """Outputs in the order of time, and the last state of each sequence.

    The state of a sequence that has ended, or (backwards) not begun, waits.
    """
    state, outputs = start, []
    for x in reversed(steps) if backwards else steps:
        n = len(x)
        moved = cell(mode, x, tuple(part[:n] for part in state), weights)
        waiting = (part[n:] for part in state)
        state = tuple(torch.cat([new, old]) for new, old in zip(moved, waiting, strict=True))
        outputs.append(moved[0])
    return (outputs[::-1] if backwards else outputs), state


for _name, _cell in _CELLS.items():
    HANDLERS[getattr(torch, _name)] = _layers_handler(_cell)
    HANDLERS[getattr(torch, f"{_name}_cell")] = _cell_handler(_cell)
