"""Datapaths: which operands a unit multiplies, at what rate, and which one runs a product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from lowprec.errors import LowprecError
from lowprec.perf.quantity import Quantity
from lowprec.spec import BlockFormat, CodebookFormat, FloatFormat, Format, IntFormat, Spec
from lowprec.spec.default_datapath import has_two_levels
from lowprec.spec.format import AnyFormat

Operand = Format | BlockFormat


def _kind(data: Any) -> str:
    block = isinstance(data, BlockFormat) or (isinstance(data, dict) and "element" in data)
    return "block" if block else "scalar"


_AnyOperand = Annotated[
    Annotated[AnyFormat, Tag("scalar")] | Annotated[BlockFormat, Tag("block")], Discriminator(_kind)
]


class Scaling(Spec):
    """A scale of the format `scale` per `block` elements along K, applied as the unit sums."""

    scale: AnyFormat
    block: Annotated[int, Field(ge=1)]


class Datapath(Spec):
    """A multiply-accumulate unit. Any of `operands` multiplies any other of them; a block format
    among them is read whole, with all that its elements share, and multiplies itself only.

    scalings: the block scales that the unit applies itself, one kind per product; an operand
    without block scales takes scales of one. A scale per tensor or per row of x_MK and w_NK is
    constant along K and multiplies the finished sum, so every unit takes those.
    rate: dense FLOP/s (integer operations per second likewise), 1 MAC = 2. limit: FLOP/s that the
    chip's firmware allows in the long run, where it lowers the clock to keep to it.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$", max_length=40)]
    operands: Annotated[tuple[_AnyOperand, ...], Field(min_length=1)]
    scalings: tuple[Scaling, ...] = ()
    rate: Quantity
    limit: Quantity | None = None
    note: str | None = None

    def takes(self, operand: Operand) -> bool:
        """Whether the unit multiplies the operand's elements, scales aside.

        Inner scales, zero points, offsets and outliers only of a block format that it reads whole.
        """
        if self.reads(operand):
            return True
        if isinstance(operand, BlockFormat) and not operand.is_only_scaled:
            return False
        scalars = (fmt for fmt in self.operands if isinstance(fmt, Format))
        return any(_holds(fmt, _element(operand)) for fmt in scalars)

    def reads(self, operand: Operand) -> bool:
        """Whether the operand is a block format that the unit reads whole."""
        return isinstance(operand, BlockFormat) and operand in self.operands

    def scales(self, *operands: Operand) -> bool:
        """Whether one scaling of the unit serves all `operands`."""
        apart = (operand for operand in operands if not self.reads(operand))
        needed = [need for need in map(_block_scale, apart) if need]
        return not needed or any(
            all(_encoding(s.scale) == scale and size % s.block == 0 for scale, size in needed)
            for s in self.scalings
        )

    def multiplies(self, a: Operand, b: Operand) -> bool:
        if self.reads(a) or self.reads(b):
            return a == b
        return self.takes(a) and self.takes(b) and self.scales(a, b)


@dataclass(frozen=True)
class Choice:
    """The datapath that runs a product; if not native, what is converted and why.

    promoted: elements of K after which the vector units scale the unit's sum and add it to their
    own, because the unit does not apply such scales itself; 0 if it does, or there are none.
    """

    datapath: Datapath
    native: bool
    reason: str
    promoted: int = 0


def choose(
    datapaths: Sequence[Datapath], a: Operand, b: Operand, dtype: Format, machine: str
) -> Choice:
    """The fastest datapath that multiplies `a` by `b` as stored (of equals the first listed).

    Where there is none, the stated fallback: operands are converted to `dtype`, the type that the
    model computes in, and run on its datapath. A machine without one is an error that names what
    it has; no rate is ever borrowed.
    """
    native = [path for path in datapaths if path.multiplies(a, b)]
    if native:
        best = max(native, key=lambda path: path.rate.value)
        return Choice(
            best, True, f"{best.name} multiplies {a.name} by {b.name}{_shift(best, a, b)}"
        )
    if size := _promotion(a, b):
        takers = [path for path in datapaths if path.takes(a) and path.takes(b)]
        if takers:
            best = max(takers, key=lambda path: path.rate.value)
            reason = (
                f"{best.name} multiplies {a.name} by {b.name}{_shift(best, a, b)}, and the vector "
                f"units scale its sums every {size} elements"
            )
            return Choice(best, True, reason, size)
    why = _refusal(datapaths, a, b)
    wide = [path for path in datapaths if path.multiplies(dtype, dtype)]
    if not wide:
        known = ", ".join(sorted({fmt.name for path in datapaths for fmt in path.operands}))
        raise LowprecError(
            f"machine {machine!r}: {why}, and there is no datapath for {dtype.name} to fall back "
            f"to; it multiplies {known}"
        )
    best = max(wide, key=lambda path: path.rate.value)
    converted = " and ".join(
        dict.fromkeys(operand.name for operand in (a, b) if not same_encoding(operand, dtype))
    )
    return Choice(best, False, f"{why}: {converted} converted to {dtype.name} for {best.name}")


# Kernels scale a unit's sums on the vector units where a block is this long along K or longer
# (DeepSeek-V3, arXiv 2412.19437 section 3.3.2: every 128 elements of FP8 on Hopper); for shorter
# ones there would be a vector operation for every few products.
LEAST_PROMOTION = 128


def _promotion(a: Operand, b: Operand) -> int:
    """How many elements of K share all their scales; 0 if too few do."""
    needed = [need for need in map(_block_scale, (a, b)) if need]
    if any(scale == ("two levels",) for scale, _ in needed):
        return 0
    size = min((size for _, size in needed), default=0)
    return size if size >= LEAST_PROMOTION else 0


def _shift(path: Datapath, *operands: Operand) -> str:
    """What to know of operands that the unit reads as a constant power of two times their value."""
    as_written = {_encoding(_element(fmt)) for fmt in path.operands}
    shifted = [x.name for x in operands if _encoding(_element(x)) not in as_written]
    names = " and ".join(dict.fromkeys(shifted))
    return f" ({names} as codes of another bias: a power of two in the scale)" if names else ""


def _refusal(datapaths: Sequence[Datapath], a: Operand, b: Operand) -> str:
    for operand in (a, b):
        takers = [path for path in datapaths if path.takes(operand)]
        if not takers:
            if isinstance(operand, BlockFormat) and not operand.is_only_scaled:
                return f"no datapath reads {operand.name} with its {_beyond_scales(operand)}"
            return f"no datapath takes {_element(operand).name}"
        if isinstance(operand, BlockFormat) and not any(path.scales(operand) for path in takers):
            outer = operand.outer if has_two_levels(operand) else None
            levels = f" times {outer.scale.name} ones per {outer.block[-1]}" if outer else ""
            return (
                f"no datapath for {operand.element.name} applies {operand.scale.name} scales "
                f"per {operand.block[-1]}{levels}"
            )
        if any(path.reads(operand) for path in takers):
            return f"{takers[0].name} multiplies {operand.name} by itself only"
    return f"no datapath takes {a.name} and {b.name} together"


def same_encoding(a: Operand, b: Operand) -> bool:
    """Whether two scalar formats are the same bits with the same meaning, whatever their names."""
    if isinstance(a, BlockFormat) or isinstance(b, BlockFormat):
        return a == b
    return _encoding(a) == _encoding(b)


def is_block_scaled(operand: Operand) -> bool:
    """Whether the scale changes along K, so that it cannot wait for the finished sum."""
    return _block_scale(operand) is not None


def _element(operand: Operand) -> Format:
    return operand.element if isinstance(operand, BlockFormat) else operand


def _block_scale(operand: Operand) -> tuple[tuple[Any, ...], int] | None:
    if not isinstance(operand, BlockFormat) or isinstance(operand.block, str):
        return None
    two = has_two_levels(operand)
    return ("two levels",) if two else _encoding(operand.scale), operand.block[-1]


def _beyond_scales(fmt: BlockFormat) -> str:
    """What its elements share beside scales, which a unit would need more hardware for."""
    shared = {
        "inner scales": fmt.inner,
        "zero points": fmt.zero_point,
        "offsets": fmt.offset,
        "outliers": fmt.outlier,
    }
    return " and ".join(name for name, part in shared.items() if part)


def _holds(unit: Format, fmt: Format) -> bool:
    """Whether every finite value of `fmt`, times one power of two, is a value of `unit`'s operand.

    Floats of the same fields but another bias are: the power of two goes into the scale, and only
    the codes of zero and the special values are rewritten (OCP E4M3 on an FNUZ unit).
    """
    if isinstance(unit, FloatFormat) and isinstance(fmt, FloatFormat):
        fields = [(f.bits, f.precision, f.signed, f.subnormals, f.zero) for f in (unit, fmt)]
        return fields[0] == fields[1] and fmt.max_code <= unit.max_code
    return _encoding(unit) == _encoding(fmt)


def _encoding(fmt: Format) -> tuple[Any, ...]:
    """What a decoder sees of a format: not its name, and of an integer neither its constant
    power of two, which multiplies the finished sum, nor whether one code stays unused."""
    match fmt:
        case FloatFormat():
            special = (fmt.subnormals, fmt.zero, fmt.infinity, fmt.nan)
            return ("float", fmt.bits, fmt.precision, fmt.bias, fmt.signed, *special)
        case IntFormat():
            return ("int", fmt.bits, fmt.signed)
        case CodebookFormat():
            signs = tuple(math.copysign(1, v) for v in fmt.values)
            return ("codebook", fmt.bits, tuple(map(repr, fmt.values)), signs)
        case _:
            raise TypeError(f"no scalar format: {fmt!r}")
