"""Projection: how a real number gets onto the values of a format (IEEE 754, P3109)."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from lowprec.spec.base import Spec

Rounding = Literal[
    "nearest-even", "nearest-away", "toward-zero", "up", "down", "to-odd", "stochastic"
]
Saturation = Literal["SatFinite", "SatPropagate", "OvfInf"]
ROUNDINGS: tuple[str, ...] = get_args(Rounding)
SATURATIONS: tuple[str, ...] = get_args(Saturation)


class Projection(Spec):
    """Rounding to the format's precision with unbounded exponent, then saturation.

    Rounding (IEEE 754-2019 section 4.3; P3109 for to-odd and stochastic):
      nearest-even   nearest value, ties to the even code (IEEE: even trailing significand)
      nearest-away   nearest value, ties away from zero
      toward-zero, up (toward +Inf), down (toward -Inf)
      to-odd         exact values stay; others go to the neighbour whose code is odd
      stochastic     away from zero if floor(fraction * 2^n) + r >= 2^n for n = `bits` random
                     bits r, where fraction is the discarded part in units of the last place
                     (P3109's StochasticA)

    Saturation, for a rounded value beyond the largest finite one, and for Inf and NaN inputs:
      SatFinite      everything beyond, Inf included, becomes the nearest finite value
      SatPropagate   finite values saturate; Inf stays Inf where the format has it, else saturates
      OvfInf         Inf where rounding goes away from zero, the largest finite value where it does
                     not: toward-zero, up for negatives, down for positives, and to-odd if the code
                     of the largest finite value is odd. Inf stays Inf. In a format without Inf the
                     answer is NaN instead of Inf (OCP OFP8's conversion without saturation)
    These are the modes of the IEEE P3109 interim report 4.0 (2026), section 4.7.5, where OvfInf is
    now called SatNone; it differs only for formats without Inf, which P3109 always saturates.
    NaN stays NaN. In a format that has no NaN, an answer of NaN that overflow or Inf asked for is
    the nearest finite value instead, and a NaN input stays NaN in `cast` (it is never turned into
    a number) and is an error in `encode`.

    "Even" and "odd" are of the code point (as P3109 has it for precision 1, where no trailing
    bit could decide); in a codebook, of the rank counted outward from zero, which is rank 0
    whether or not it is a value; of two ranks of the same parity the larger value is taken.
    A codebook does not say how it goes on: beyond its ends the last gap is repeated once, and what
    rounds to that next value overflows. The fraction of stochastic rounding is of the gap. With
    values of both signs but no zero, 0 is a number like others between its two neighbours.
    Zero keeps its sign where the format has -0, else becomes +0.
    No subnormals: between 0 and the smallest positive value there is nothing, so these two are
    the neighbours. No zero: a positive value below the smallest becomes the smallest; 0 does so
    under SatFinite and SatPropagate and is NaN under OvfInf (in a signed format both by sign).
    Unsigned: a value that rounds to a negative one, or -Inf, becomes the smallest value under
    SatFinite and SatPropagate, NaN under OvfInf.
    """

    rounding: Rounding = "nearest-even"
    saturation: Saturation = "SatFinite"
    bits: Annotated[int, Field(ge=1, le=32)] | None = None

    @model_validator(mode="after")
    def _bits_belong_to_stochastic(self) -> Projection:
        if (self.rounding == "stochastic") != (self.bits is not None):
            raise ValueError("rounding 'stochastic' needs bits = 1 to 32, other roundings none")
        return self

    def spell(self) -> str:
        """``nearest-even/SatFinite``; the random bits as ``stochastic:8/SatFinite``."""
        bits = "" if self.bits is None else f":{self.bits}"
        return f"{self.rounding}{bits}/{self.saturation}"
