"""How a machine's vector unit estimates 2^x, 1/x and 1/sqrt(x)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from lowprec.errors import LowprecError, unknown
from lowprec.spec.base import Spec
from lowprec.spec.load import build

FUNCTIONS = ("exp2", "reciprocal", "rsqrt")


class Estimate(Spec):
    """One unit, spelled ``table:7``, ``poly:3``, ``table:6/poly:2`` or ``bits:12``, and for 1/x and
    1/sqrt(x) with ``/newton:1``. Takes and gives float32; all below is rounded to nearest even.

    Reduction. 2^x = 2^n 2^t with n = floor(x) and t = RN(x - n) in [0, 1]; x = ±2^e (1 + t) for
    1/x; x = 2^(2q) 2^r (1 + t) with r = 0 or 1 for 1/sqrt(x). Subnormals are normalised.
    table, poly: t is cut into 2^table equal segments (for each r), in each of which the function is
    a polynomial of degree `poly` in the distance u from its left end. The constant term is the
    function there; the others make the largest relative error least (Remez). Coefficients are
    float32, and Horner's steps fused multiply-adds. So a table alone holds the function at its
    left ends, powers of two are exact. ``poly:3`` for exp2 is the scheme of FlashAttention-4 on
    Blackwell (Zadouri et al., 2026; its coefficients differ from these in the fourth digit),
    ``table:6/poly:2`` that of NVIDIA's multifunction unit (Oberman and Siu, ARITH 2005), whose
    coefficients are not published.
    bits: instead of these, the float64 value of the function of t rounded to that many significant
    bits: the best that a unit of that accuracy can do. (V_EXP_F32, V_RCP_F32 and V_RSQ_F32 of AMD
    are within 1 ulp, LLVM's AMDGPUUsage: ``bits:24`` is within half an ulp.)
    newton: steps y + y (1 - m y), or y + y/2 (1 - RN(m y) y), with a fused multiply-add for each
    sum, on the reduced number m and its estimate y.
    The result is scaled by its power of two, exactly but where it is subnormal: rounded there.

    2^NaN = NaN, 2^-Inf = 0, 2^Inf = Inf, overflow gives Inf. 1/±0 = ±Inf, 1/±Inf = ±0.
    1/sqrt(±0) = ±Inf, 1/sqrt(Inf) = 0, of negative numbers NaN.
    """

    bits: Annotated[int, Field(ge=2, le=24)] | None = None
    table: Annotated[int, Field(ge=0, le=14)] = 0
    poly: Annotated[int, Field(ge=0, le=6)] = 0
    newton: Annotated[int, Field(ge=0, le=3)] = 0

    @model_validator(mode="after")
    def _one_method(self) -> Estimate:
        if (self.bits is None) != bool(self.table or self.poly):
            raise ValueError("an estimate is bits, or else table, poly or both")
        if self.poly and self.table > 8:
            raise ValueError(f"table:{self.table}/poly:{self.poly}: expected table up to 8")
        return self

    def spell(self) -> str:
        """``table:6/poly:2``; `load_estimate` reads it back."""
        parts = {name: getattr(self, name) for name in type(self).model_fields}
        return "/".join(f"{name}:{value}" for name, value in parts.items() if value)


class Approximation(Spec):
    """The units of a rule's vector operations; a function left out is the processor's own.

    exp2 is used by softmax, exp, sigmoid, silu and tanh (and gelu by tanh), reciprocal where these
    divide, rsqrt by norms.
    """

    exp2: Estimate | None = None
    reciprocal: Estimate | None = None
    rsqrt: Estimate | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Approximation:
        if self.exp2 is None and self.reciprocal is None and self.rsqrt is None:
            raise ValueError(f"an approximation is of {', '.join(FUNCTIONS)}")
        if self.exp2 is not None and self.exp2.newton:
            raise ValueError("exp2 has no Newton steps")
        return self


def load_estimate(text: str, where: str = "") -> Estimate:
    """An estimate from its text, ``bits:12/newton:1``."""
    place = where or f"estimate {text!r}"
    data: dict[str, int] = {}
    for part in text.split("/"):
        name, _, number = part.partition(":")
        if name not in Estimate.model_fields:
            raise unknown("method", name, Estimate.model_fields, place)
        if not number.isdecimal() or name in data:
            raise LowprecError(f"{place}: {part!r}: expected each method once, as in 'table:7'")
        data[name] = int(number)
    return build(Estimate, data, place)
