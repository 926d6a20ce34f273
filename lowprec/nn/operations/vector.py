"""Vector operations: norms, softmax, elementwise functions, gates and residual adds.

norm         layer_norm, rms_norm, group_norm, instance_norm, batch_norm; and as a whole any module
             without children whose class is named ...Norm...
softmax      softmax, log_softmax
elementwise  relu, relu6, leaky_relu, elu, selu, celu, gelu, silu, mish, softplus, softsign,
             logsigmoid, hardswish, hardsigmoid, hardtanh, sigmoid, tanh, exp, glu; the product of
             two activations of one shape (a gate); and as a whole any module without children whose
             class is named ...Activation
add          the sum of two activations of one shape; a bias is none

Inputs are quantized before and outputs after, along the axis that is normalised (the channels of
batch, instance and group norms), else the last. By which operations a rule approximates is in
`lowprec.nn.operations.units`: those of norm, softmax, exp, sigmoid, silu, tanh, and gelu by tanh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lowprec.nn.emulation import HANDLERS, Emulator, handles
from lowprec.nn.operations import units
from lowprec.spec import Approximation

Function = Callable[..., Any]
_T = torch.Tensor
_NORMS: tuple[tuple[tuple[Any, ...], int, Function], ...] = (
    ((F.layer_norm, torch.layer_norm), -1, units.layer_norm),
    ((F.rms_norm, torch.rms_norm), -1, units.rms_norm),
    ((F.group_norm, torch.group_norm), 1, units.group_norm),
    ((F.batch_norm,), 1, units.batch_norm),
)
_APPROXIMATED: tuple[tuple[tuple[Any, ...], Function], ...] = (
    ((torch.exp, _T.exp, _T.exp_), units.exp),
    ((torch.sigmoid, _T.sigmoid, _T.sigmoid_, F.sigmoid, torch.special.expit), units.sigmoid),
    ((torch.tanh, _T.tanh, _T.tanh_, F.tanh), units.tanh),
    ((F.gelu,), units.gelu),
)
_PLAIN = (
    F.relu, torch.relu, _T.relu, torch.relu_, _T.relu_, F.relu6, F.leaky_relu, F.elu, F.selu,
    F.celu, F.mish, F.softplus, F.softsign, F.logsigmoid, F.hardswish, F.hardsigmoid, F.hardtanh,
    F.glu,
)  # fmt: skip
_IN_PLACE = (_T.exp_, _T.sigmoid_, _T.tanh_)
_GATES = (torch.mul, _T.mul, _T.__mul__, _T.mul_, _T.__imul__, torch.multiply)
_ADDS = (torch.add, _T.add, _T.__add__, _T.add_, _T.__iadd__)


def _register(
    operation: str,
    functions: Iterable[Any],
    axis: int = -1,
    approximate: Function | None = None,
) -> None:
    """`approximate` takes the rule's units and then the function's own arguments."""
    for function in functions:
        HANDLERS[function] = _handler(operation, function, axis, approximate)


def _handler(operation: str, function: Any, axis: int, approximate: Function | None) -> Function:
    def handler(mode: Emulator, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        return run(mode, operation, function, approximate, axis, input, *args, **kwargs)

    return handler


def run(
    mode: Emulator,
    operation: str,
    function: Any,
    approximate: Function | None,
    axis: int,
    x: Tensor,
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """A call of a function of one activation, as the running module's site says."""
    if mode.within is not None and mode.within.module is mode.module:
        # Parts of a module that is one operation are approximated, not quantized.
        how = mode.within.site.rule.approximation
        if approximate is None or how is None:
            return NotImplemented
        mode.within.approximated = True
        return _approximated(approximate, how, function, x, x, args, kwargs)
    site = mode.site(operation)
    if site is None:
        return NotImplemented
    how = site.rule.approximation
    with mode.emulating(site):
        xq = site.operand("input", x, axis)
        if approximate is not None and how is not None:
            y = _approximated(approximate, how, function, x, xq, args, kwargs)
        else:
            y = function(xq, *args, **kwargs)
        out = site.operand("output", y, axis)
        return x.copy_(out) if (y is x or y is xq) and out is not x else out


def _approximated(
    approximate: Function,
    how: Approximation,
    function: Any,
    x: Tensor,
    xq: Tensor,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Tensor:
    """`approximate` of `xq`; in `x` itself where the function works in place."""
    in_place = kwargs.pop("inplace", False) or function in _IN_PLACE
    y: Tensor = approximate(how, xq, *args, **kwargs)
    return x.copy_(y) if in_place else y


def _of_two(operation: str, functions: Iterable[Any]) -> None:
    """Register functions of two activations."""
    for function in functions:
        HANDLERS[function] = _handler_of_two(operation, function)


def _handler_of_two(operation: str, function: Any) -> Callable[..., Any]:
    def handler(mode: Emulator, input: Any, other: Any, **kwargs: Any) -> Any:
        if kwargs.get("out") is not None or not _activations(mode, input, other):
            return NotImplemented
        site = mode.site(operation)
        if site is None:
            return NotImplemented
        with mode.emulating(site):
            a, b = site.operand("input", input), site.operand("input", other)
            y = function(a, b, **kwargs)
            out = site.operand("output", y)
            return input.copy_(out) if y is a and out is not input else out

    return handler


def _activations(mode: Emulator, a: Any, b: Any) -> bool:
    """Whether both are floats of one shape and no parameters."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or a.shape != b.shape or not a.dim():
        return False
    if not (a.is_floating_point() and b.is_floating_point()):
        return False
    return mode.parameter(a) is None and mode.parameter(b) is None


@handles(F.silu)
def _silu(mode: Emulator, input: Tensor, inplace: bool = False) -> Any:
    return run(mode, "elementwise", F.silu, units.silu, -1, input, inplace=inplace)


@handles(F.softmax)
def _softmax(
    mode: Emulator,
    input: Tensor,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: Any = None,
) -> Any:
    return _along(mode, torch.softmax, units.softmax, input, dim, dtype)


@handles(torch.softmax, _T.softmax, torch.special.softmax)
def _torch_softmax(mode: Emulator, input: Tensor, dim: int, dtype: Any = None) -> Any:
    return _along(mode, torch.softmax, units.softmax, input, dim, dtype)


@handles(F.log_softmax)
def _log_softmax(
    mode: Emulator,
    input: Tensor,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: Any = None,
) -> Any:
    return _along(mode, torch.log_softmax, units.log_softmax, input, dim, dtype)


@handles(torch.log_softmax, _T.log_softmax, torch.special.log_softmax)
def _torch_log_softmax(mode: Emulator, input: Tensor, dim: int, dtype: Any = None) -> Any:
    return _along(mode, torch.log_softmax, units.log_softmax, input, dim, dtype)


def _along(
    mode: Emulator, function: Any, approximate: Function, x: Tensor, dim: int | None, dtype: Any
) -> Any:
    if dim is None:  # as torch guesses it
        dim = 0 if x.dim() in (0, 1, 3) else 1
    return run(mode, "softmax", function, approximate, dim, x, dim, dtype=dtype)


@handles(F.instance_norm)
def _instance_norm(
    mode: Emulator,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    rest = (running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
    return run(mode, "norm", F.instance_norm, units.instance_norm, 1, input, *rest)


@handles(torch.pow, _T.pow, _T.__pow__)
def _power(mode: Emulator, input: Any, exponent: Any) -> Any:
    """x^-0.5, as some norms spell 1/sqrt(x)."""
    if isinstance(exponent, Tensor) or exponent != -0.5:
        return NotImplemented
    return run(mode, "", torch.rsqrt, units.rsqrt, -1, input)


for _functions, _axis, _approximate in _NORMS:
    _register("norm", _functions, _axis, _approximate)
for _functions, _approximate in _APPROXIMATED:
    _register("elementwise", _functions, -1, _approximate)
_register("elementwise", _PLAIN)
_register("", (torch.rsqrt, _T.rsqrt), -1, units.rsqrt)  # within a norm alone
_of_two("elementwise", _GATES)
_of_two("add", _ADDS)
