"""Block scales: an exact sum of a group's products times the product of its two scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from amaranth.hdl import Module, Mux, Signal, Value, signed

from lowprec.rtl.numbers import Fields
from lowprec.rtl.part import Part, Ports


@dataclass(frozen=True)
class Scale(Part):
    """total * s_t in sign and magnitude.

    width, unit: of the sum, in fixed point. scale: the fields of the product of the scales.
    """

    width: int
    unit: int
    scale: Fields

    @property
    def name(self) -> str:
        return f"scale_{self.width}x{self.scale.bits}"

    @property
    def about(self) -> str:
        return (
            f"A group's sum of {self.width} bits times the significand of its scales, "
            f"{self.scale.bits} bits, in sign and magnitude."
        )

    def inputs(self) -> Ports:
        return {"total": signed(self.width), "s_sign": 1, "s_t": self.scale.bits}

    def outputs(self) -> Ports:
        return {"sign": 1, "t": self.fields.bits}

    @property
    def fields(self) -> Fields:
        """Of the term, which is aligned by the exponent of the scales alone."""
        s = self.scale
        return Fields(
            bits=self.width + (s.bits if s.bits > 1 else 0),
            fraction=s.fraction - self.unit,
            low=s.low,
            span=s.span,
        )

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        size = Signal(self.width, name="size")
        m.d.comb += size.eq(Mux(i.total < 0, -i.total, i.total))
        return {"sign": (i.total < 0) ^ i.s_sign, "t": size * i.s_t}
