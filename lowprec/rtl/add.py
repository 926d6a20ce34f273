"""Adding aligned terms, and their special values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from amaranth.hdl import Module, Signal, Value, signed

from lowprec.rtl.align import parts_of
from lowprec.rtl.part import Part, Ports


def sum_bits(width: int, n: int) -> int:
    """Bits of the sum of n two's complement numbers of `width` bits."""
    return width + (n - 1).bit_length()


@dataclass(frozen=True)
class Add(Part):
    """The sum of `n` two's complement numbers, by a tree of adders."""

    n: int
    width: int

    @property
    def name(self) -> str:
        return f"add_{self.n}x{self.width}"

    @property
    def about(self) -> str:
        return f"Sum of {self.n} two's complement numbers of {self.width} bits."

    def inputs(self) -> Ports:
        return {"values": self.n * self.width}

    def outputs(self) -> Ports:
        return {"total": signed(sum_bits(self.width, self.n))}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        values = [v.as_signed() for v in parts_of(i.values, self.n)]
        while len(values) > 1:
            pairs = [values[k : k + 2] for k in range(0, len(values), 2)]
            values = [_sum(m, p) if len(p) == 2 else p[0] for p in pairs]
        return {"total": values[0]}


def _sum(m: Module, pair: list[Value]) -> Signal:
    total = Signal(signed(max(map(len, pair)) + 1), name="sum")
    m.d.comb += total.eq(pair[0] + pair[1])
    return total


@dataclass(frozen=True)
class AddSpecial(Part):
    """Whether the sum of `n` terms is NaN or Inf, and that one's sign: Inf - Inf is NaN."""

    n: int

    @property
    def name(self) -> str:
        return f"add_special_{self.n}"

    @property
    def about(self) -> str:
        return f"Whether the sum of {self.n} terms is NaN or Inf; Inf - Inf is NaN."

    def inputs(self) -> Ports:
        return {"signs": self.n, "nans": self.n, "infs": self.n}

    def outputs(self) -> Ports:
        return {"nan": 1, "inf": 1, "inf_sign": 1}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        plus, minus = (i.infs & ~i.signs).any(), (i.infs & i.signs).any()
        return {"nan": i.nans.any() | (plus & minus), "inf": plus | minus, "inf_sign": minus}
