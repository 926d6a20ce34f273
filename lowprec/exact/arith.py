"""IEEE 754 arithmetic on exact values, each operation rounded once to nearest even."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from lowprec.exact.round import project
from lowprec.exact.values import Value, finite, negative
from lowprec.spec.format import FloatFormat
from lowprec.spec.projection import Projection

IEEE = Projection(rounding="nearest-even", saturation="OvfInf")


@dataclass(frozen=True)
class Arithmetic:
    """Operations as IEEE 754 has them in one format, signs and special values included."""

    format: FloatFormat

    def multiply(self, a: Value, b: Value) -> Value:
        if a != a or b != b or (not finite(a) and b == 0) or (a == 0 and not finite(b)):
            return math.nan
        minus = negative(a) != negative(b)
        if not finite(a) or not finite(b):
            return -math.inf if minus else math.inf
        return self._rounded(abs(Fraction(a)) * abs(Fraction(b)), minus)

    def divide(self, a: Value, b: Value) -> Value:
        if a != a or b != b or (a == 0 and b == 0) or not (finite(a) or finite(b)):
            return math.nan
        minus = negative(a) != negative(b)
        if b == 0 or not finite(a):
            return -math.inf if minus else math.inf
        return self._rounded(
            abs(Fraction(a)) / abs(Fraction(b)) if finite(b) else Fraction(0), minus
        )

    def add(self, a: Value, b: Value) -> Value:
        if a != a or b != b or (not finite(a) and not finite(b) and a != b):
            return math.nan
        if not finite(a) or not finite(b):
            return b if finite(a) else a
        total = Fraction(a) + Fraction(b)
        return self._rounded(abs(total), total < 0 or (negative(a) and negative(b)))

    def subtract(self, a: Value, b: Value) -> Value:
        return self.add(a, negated(b))

    def _rounded(self, magnitude: Fraction, minus: bool) -> Value:
        if not magnitude:
            return -0.0 if minus else Fraction(0)
        return project(-magnitude if minus else magnitude, self.format, IEEE)


def negated(x: Value) -> Value:
    if isinstance(x, float):
        return Fraction(0) if x == 0 else -x
    return -x if x else -0.0


FLOAT32 = Arithmetic(
    FloatFormat(
        name="float32", kind="float", bits=32, precision=24, bias=127, infinity=True, nan="ieee"
    )
)
FLOAT64 = Arithmetic(
    FloatFormat(
        name="float64", kind="float", bits=64, precision=53, bias=1023, infinity=True, nan="ieee"
    )
)
