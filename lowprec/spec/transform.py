"""What a recipe does to operands before they are quantized."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from lowprec.spec.base import Count, Spec
from lowprec.spec.quantizer import Quantizer


class Transform(Spec):
    """What is done to weight and activation before they are quantized; exact but for rounding.

    Of linear alone, in this order:
    smooth: SmoothQuant's alpha; channel j of K is divided by amax(x_j)^alpha / amax(w_j)^(1-alpha)
    in the activation and multiplied by it in the weight.
    outliers: that many channels along K, of the largest calibrated amax (of the smoothed
    activation), are multiplied apart, quantized by `outlier` (by nothing if left out), and are
    zeros in what follows.
    rotation: both times a random Hadamard matrix of this size, a power of two, per block along K,
    which it must divide: x D H and w D H with D the signs that `seed` draws, the same in every
    block, and H = H.T of entries +-1 / sqrt(size).
    gptq: the weight is rounded column by column against the calibrated Hessian x.T x, with
    `damping` of its mean diagonal added to the diagonal.
    """

    smooth: Annotated[float, Field(ge=0, le=1)] | None = None
    outliers: Count | None = None
    outlier: Quantizer | None = None
    rotation: Annotated[int, Field(ge=2, le=1 << 20)] | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    gptq: bool = False
    damping: Annotated[float, Field(gt=0, le=1)] = 0.01

    @model_validator(mode="after")
    def _possible(self) -> Transform:
        if not (self.calibrated or self.rotation):
            raise ValueError("transform needs smooth, outliers, rotation or gptq")
        if self.rotation is not None and self.rotation & (self.rotation - 1):
            raise ValueError(f"rotation={self.rotation}: expected a power of two")
        if self.outlier is not None and self.outliers is None:
            raise ValueError("outlier quantizes the channels that outliers counts; give it too")
        if self.outlier is not None and self.outlier.rule == "static":
            raise ValueError("outlier has no calibrated scales; expected another rule")
        return self

    @property
    def calibrated(self) -> bool:
        """Whether it needs statistics of the activations."""
        return self.smooth is not None or self.outliers is not None or self.gptq
