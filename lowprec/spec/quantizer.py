"""Quantizer: a format, the rule that chooses its scales, and the projection onto its elements."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, model_validator

from lowprec.spec.base import Spec
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import CodebookFormat, FloatFormat, IntFormat
from lowprec.spec.projection import Projection

ScaleRule = Literal["cast", "floor", "ceil", "rceil", "even", "amax"]
RULES: tuple[str, ...] = get_args(ScaleRule)
POWER_OF_TWO_RULES = ("floor", "ceil", "rceil", "even")


class Quantizer(Spec):
    """How a tensor gets onto a format, spelled ``format/rule/rounding/saturation``.

    With A the largest magnitude of a block (A_T of the tensor), the element format's largest
    value M, its emax = floor(log2 M), and RN the rounding to float32, the scale s is
      cast   no scale: the format is scalar
      floor  2^(floor(log2 A) - emax)                        OCP MX v1.0 section 6.3
      ceil   2^(ceil(log2 A) - emax)                         torchao ScaleCalculationMode.CEIL
      even   floor after rounding A to the element's precision (of an integer: its magnitude
             bits), halves up: Quark "even"
      rceil  2^ceil(log2 RN(A / M))                          NVIDIA, PTX cvt.rp to ue8m0
      amax   RN(A / M) projected onto the scale format (nearest-even, SatFinite)
    With a tensor scale, t = RN(A_T / RN(M * scale.max)) first, and amax projects
    RN(RN(A / M) / t); the block's whole scale is S = RN(s * t), else S = s.
    An element is the projection of RN(x / S), its value RN(element * S).

    Answers at the ends, the same in oracle and kernels: a power-of-two scale below the scale
    format's range becomes its smallest positive value, above it the largest. A = 0 gives that
    smallest value under the power-of-two rules and s = 0 under amax (where the format has no
    zero: its smallest value); t = 0 gives s = 0. S = 0 makes every element zero with its sign.
    NaN or Inf in a block makes the scale NaN and every value of the block NaN (with a tensor
    scale: of the tensor); element codes are then NaN's, or 0. A value beyond float32 is Inf: 3.4e38
    in mxfp4/ceil is 4 * 2^126. Scale formats must be ones whose values float32 holds.
    """

    format: FloatFormat | IntFormat | CodebookFormat | BlockFormat
    rule: ScaleRule
    projection: Projection = Field(default_factory=Projection)

    @model_validator(mode="after")
    def _possible(self) -> Quantizer:
        block = isinstance(self.format, BlockFormat)
        if block == (self.rule == "cast"):
            need = f"one of {', '.join(RULES[1:])}" if block else "'cast', or a granularity"
            raise ValueError(f"format {self.format.name!r} needs the rule {need}")
        if isinstance(self.format, BlockFormat) and self.rule in POWER_OF_TWO_RULES:
            scale = self.format.scale
            if self.rule == "even" and isinstance(self.format.element, CodebookFormat):
                raise ValueError(
                    f"rule 'even' rounds to the element's precision, and the codebook "
                    f"{self.format.element.name!r} has none"
                )
            if not (isinstance(scale, FloatFormat) and scale.precision == 1):
                raise ValueError(
                    f"rule {self.rule!r} gives powers of two; the scale {scale.name!r} of "
                    f"{self.format.name!r} needs the rule 'amax'"
                )
            if self.format.tensor_scale is not None:
                raise ValueError(
                    f"rule {self.rule!r} knows no tensor scale; {self.format.name!r} needs 'amax'"
                )
        return self

    def spell(self) -> str:
        """The full name, as records hold it: ``mxfp4/floor/nearest-even/SatFinite``."""
        return f"{self.format.name}/{self.rule}/{self.projection.spell()}"
