"""Delayed scaling: the scales of this step from the magnitudes of earlier ones."""

from __future__ import annotations

import torch
from torch import Tensor

from lowprec.spec import BlockFormat, Delayed, Quantizer


class History:
    """The largest magnitudes that one operand had at earlier calls, and the scale they give.

    amaxes: float32 [history], the last call's first, zeros where there was none. scale: float32, of
    rank 0; 1 at first. See `lowprec.spec.Delayed`.

    As Transformer Engine's, but that here values are divided by the scale, and there multiplied by
    its inverse: where the quotient and the product round differently, so may a value.
    """

    def __init__(self, delayed: Delayed, device: torch.device) -> None:
        self.delayed = delayed
        self.amaxes = torch.zeros(delayed.history, device=device)
        self.scale = torch.ones((), device=device)

    def scale_for(self, x: Tensor, quantizer: Quantizer, counts: bool) -> Tensor:
        """The scale for `x`, of the shape that the rule static takes; what `x` itself is like
        decides about later ones, if it counts."""
        fmt, scale = quantizer.format, self.scale
        assert isinstance(fmt, BlockFormat)
        if counts and x.device.type != "meta":
            self._remember(x.detach(), fmt)
        return scale if fmt.outer is not None else scale.reshape([1] * x.dim())

    def _remember(self, x: Tensor, fmt: BlockFormat) -> None:
        amax = x.abs().amax() if x.numel() else x.new_zeros(())
        self.amaxes = torch.cat([amax.float().reshape(1), self.amaxes[:-1]])
        reduced = self.amaxes.amax() if self.delayed.reduce == "max" else self.amaxes[0]
        usable = torch.isfinite(reduced) & (reduced > 0)
        new = reduced / (_largest(fmt) * 2.0**-self.delayed.margin)
        self.scale = torch.where(usable, new, self.scale)


@torch.compiler.assume_constant_result
def _largest(fmt: BlockFormat) -> float:
    """The largest magnitude at an outermost scale of one."""
    return fmt.elements_max * (1.0 if fmt.outer is None else float(fmt.scale.max_exact))
