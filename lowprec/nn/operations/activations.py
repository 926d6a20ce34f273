"""Products of two activations, by the names that a rule has for them."""

from __future__ import annotations

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import QTensor, matmul
from lowprec.nn.site import Site
from lowprec.spec import Quantizer

Names = tuple[str, str]


def is_under(site: Site) -> bool:
    """Whether the rule's datapath multiplies; a calibration pass runs in float."""
    return site.rule.datapath is not None and site.statistics is None


def prepared(site: Site, name: str, x: Tensor, axis: int = -1) -> Tensor:
    """An operand as `multiply` takes it: quantized along `axis`; as it is where a datapath
    multiplies, which takes codes."""
    return x if is_under(site) else site.operand(name, x, axis)


def multiply(site: Site, names: Names, x: Tensor, w: Tensor) -> Tensor:
    """x (..., M, K) times w (..., N, K) transposed, in the dtype of x. Under the rule's datapath
    both are quantized here, along K, and its gradient is that of the float matmul."""
    if not is_under(site):
        return x @ w.mT
    first, second = (getattr(site.rule, name) for name in names)
    x, w = x.contiguous(), w.contiguous()
    try:
        if not (_needs_site(first) or _needs_site(second)):
            return matmul(x, w, a=first, w=second, datapath=site.rule.datapath)
        if torch.is_grad_enabled() and (x.requires_grad or w.requires_grad):
            raise LowprecError(
                "a datapath passes no gradient to operands under stochastic rounding or static "
                "scales"
            )
        codes = _codes(site, names[0], first, x), _codes(site, names[1], second, w)
        return matmul(*codes, datapath=site.rule.datapath).to(x.dtype)
    except LowprecError as error:
        raise LowprecError(f"{site.path or 'the model'}: {names[0]}, {names[1]}: {error}") from None


def _needs_site(quantizer: Quantizer | None) -> bool:
    return quantizer is not None and (
        quantizer.rule == "static" or quantizer.projection.bits is not None
    )


def _codes(site: Site, name: str, quantizer: Quantizer | None, x: Tensor) -> Tensor | QTensor:
    return x if quantizer is None else site.codes(name, quantizer, x)
