"""A lane of a converter: one number onto the element format, under what its block shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from amaranth.hdl import C, Module, Mux, Value

from lowprec.exact.values import code_of
from lowprec.rtl.part import Part, Ports
from lowprec.rtl.project import projected
from lowprec.rtl.real import LOWEST, Real, added, integer, named, quotient, rounded, unpacked
from lowprec.rtl.scales import ONE, has_sign, is_power_of_two, lane_ports, precision_of
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import FloatFormat, Format, IntFormat, pow2
from lowprec.spec.quantizer import Quantizer


def _is_low(element: Format) -> bool:
    """Whether the element tells float32's subnormals apart, whose leading zeros then go first."""
    if isinstance(element, FloatFormat):
        return element.emin < LOWEST
    return element.min_positive_exact < pow2(LOWEST + 1)


@dataclass(frozen=True)
class Lane(Part):
    """One number onto the element format, divided by the scale where there is one."""

    source: FloatFormat
    quantizer: Quantizer

    @property
    def element(self) -> Format:
        fmt = self.block
        return self.quantizer.format if fmt is None else fmt.element  # type: ignore[return-value]

    @property
    def block(self) -> BlockFormat | None:
        fmt = self.quantizer.format
        return fmt if isinstance(fmt, BlockFormat) else None

    @property
    def name(self) -> str:
        return "convert_lane"

    @property
    def about(self) -> str:
        fmt = self.block
        by = "x" if fmt is None else "(x + offset) / scale" if fmt.offset else "x / scale"
        by += " + zero_point" if fmt is not None and fmt.zero_point else ""
        onto = self.element.name
        if fmt is not None and fmt.outlier is not None:
            onto += f", or as the outlier onto {fmt.outlier.element.name}"
        return f"{by} of {self.source.name} onto {onto}, {self.quantizer.projection.spell()}."

    def inputs(self) -> Ports:
        bits = self.quantizer.projection.bits
        random = {"random": bits} if bits else {}
        return {"x": self.source.bits, **random, **lane_ports(self.quantizer)}

    def outputs(self) -> Ports:
        return {"code": self.element.bits}

    def build(self, m: Module, i: SimpleNamespace) -> Mapping[str, Value]:
        element, how, fmt = self.element, self.quantizer.projection, self.block
        low = _is_low(element)
        x = unpacked(m, i.x, self.source, "x", normalise=fmt is not None or low)
        if fmt is not None:
            if fmt.offset is not None:
                x = added(m, x, _offset(i), "moved")
            x = self._divided(m, x, i, fmt)
            if fmt.zero_point is not None:
                assert isinstance(fmt.zero_point, IntFormat)
                x = added(m, x, integer(m, i.zero_point, fmt.zero_point, "z"), "sum")
        random = getattr(i, "random", None)
        code = projected(m, x, element, how, random, "y")
        if fmt is not None and fmt.outlier is not None:
            other = projected(m, x, fmt.outlier.element, how, random, "outlier")
            code = Mux(i.is_outlier, other, code)
        if fmt is not None:
            nan = code_of(float("nan"), element) if element.has_nan else 0
            code = Mux(i.scale_nan, nan, code)
        return {"code": code}

    def _divided(self, m: Module, x: Real, i: SimpleNamespace, fmt: BlockFormat) -> Real:
        """RN(x / S), zero where S is. Its exponent is not bounded below, which only a number that
        becomes zero in float32 shows: see `check_elements`."""
        if is_power_of_two(fmt):
            exp, sig = named(m, x.exp - i.scale_exp, "y_exp"), x.sig
        else:
            scale = Real(C(0, 1), i.scale_exp, i.scale_sig, C(0, 1), C(0, 1), C(0, 1))
            exp, sig = rounded(m, quotient(m, x, scale, "y", precision_of(fmt)), "y")
        gone = (exp < -150) | (exp == -150) & (sig == ONE)
        zero = named(m, (x.zero | gone | i.scale_zero) & ~x.inf, "y_zero")
        nan = x.nan | x.inf & i.scale_zero
        sign = x.sign ^ i.scale_sign if has_sign(self.quantizer) else x.sign
        return Real(sign, exp, sig, zero, x.inf | (exp > 127) & ~zero, nan)


def _offset(i: SimpleNamespace) -> Real:
    """O, a finite number."""
    no = C(0, 1)
    return Real(i.offset_sign, i.offset_exp, i.offset_sig, i.offset_zero, no, no)
