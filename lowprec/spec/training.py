"""What a recipe says of training: the backward matmuls, and scales that follow earlier steps."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from lowprec.spec.base import Count, Spec
from lowprec.spec.datapath import Datapath
from lowprec.spec.quantizer import Quantizer


class InputGradient(Spec):
    """The backward matmul dL/dx = g w, both blocked along N, the rows of w_NK.

    gradient: quantizes g; left out, g stays as it is. weight: quantizes w; left out, it is the
    forward's quantized weight. A format of square tiles gives w and w.T the same values.
    """

    gradient: Quantizer | None = None
    weight: Quantizer | None = None
    datapath: Datapath | None = None


class WeightGradient(Spec):
    """The backward matmul dL/dw = g.T x, both blocked along the tokens: all leading dimensions of
    x, in row-major order; of an expert, its own tokens.

    gradient: quantizes g; left out, g stays as it is. activation: quantizes x; left out, it is the
    forward's quantized activation. requantize: `activation` quantizes the forward's quantized
    activation instead of x itself. rotation: both are multiplied along the tokens by a random
    Hadamard matrix of this size (a power of two) first, its signs those of `seed`, the same at
    every call; zeros fill the last block.
    """

    gradient: Quantizer | None = None
    activation: Quantizer | None = None
    requantize: bool = False
    datapath: Datapath | None = None
    rotation: Count | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0

    @model_validator(mode="after")
    def _possible(self) -> WeightGradient:
        if self.rotation is not None and self.rotation & (self.rotation - 1):
            raise ValueError(f"rotation {self.rotation}: expected a power of two")
        if self.requantize and self.activation is None:
            raise ValueError("requantize needs a quantizer of the activation")
        return self


class Delayed(Spec):
    """Scales from the largest magnitudes that an operand had at earlier steps, for the operands
    whose quantizers are static (Transformer Engine's DelayedScaling).

    An operand's scale is A / (M * 2^-margin), rounded to float32: M as in `Quantizer` (M * R of an
    outer scale), A the largest of the largest magnitudes of its last `history` calls (reduce =
    "max") or that of the last one ("most_recent"). It is 1 at the first call, and stays as it was
    while A is 0, Inf or NaN. A call counts if gradients are enabled. Values beyond the scaled range
    saturate as the quantizer's projection says.
    """

    history: Count = 1024
    reduce: Literal["max", "most_recent"] = "max"
    margin: Annotated[int, Field(ge=0, le=30)] = 0
