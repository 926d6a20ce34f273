"""Parts of units for several formats: one multiplier for one product or for two small ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from lowprec.rtl.numbers import Fields
from lowprec.rtl.part import Part, Ports


@dataclass(frozen=True)
class MultiplyShared(Part):
    """x * y of `bits` bits each, or, as a pair, the products of their lower and of their upper
    halves, for which the two cross products are switched off."""

    bits: int

    @property
    def name(self) -> str:
        return f"multiply_shared_{self.bits}"

    @property
    def about(self) -> str:
        low = self.half
        return (
            f"Four multipliers of halves ({low} and {self.bits - low} bits): together one product "
            f"of {self.bits} bits,\nor, with pair, those of both lower and of both upper halves."
        )

    @property
    def half(self) -> int:
        return self.bits // 2

    def inputs(self) -> Ports:
        return {"x": self.bits, "y": self.bits, "pair": 1}

    def outputs(self) -> Ports:
        high = self.bits - self.half
        return {"product": 2 * self.bits, "low": 2 * self.half, "high": 2 * high}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        h = self.half
        low, high = i.x[:h] * i.y[:h], i.x[h:] * i.y[h:]
        cross = i.x[:h] * i.y[h:] + i.x[h:] * i.y[:h]
        inner = Signal(len(cross), name="inner")
        m.d.comb += inner.eq(Mux(i.pair, 0, cross))
        return {"product": Cat(low, high) + (inner << h), "low": low, "high": high}


@dataclass(frozen=True)
class UnpackMode(Part):
    """A number of the format that the mode says, in fields that hold those of all formats.

    choices: the fields of each, by mode.
    """

    choices: tuple[Fields, ...]
    fields: Fields

    @property
    def name(self) -> str:
        return f"unpack_mode_{len(self.choices)}_{self.fields.bits}_{self.fields.e_bits}"

    @property
    def about(self) -> str:
        return f"The number of the mode's format among {len(self.choices)}, in common fields."

    def inputs(self) -> Ports:
        ports = {"mode": max(1, (len(self.choices) - 1).bit_length())}
        for k, f in enumerate(self.choices):
            ports |= {f"sign{k}": 1, f"t{k}": f.bits, f"e{k}": f.e_bits, f"nan{k}": 1, f"inf{k}": 1}
        return ports

    def outputs(self) -> Ports:
        return {"sign": 1, "t": self.fields.bits, "e": self.fields.e_bits, "nan": 1, "inf": 1}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        word = Signal(self.fields.bits + self.fields.e_bits + 3, name="word")
        with m.Switch(i.mode):
            for k, f in enumerate(self.choices):
                t = Signal(self.fields.bits, name=f"wide{k}")
                e = Signal(self.fields.e_bits, name=f"up{k}")
                m.d.comb += t.eq(getattr(i, f"t{k}") << (self.fields.fraction - f.fraction))
                m.d.comb += e.eq(getattr(i, f"e{k}") + (f.low - self.fields.low))
                flags = [getattr(i, f"{flag}{k}") for flag in ("sign", "nan", "inf")]
                with m.Case(k):
                    m.d.comb += word.eq(Cat(t, e, *flags))
        t, e = word[: self.fields.bits], word[self.fields.bits : -3]
        return {"sign": word[-3], "t": t, "e": e, "nan": word[-2], "inf": word[-1]}


def common(choices: tuple[Fields, ...]) -> Fields:
    """Fields that hold the numbers of all `choices`."""
    low = min(f.low for f in choices)
    fraction = max(f.fraction for f in choices)
    return Fields(
        bits=max(f.bits - f.fraction for f in choices) + fraction,
        fraction=fraction,
        low=low,
        span=max(f.low + f.span for f in choices) - low,
        signed=any(f.signed for f in choices),
        nan=any(f.nan for f in choices),
        infinity=any(f.infinity for f in choices),
    )
