"""The scale of a block in hardware: its largest magnitude, the scale rule, and inner scales."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from types import SimpleNamespace

from amaranth.hdl import C, Cat, Module, Mux, Shape, Signal, Value

from lowprec.exact.scale import ONTO_SCALE, factors, largest_value
from lowprec.exact.values import code_of
from lowprec.rtl.block_numbers import BlockNumbers
from lowprec.rtl.block_range import offset, zero_point
from lowprec.rtl.part import Part, Ports
from lowprec.rtl.power import inner_scales, power_scale
from lowprec.rtl.project import projected
from lowprec.rtl.real import (
    EXPONENT,
    INFINITY,
    PRECISION,
    Real,
    constant,
    float32,
    float32_number,
    named,
    product,
    quotient,
    rounded,
)
from lowprec.rtl.scales import (
    decoded,
    divided,
    has_sign,
    is_power_of_two,
    lane_ports,
    precision_of,
    row,
    times,
)
from lowprec.spec import load_format
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import FloatFormat
from lowprec.spec.quantizer import GIVEN_RULES, POWER_OF_TWO_RULES, Quantizer


@dataclass(frozen=True)
class Scaler(Part):
    """The scale of `lanes` numbers, as its code and as the lanes need it."""

    source: FloatFormat
    quantizer: Quantizer
    lanes: int

    @property
    def format(self) -> BlockFormat:
        assert isinstance(self.quantizer.format, BlockFormat)
        return self.quantizer.format

    @property
    def own(self) -> bool:
        """Whether it computes the scale, which else is an input."""
        given = self.quantizer.rule in GIVEN_RULES and self.format.outer is None
        return row(self.format) is not None and not given

    @property
    def candidates(self) -> int:
        """Scales that the rule tries."""
        if self.quantizer.rule == "mse":
            return len(factors(self.format.scale))
        return 2 if self.quantizer.rule == "four_over_six" else 1

    @property
    def name(self) -> str:
        return f"scale_{self.quantizer.rule}"

    @property
    def about(self) -> str:
        what = f"the rule {self.quantizer.rule}" if self.own else "its code"
        return f"Scale of {self.lanes} numbers by {what}, {self.format.scale.name}."

    @property
    def parts(self) -> int:
        """Parts of the block that have a scale of their own."""
        return self.lanes // int(self.format.inner[-1].block[0]) if self.format.inner else 1

    def given(self) -> Ports:
        fmt = self.format
        ports: dict[str, int | Shape] = {} if self.own else {"scale": fmt.scale.bits}
        if not self.own and fmt.zero_point is not None:
            ports["zero_point"] = fmt.zero_point.bits
        if fmt.outer is not None:
            ports["outer"] = fmt.outer.scale.bits
            ports |= {"outer_offset": fmt.outer.scale.bits} if fmt.offset else {}
        if self.candidates > 1:
            ports["candidate"] = (self.candidates - 1).bit_length()
        return ports

    def codes(self) -> Ports:
        """Outputs of the whole converter."""
        fmt = self.format
        own: dict[str, int | Shape] = {}
        if self.own:
            own["scales"] = fmt.scale.bits
            own |= {"zero_points": fmt.zero_point.bits} if fmt.zero_point else {}
            own |= {"offsets": fmt.offset.bits} if fmt.offset else {}
            own |= {"outliers": fmt.outlier.index_bits} if fmt.outlier else {}
        for i, level in enumerate(fmt.inner):
            own[f"inner{i}"] = level.scale.bits * (self.lanes // int(level.block[0]))
        return own

    def ports_about(self) -> list[str]:
        fmt = self.format
        said = {
            "scale": f"code of {fmt.scale.name}",
            "zero_point": "its code",
            "outer": "code of the outer scale, not Inf",
            "outer_offset": "code of the outer scale of the offsets, not Inf",
            "candidate": f"which of {self.candidates} scales is tried",
            "scales": f"code of {fmt.scale.name}",
            "zero_points": "its code",
            "offsets": "its code",
            "outliers": "index of the element in the outlier's format; all ones: none",
        }
        lines = [f"{name}: {said[name]}" for name in self.given()]
        lines += [f"{name}: {said[name]}" for name in self.codes() if name in said]
        for i, level in enumerate(fmt.inner):
            lines.append(f"inner{i}: codes of {level.scale.name}, one per {level.block[0]}")
        return lines

    def of_lane(
        self, found: SimpleNamespace, given: SimpleNamespace, lane: int
    ) -> dict[str, Value]:
        """What `lane_ports` names, of a lane, from the outputs and the inputs."""
        ports = {k: getattr(found, k) for k in self._shared()}
        ports["scale_exp"] = getattr(found, f"exp{lane // (self.lanes // self.parts)}")
        if self.format.zero_point is not None:
            ports["zero_point"] = found.zero_points if self.own else given.zero_point
        return ports | ({"is_outlier": found.outliers == lane} if self.format.outlier else {})

    def _shared(self) -> Ports:
        """What the lanes have from its outputs, all the same."""
        apart = ("scale_exp", "is_outlier", "zero_point")
        return {k: v for k, v in lane_ports(self.quantizer).items() if k not in apart}

    def inputs(self) -> Ports:
        return {"x": self.source.bits * self.lanes, **self.given()}

    def outputs(self) -> Ports:
        exps = {f"exp{i}": EXPONENT for i in range(self.parts)}
        return {**exps, **self._shared(), **self.codes()}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        fmt = self.format
        outer = decoded(m, i.outer, fmt.outer.scale, "outer") if fmt.outer else None
        block = BlockNumbers(m, i.x, self.source, self.quantizer, self.parts)
        if self.own:
            code, scale = self._scale(m, block, outer, i)
            bad = block.bad
        else:
            code, scale = i.scale, decoded(m, i.scale, fmt.scale, "scale")
            bad = scale.nan
        if outer is not None:
            scale = times(m, scale, outer, "whole")
            bad = bad | outer.nan
        bad = named(m, bad, "nan")
        found: dict[str, Value] = {"scale_sig": scale.sig, "scale_nan": bad}
        found["scale_zero"] = scale.zero | scale.inf
        found |= {"scale_sign": scale.sign} if has_sign(self.quantizer) else {}
        if self.own:
            nan = code_of(math.nan, fmt.scale) if fmt.scale.has_nan else 0
            found["scales"] = Mux(bad, nan, code)
            found |= self._more(m, block, scale, bad, i)
        maxima = block.maxima if fmt.inner else []
        exps, inner = inner_scales(m, fmt, maxima, block.real, scale)
        found |= {f"exp{at}": exp for at, exp in enumerate(exps)}
        return found | {k: Mux(bad, 0, v) for k, v in inner.items()}

    def _scale(
        self, m: Module, block: BlockNumbers, outer: Real | None, i: SimpleNamespace
    ) -> tuple[Value, Real]:
        """The code of s and its value."""
        fmt, rule = self.format.scale, self.quantizer.rule
        if rule in POWER_OF_TWO_RULES:
            return power_scale(m, block.largest, self.quantizer)
        ratio = self._ratio(m, block, outer, i)
        sign = ~block.first_sign if rule == "signed" else C(0, 1)
        if fmt == load_format("float32"):
            code = Cat(Mux(ratio == INFINITY, INFINITY - 1, ratio), sign)
        else:
            r = replace(float32_number(m, Cat(ratio, C(0, 1)), "ratio_real"), sign=sign)
            code = projected(m, r, fmt, ONTO_SCALE, None, "scale")
        code = named(m, code, "code", fmt.bits)
        return code, decoded(m, code, fmt, "scale")

    def _ratio(
        self, m: Module, block: BlockNumbers, outer: Real | None, i: SimpleNamespace
    ) -> Value:
        """The magnitude that is projected onto the scale's format, in float32."""
        rule, element = self.quantizer.rule, self.format.element
        number, by = block.largest, constant(largest_value(self.quantizer))
        if rule == "minmax":
            number = block.range.span(m)
            by = constant(element.max_exact - element.min_exact)
        elif rule == "four_over_six":
            six, four = constant(Fraction(6)), constant(Fraction(4))
            by = replace(six, sig=Mux(i.candidate, four.sig, six.sig))
        ratio = divided(m, number, by, "ratio")
        if outer is not None:
            first = float32_number(m, Cat(ratio, C(0, 1)), "first")
            ratio = divided(m, first, outer, "second")
        if rule != "mse":
            return ratio
        r, f = float32_number(m, Cat(ratio, C(0, 1)), "before"), self._factor(m, i.candidate)
        found = float32(m, product(m, r, f, "tried"), "tried")
        return Mux(r.inf, INFINITY, Mux(r.zero, 0, found))

    def _factor(self, m: Module, candidate: Value) -> Real:
        """What the rule mse multiplies r by."""
        exp, sig = Signal(EXPONENT, name="factor_exp"), Signal(PRECISION, name="factor_sig")
        with m.Switch(candidate):
            for at, factor in enumerate(factors(self.format.scale)):
                number = constant(factor)
                with m.Case(at):
                    m.d.comb += [exp.eq(number.exp), sig.eq(number.sig)]
        return replace(constant(Fraction(1)), exp=exp, sig=sig)

    def _more(
        self, m: Module, block: BlockNumbers, scale: Real, bad: Value, i: SimpleNamespace
    ) -> dict[str, Value]:
        """Zero point, offset or outlier."""
        fmt = self.format
        if fmt.zero_point is not None:
            return {"zero_points": Mux(bad, 0, zero_point(m, block.range.low, scale, fmt))}
        if fmt.offset is not None:
            outer = decoded(m, i.outer_offset, fmt.outer.scale, "t_o") if fmt.outer else None
            code, whole = offset(m, block.range.low, outer, fmt)
            parts = {"exp": whole.exp, "sig": whole.sig, "sign": whole.sign, "zero": whole.zero}
            nan = code_of(math.nan, fmt.offset) if fmt.offset.has_nan else 0
            return {"offsets": Mux(bad, nan, code)} | {f"offset_{k}": v for k, v in parts.items()}
        if fmt.outlier is None:
            return {}
        least = constant(fmt.outlier.element.min_positive_exact)
        a = block.largest
        if is_power_of_two(fmt):
            exp, sig = named(m, a.exp - scale.exp, "outlier_exp", EXPONENT), a.sig
        else:
            exp, sig = rounded(m, quotient(m, a, scale, "outlier", precision_of(fmt)), "outlier")
        reached = (exp > least.exp) | (exp == least.exp) & (sig >= least.sig)
        there = reached & ~a.zero & ~scale.zero & ~bad
        return {"outliers": Mux(there, block.first, (1 << fmt.outlier.index_bits) - 1)}
