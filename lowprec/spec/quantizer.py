"""Quantizer: a format, the rule that chooses its scales, and the projection onto its elements."""

from __future__ import annotations

import math
from typing import Literal, get_args

from pydantic import Field, model_validator

from lowprec.spec.base import Spec
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import CodebookFormat, FloatFormat, IntFormat
from lowprec.spec.projection import Projection

ScaleRule = Literal[
    "cast", "floor", "floor2x", "ceil", "rceil", "even", "amax", "signed", "minmax", "mse",
    "four_over_six", "static", "fixed",
]  # fmt: skip
RULES: tuple[str, ...] = get_args(ScaleRule)
POWER_OF_TWO_RULES = ("floor", "floor2x", "ceil", "rceil", "even")
# Rules that try several scales for a block, and rules whose outermost scale is given.
SEARCHING_RULES = ("mse", "four_over_six")
GIVEN_RULES = ("static", "fixed")


class Quantizer(Spec):
    """How a tensor gets onto a format, spelled ``format/rule/rounding/saturation``.

    All arithmetic is in steps that are each rounded to float32, or to float64 for a float64
    tensor: RN. A is the largest magnitude of a block and A_o that of its outer block; M is the
    largest value at a scale of one (the element's times the largest inner scales') and
    emax = floor(log2 M); P projects onto the format of a scale (nearest-even, SatFinite).
    The scale s of a block is
      cast     none: the format is scalar
      floor    2^(floor(log2 A) - emax)                      OCP MX v1.0 section 6.3
      floor2x  2^(floor(log2 A) - emax + 1)                  AWS Neuron, nki.isa.quantize_mx
      ceil     2^(ceil(log2 A) - emax)                       torchao ScaleCalculationMode.CEIL
      even     floor after rounding A to the element's precision (of an integer: its magnitude
               bits), halves up                              AMD Quark "even"
      rceil    2^ceil(log2 RN(A / M))                        NVIDIA, PTX cvt.rp to ue8m0
      amax     P(RN(A / M))                                  absolute maximum
      signed   P(RN(v / m)) with v the block's first value of magnitude A, its sign included, and
               m the element's lowest value, so that s may be negative; M is -m   GGUF Q4_0
      minmax   for formats with a zero point or offset: P(RN(RN(hi - lo) / D)) of the block's
               largest and smallest value and D = largest - lowest element; see below
      mse      of P(RN(f * r)), r = RN(A / M) and f = 2, then (1 + j/16) * 2^i for i = 0, -1, -2 and
               j = 15 ... 0 (of a power-of-two scale format j = 0 alone), the one with the least
               error E, of equals the first: every value of a scale format of up to 4 significant
               bits from a quarter to twice r
      four_over_six  P(RN(A / 6)), or P(RN(A / 4)) if its E is less   arXiv 2512.02010; of E2M1
      static   given for every block (`scale=`) and projected by P          calibrated
      fixed    the same number for every block: ``fixed=0.5``
    With an outer scale, t = P(RN(A_o / RN(M * R))) with R the scale format's largest value (under
    four_over_six the largest power of two R with 1.5 R within it: 256 for E4M3); then RN(A / M)
    above is RN(RN(A / M) / t), and so are the others. static and fixed give t, and s follows amax.
    S = RN(s * t), or s. Inner scales, coarse to fine: u = 2^(floor(log2 RN(A_i / S)) - e_i) with
    A_i the largest magnitude of that part, e_i the emax of what lies below and S all that lies
    above, clamped to the range of u's format; then S becomes RN(S * u).
    An element is the projection of RN(x / S), its value RN(element * S).

    E is the sum over the block of RN64((x - y)^2), the difference too rounded to float64, in this
    order: zeros fill the block to whole blocks and then to 2^n numbers in row-major order, and the
    second half is added to the first until one number is left.

    Zero point: lo and hi are the least and greatest value of the block and 0;
    z = P(RN(lowest - RN(lo / S))); the element is the projection of RN(RN(x / S) + z), its value
    RN((element - z) * S).
    Offset: lo = min of the block, with 0 if the offset's format has no negative values; hi = max.
    o = P(0 - lo), with an outer scale P(RN((0 - lo) / t_o)); O = o or RN(o * t_o). The element is
    the projection of RN(RN(x + O) / S), its value RN(RN(element * S) - O).
    The outer scales are t = P(RN(max RN(hi - lo) / RN(D * R))) over the outer block's blocks and
    t_o = P(RN(max(-lo, 0) / R_o)), R_o the offset format's largest value.
    Outlier: if RN(A / S) is at least the smallest positive value of the outlier's format, the
    block's first element of magnitude A is projected onto that format instead.

    Answers at the ends, the same in oracle and kernels: a power-of-two scale below the scale
    format's range becomes its smallest positive value, above it the largest. A = 0 gives that
    smallest value under the power-of-two rules (of an inner scale too) and s = 0 under amax (where
    the format has no zero: its smallest value), signed and mse; t = 0 gives s = 0, and t_o = 0
    gives o = 0. S = 0 makes RN(x / S) zero with the sign of x * S.
    NaN or Inf in a block makes the scale NaN and every value of the block NaN (with an outer
    scale: of the outer block); codes of elements, inner scales and offsets are then NaN's, or 0 in
    formats that have none. A scale that is given knows nothing of the data, so there NaN and Inf
    are each element's own. A value beyond float32 is Inf: 3.4e38 in mxfp4/ceil is 4 * 2^126. Scale
    formats must be ones whose values float32 holds.
    """

    format: FloatFormat | IntFormat | CodebookFormat | BlockFormat
    rule: ScaleRule
    projection: Projection = Field(default_factory=Projection)
    fixed: float | None = None

    @model_validator(mode="after")
    def _possible(self) -> Quantizer:
        if (self.fixed is not None) != (self.rule == "fixed"):
            raise ValueError("the rule 'fixed' needs a number, as in 'fixed=0.5', other rules none")
        if self.fixed is not None and not 0 < self.fixed < math.inf:
            raise ValueError(f"fixed={self.fixed}: expected a finite positive scale")
        if not isinstance(self.format, BlockFormat):
            if self.rule != "cast":
                raise ValueError(
                    f"format {self.format.name!r} needs the rule 'cast', or a granularity"
                )
            return self
        if self.rule == "cast":
            raise ValueError(
                f"format {self.format.name!r} needs the rule one of {', '.join(RULES[1:])}"
            )
        wrong = _refusal(self.format, self.rule)
        if wrong:
            raise ValueError(f"rule {self.rule!r} {wrong}")
        return self

    @property
    def is_per_tensor(self) -> bool:
        """Whether its outermost scale is the whole tensor's."""
        fmt = self.format
        if not isinstance(fmt, BlockFormat):
            return False
        return fmt.block == "tensor" or (fmt.outer is not None and fmt.outer.block == "tensor")

    def spell(self) -> str:
        """The full name, as records hold it: ``mxfp4/floor/nearest-even/SatFinite``."""
        number = "" if self.fixed is None else f"={self.fixed!r}"
        return f"{self.format.name}/{self.rule}{number}/{self.projection.spell()}"


def _refusal(fmt: BlockFormat, rule: str) -> str | None:
    """Why the rule does not fit the format."""
    scale, has_range = fmt.scale, fmt.zero_point is not None or fmt.offset is not None
    if has_range != (rule == "minmax"):
        return (
            f"knows no zero point or offset; {fmt.name!r} needs 'minmax'"
            if has_range
            else f"needs a zero point or an offset, and {fmt.name!r} has none"
        )
    if rule in POWER_OF_TWO_RULES:
        if rule == "even" and isinstance(fmt.element, CodebookFormat):
            return (
                f"rounds to the element's precision, and the codebook {fmt.element.name!r} has none"
            )
        if not (isinstance(scale, FloatFormat) and scale.precision == 1):
            return (
                f"gives powers of two; the scale {scale.name!r} of {fmt.name!r} needs the rule "
                f"'amax'"
            )
        if fmt.outer is not None:
            return f"knows no outer scale; {fmt.name!r} needs 'amax'"
    if rule in SEARCHING_RULES and (fmt.inner or fmt.outlier):
        return f"searches one scale per block; {fmt.name!r} needs another rule"
    if rule == "four_over_six" and (fmt.element.max != 6.0 or scale.max_exact < 2):
        return f"is for elements up to 6; those of {fmt.name!r} reach {float(fmt.element.max)}"
    if rule in GIVEN_RULES and fmt.outer is None and (fmt.inner or fmt.outlier):
        return f"gives the scale of every block, which {fmt.name!r} refines by its largest value"
    if rule == "signed" and (fmt.inner or fmt.outlier):
        return f"gives negative scales; {fmt.name!r} needs another rule"
    if rule == "signed" and not (fmt.element.min_exact < 0 and scale.min_exact < 0):
        return "needs an element and a scale format with negative values"
    return None
