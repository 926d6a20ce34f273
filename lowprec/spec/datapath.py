"""Datapaths: how a hardware unit multiplies and adds, down to the last bit.

A datapath computes d = c + sum a_k b_k for two operands along K. `lowprec.exact.dot` is its
oracle; which units exist is data, in ``formats/datapath/*.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lowprec.errors import LowprecError, unknown
from lowprec.spec.base import Count, Spec
from lowprec.spec.catalogue import load_format
from lowprec.spec.format import AnyFormat, CodebookFormat, FloatFormat, Format, IntFormat
from lowprec.spec.load import build, data_dir, read_toml
from lowprec.spec.projection import Rounding

Bits = Annotated[int, Field(ge=1, le=64)]


class Aligned(Spec):
    """One fused sum of a step's terms and the accumulator, see `Datapath`.

    fraction_bits: F, or None for an exact sum. rounding: of each term to the common unit.
    min_exponent: the least that the largest exponent counts as, or None.
    """

    kind: Literal["aligned"]
    fraction_bits: Bits | None = None
    rounding: Literal["toward-zero", "down", "nearest-even"] = "toward-zero"
    min_exponent: int | None = None


class TwoStage(Spec):
    """Products are summed alone and meet the accumulator afterwards (AMD CDNA3), see `Datapath`.

    groups: 2 sums the products of even and of odd position apart. term_bits: fraction bits of the
    products' sums and of the accumulator. dot_bits: those of the products' total where it meets
    the accumulator. sum_bits: those kept of the normalised result before its rounding.
    """

    kind: Literal["two-stage"]
    groups: Literal[1, 2] = 1
    term_bits: Bits
    dot_bits: Bits
    sum_bits: Bits


class Tree(Spec):
    """Ordinary multiplications and additions, each rounded, see `Datapath`.

    flush: subnormal operands, products and sums count as zero.
    """

    kind: Literal["tree"]
    flush: bool = False


class Promotion(Spec):
    """Every `interval` products the accumulator is added to a sum of the format `format`, rounded
    to nearest, ties to even, and begins again at zero."""

    interval: Count
    format: AnyFormat


class Scaling(Spec):
    """A scale of one of `formats` per `block` elements of each operand along K.

    inside: each term is multiplied by both scales before it is aligned; with a `group`, the terms
    are exact sums of that many products. outside: the accumulator is multiplied by both where it
    is promoted.
    """

    formats: Annotated[tuple[AnyFormat, ...], Field(min_length=1)]
    block: Count
    position: Literal["inside", "outside"]
    group: Count | None = None


class Datapath(Spec):
    """A multiply-add unit, as a function of exact numbers. This text is the numerics contract.

    Operands. Each holds values of one of the `inputs`. A value has the exponent
    floor(log2 |x|), and emin of its format if it is subnormal; subnormals are not normalised.
    c is first rounded to the format that it lives in, the accumulator's or the promotion's, to
    nearest with ties to even.

    Order. The products of every ``len(order)`` consecutive k are taken in the order of that
    permutation (without one: as they come), and `step` of them at a time (without one: all). A
    short last step has fewer. Products are exact. The accumulator, c at first or +0 under
    promotion, is replaced by the rounded sum of itself and the step's terms:

    aligned    A product's exponent is the sum of its operands' (and of its scales'), though its
               significand lies in [0, 4); that of a group is the sum of its scales' alone. E is the
               largest exponent of the terms that are not zero (of the groups whose products are not
               all zero) and of the accumulator, if it is not zero, and at least min_exponent. Each
               is rounded to a multiple of 2^(E - F) by the `rounding` of the addition, and these
               are added exactly; without F nothing is rounded.
    two-stage  With exponents as above, E_p being the largest of the products that are not zero,
               each product is cut toward zero to a multiple of 2^(E_p - term_bits) and added. With
               2 groups each has its own E_p; their sums are cut down (toward -Inf) to multiples of
               2^(E_p - term_bits) of the larger E_p, and added. E is the larger one of E_p and the
               accumulator's exponent (of zero: emin). The products' sum is cut down to a multiple
               of 2^(E - dot_bits), the accumulator to one of 2^(E - term_bits), with 2 groups to
               zero if its exponent is below E - term_bits - 1. Their sum, whose exponent e is at
               least emin, is cut down to a multiple of 2^(e - sum_bits). A product of 2^128 or more
               is Inf.
    tree       Each product is rounded to the accumulator's format; neighbours are added, rounded,
               neighbouring sums of these, and so on, then the last sum to the accumulator. What a
               pair lacks is left out.

    Result. The sum is rounded to the format `result` (without one: the accumulator's) by
    `rounding`: first to its precision with unbounded exponent, then by `overflow`:
      infinity   beyond the largest finite value: Inf, whatever the rounding
      saturate   the nearest finite value
      wrap       modulo 2^bits (integers)
    A sum that is zero is +0. One that is rounded to zero keeps its sign with `signed_zero`, else it
    is +0. The additions of a tree are IEEE 754's.
    NaN in a, b or c, Inf * 0 and Inf - Inf give NaN; an Inf otherwise gives Inf.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$", max_length=60)]
    inputs: Annotated[tuple[AnyFormat, ...], Field(min_length=1)]
    accumulator: AnyFormat
    addition: Annotated[Aligned | TwoStage | Tree, Field(discriminator="kind")]
    step: Count | None = None
    order: tuple[int, ...] = ()
    result: FloatFormat | None = None
    rounding: Rounding = "nearest-even"
    overflow: Literal["infinity", "saturate", "wrap"] = "infinity"
    signed_zero: bool = False
    promotion: Promotion | None = None
    scaling: Scaling | None = None

    @model_validator(mode="after")
    def _possible(self) -> Datapath:
        for wrong in (_order_fault(self), _format_fault(self), _scaling_fault(self)):
            if wrong:
                raise ValueError(wrong)
        return self

    @property
    def output(self) -> Format:
        """The format of c and d."""
        return self.promotion.format if self.promotion else self.accumulator


def _order_fault(path: Datapath) -> str | None:
    if sorted(path.order) != list(range(len(path.order))):
        return f"order is no permutation of 0 to {len(path.order) - 1}"
    if path.order and (path.step is None or len(path.order) % path.step):
        return f"order has {len(path.order)} places; expected a multiple of step"
    if path.promotion and path.promotion.interval % max(len(path.order), path.step or 1):
        return f"promotion interval {path.promotion.interval}: expected whole steps"
    if isinstance(path.addition, TwoStage) and path.addition.dot_bits < path.addition.term_bits:
        return "dot_bits: expected term_bits or more"
    if isinstance(path.addition, Tree) and path.step is None:
        return "a tree needs a step: how many products it adds"
    return None


def _format_fault(path: Datapath) -> str | None:
    whole = isinstance(path.accumulator, IntFormat)
    exact = isinstance(path.addition, Aligned) and path.addition.fraction_bits is None
    if path.rounding == "stochastic":
        return "rounding 'stochastic' is no datapath's"
    if any(isinstance(f, CodebookFormat) for f in (*path.inputs, path.output, path.accumulator)):
        return "inputs and accumulators are floats or integers, no codebooks"
    if path.promotion and not isinstance(path.output, FloatFormat):
        return "promotion: expected a float format"
    if not exact and not all(isinstance(f, FloatFormat) for f in (*path.inputs, path.accumulator)):
        return "exponents are aligned and products rounded for float formats alone"
    if whole != (path.overflow != "infinity"):
        return f"overflow {path.overflow!r} does not fit the accumulator {path.accumulator.name!r}"
    if path.result and whole:
        return "result: an integer accumulator has none"
    return None


def _scaling_fault(path: Datapath) -> str | None:
    scaling = path.scaling
    if scaling is None:
        return None
    if scaling.position == "outside":
        interval = path.promotion.interval if path.promotion else 0
        wrong = interval == 0 or scaling.block % interval or scaling.group
        return (
            "scales outside need a promotion interval that divides their block" if wrong else None
        )
    if not isinstance(path.addition, Aligned) or path.order:
        return "scales inside need an aligned addition and no order"
    if not all(isinstance(f, FloatFormat) for f in scaling.formats):
        return "scales inside have exponents: expected float formats"
    size = scaling.group or 1
    if scaling.block % size or (path.step or size) % size:
        return f"group {size}: expected a divisor of block and step"
    return None


class DatapathFacts(Spec):
    """Where a datapath's parameters come from.

    evidence: recorded (it reproduces every line of the `recordings`, see tests/exact/test_dot.py),
    simulated (a published bit-accurate model), documented, or assumed.
    instruction: what computes this.
    """

    source: Annotated[str, Field(min_length=10)]
    evidence: Literal["recorded", "simulated", "documented", "assumed"]
    instruction: str | None = None
    note: str | None = None
    recordings: tuple[str, ...] = ()


@cache
def _files() -> dict[str, Path]:
    return {path.stem: path for path in data_dir("formats").glob("datapath/*.toml")}


def list_datapaths() -> list[str]:
    """Names of all built-in datapaths."""
    return sorted(_files())


def load_datapath(name: str | Path, where: str = "") -> Datapath:
    """A datapath by its name, or from a .toml file."""
    text = str(name)
    if text.endswith(".toml"):
        return _read(Path(text))[0]
    if text not in _files():
        raise unknown("datapath", text, list_datapaths(), where)
    return _built_in(text)[0]


def load_datapath_facts(name: str) -> DatapathFacts:
    """The ``[facts]`` of a built-in datapath's file."""
    if name not in _files():
        raise unknown("datapath", name, list_datapaths())
    return _built_in(name)[1]


@cache
def _built_in(name: str) -> tuple[Datapath, DatapathFacts]:
    return _read(_files()[name])


def _read(path: Path) -> tuple[Datapath, DatapathFacts]:
    data, where = read_toml(path), str(path)
    if "facts" not in data:
        raise LowprecError(f"{where}: facts: missing; expected source and evidence")
    facts = build(DatapathFacts, data.pop("facts"), f"{where}: facts")
    datapath = build(Datapath, _with_formats(data, where), where)
    if datapath.name != path.stem:
        raise LowprecError(
            f"{where}: name: {datapath.name!r} differs from the file's {path.stem!r}"
        )
    return datapath, facts


_FORMAT_KEYS = {"inputs", "accumulator", "result", "format", "formats"}


def _with_formats(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`data` with the scalar formats themselves in place of their names."""

    def scalar(value: Any, key: str) -> Any:
        if isinstance(value, list):
            return [scalar(each, key) for each in value]
        if not isinstance(value, str):
            return value
        found = load_format(value, f"{where}: {key}")
        if not isinstance(found, Format):
            raise LowprecError(f"{where}: {key}: {value!r} is a block format; expected a scalar")
        return found

    return {
        key: scalar(value, key)
        if key in _FORMAT_KEYS
        else _with_formats(value, f"{where}: {key}")
        if isinstance(value, Mapping)
        else value
        for key, value in data.items()
    }
