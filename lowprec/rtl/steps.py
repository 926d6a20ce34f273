"""The steps of datapaths: the terms of one pass and the accumulator, to the code that it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

from amaranth.hdl import C, Cat, Mux, Signal, Value

from lowprec.errors import LowprecError
from lowprec.rtl.accumulate import AccumulateInteger
from lowprec.rtl.align import Align, AlignFixed, AlignLargest, AlignMax
from lowprec.rtl.board import Board, Rounding
from lowprec.rtl.numbers import Fields, Number
from lowprec.rtl.scale import Scale
from lowprec.spec.datapath import Aligned, Datapath
from lowprec.spec.format import IntFormat


@dataclass(frozen=True)
class Lanes:
    """The products of a pass, and the products of their scales, one per `run` of lanes.

    group: each run is one term, aligned by its scales alone.
    """

    products: list[Number]
    scales: list[Number] | None = None
    run: int = 1
    group: bool = False


@dataclass(frozen=True)
class Term:
    """A number to be aligned, and whether its exponent counts."""

    number: Number
    counts: Value


def aligned(board: Board, path: Datapath, lanes: Lanes, c: Number, to: Rounding) -> Value:
    """All terms and the accumulator aligned to the largest exponent E, cut at 2^(E - F), added."""
    terms, special = _terms(board, lanes, c)
    return align_terms(board, path, terms, special, c, to)


def align_terms(
    board: Board,
    path: Datapath,
    terms: list[Term],
    special: SimpleNamespace,
    c: Number,
    to: Rounding,
) -> Value:
    """As `aligned`, of terms that are there; the fields of all have one lowest exponent and span.

    special: whether the sum is NaN or Inf.
    """
    addition = path.addition
    assert isinstance(addition, Aligned)
    assert addition.fraction_bits is not None
    terms, special, c = board.cut(terms, special, board.now(c))
    largest = _largest(board, terms, c, addition.min_exponent)
    base = _base(terms[0].number.fields, c.fields, addition.min_exponent)
    terms, special, c, largest = board.cut(terms, special, c, largest)
    values = [
        board.place(
            Align(n.fields, addition.fraction_bits, addition.rounding, base, len(largest)),
            label,
            sign=n.sign,
            t=n.t,
            e=n.e,
            largest=largest,
        ).value
        for n, label in [
            *((t.number, f"term{k}_align") for k, t in enumerate(terms)),
            (c, "c_align"),
        ]
    ]
    values, special, largest = board.cut(values, special, largest)
    total = board.add(values, "terms")
    total, special, largest = board.cut(total, special, largest)
    top = base - addition.fraction_bits + len(total) - 1
    n = board.normalise(total, largest, top, to, "total")
    n, special = board.cut(n, special)
    return board.round(n, special, to, "total")


def _base(term: Fields, c: Fields, floor: int | None) -> int:
    """The exponent that E is counted from."""
    lowest = min(term.low, c.low)
    return lowest if floor is None else max(lowest, floor)


def _largest(board: Board, terms: list[Term], c: Number, floor: int | None) -> Value:
    fields = terms[0].number.fields
    of_terms = largest_of(board, [t.number.e for t in terms], [t.counts for t in terms], "terms")
    base = _base(fields, c.fields, floor)
    highest = max(fields.low + fields.span, c.fields.low + c.fields.span, base)
    part = AlignLargest(
        x=fields.e_bits,
        x_low=fields.low,
        y=c.fields.e_bits,
        y_low=c.fields.low,
        base=base,
        bits=max(1, (highest - base).bit_length()),
    )
    return board.place(
        part,
        "largest",
        x=of_terms.largest,
        x_counts=of_terms.any,
        y=c.e,
        y_counts=c.nonzero,
    ).largest


def largest_of(board: Board, e: list[Value], counts: list[Value], label: str) -> SimpleNamespace:
    part = AlignMax(len(e), len(e[0]))
    return board.place(part, f"{label}_max", e=Cat(*e), counts=Cat(*counts))


# ---- terms ----


def _terms(board: Board, lanes: Lanes, c: Number) -> tuple[list[Term], SimpleNamespace]:
    if lanes.group:
        return _group_terms(board, lanes, c)
    numbers = lanes.products
    if lanes.scales is not None:
        numbers = [
            board.multiply(p, lanes.scales[k // lanes.run], f"lane{k}_scale")
            for k, p in enumerate(numbers)
        ]
    special = board.specials([*numbers, board.now(c)], "terms")
    return [Term(n, n.nonzero) for n in numbers], special


def _group_terms(board: Board, lanes: Lanes, c: Number) -> tuple[list[Term], SimpleNamespace]:
    terms, specials = [], []
    assert lanes.scales is not None
    for j, s in enumerate(lanes.scales):
        members = lanes.products[j * lanes.run : (j + 1) * lanes.run]
        term, found = _group(board, members, s, f"group{j}")
        terms.append(term)
        specials += found
    return terms, board.specials([*specials, board.now(c)], "terms")


def _group(board: Board, members: list[Number], s: Number, label: str) -> tuple[Term, list[Number]]:
    """The sum of a group's products times its scales, and what may be NaN or Inf of it."""
    total = board.add([_fixed(board, p, f"{label}_{k}") for k, p in enumerate(members)], label)
    part = Scale(len(total), members[0].fields.unit, s.fields)
    o = board.place(part, f"{label}_scale", total=total, s_sign=s.sign, s_t=s.t)
    number = Number(part.fields, o.sign, o.t, s.e, C(0, 1), C(0, 1))
    counts = Cat(p.nonzero for p in members).any() & s.nonzero
    if members[0].fields.special or s.fields.infinity:
        special = [board.multiply(p, s, f"{label}_{k}_special") for k, p in enumerate(members)]
    else:
        special = [s]
    return Term(number, counts), special


def _fixed(board: Board, n: Number, label: str) -> Value:
    return board.place(AlignFixed(n.fields), f"{label}_fixed", sign=n.sign, t=n.t, e=n.e).value


# ---- exact sums ----


@dataclass(frozen=True)
class Exact:
    """Values in two's complement, in units of 2^unit, and whether their sum is NaN or Inf."""

    values: list[Value]
    unit: int
    special: SimpleNamespace


def exact_values(board: Board, lanes: Lanes) -> Exact:
    """The products in fixed point; of lanes that share scales, their sum times these."""
    if lanes.scales is None:
        numbers, specials = lanes.products, lanes.products
    else:
        found = [
            _group(board, lanes.products[j * lanes.run : (j + 1) * lanes.run], s, f"group{j}")
            for j, s in enumerate(lanes.scales)
        ]
        numbers = [term.number for term, _ in found]
        specials = [n for _, some in found for n in some]
    special = board.specials(specials, "terms")
    numbers, special = board.cut(numbers, special)
    values = [_fixed(board, n, f"term{k}") for k, n in enumerate(numbers)]
    values, special = board.cut(values, special)
    return Exact(values, numbers[0].fields.unit, special)


def exact_float(board: Board, terms: Exact, c: Number, to: Rounding) -> Value:
    """Exact terms and a float accumulator, rounded once.

    In one fixed-point sum, if that is not much wider than the one of the products; else these are
    added first and their sum is normalised, to meet the accumulator as another float would.
    """
    c = board.now(c)
    unit = min(terms.unit, c.fields.unit)
    products = max(map(len, terms.values))
    highest = max(terms.unit + products, c.fields.unit + c.fields.bits + c.fields.span)
    if highest - unit <= 2 * products:
        total, special = _one_sum(board, terms, c, unit)
        e, top = C(0, 1), unit + len(total) - 1
    else:
        total, e, top, special = _two_sums(board, terms, c, to)
    total, e, special = board.cut(total, e, special)
    n, special = board.cut(board.normalise(total, e, top, to, "total"), special)
    return board.round(n, special, to, "total")


def _one_sum(board: Board, terms: Exact, c: Number, unit: int) -> tuple[Value, SimpleNamespace]:
    start = _fixed(board, c, "c")
    values = [Cat(C(0, terms.unit - unit), v) for v in terms.values]
    values.append(Cat(C(0, c.fields.unit - unit), start))
    return board.add(values, "terms"), _with_accumulator(board, terms.special, c)


def _two_sums(
    board: Board, terms: Exact, c: Number, to: Rounding
) -> tuple[Value, Value, int, SimpleNamespace]:
    value = board.add(terms.values, "terms")
    value, special, c = board.cut(value, terms.special, c)
    sign, size = Signal(name="sum_sign"), Signal(len(value), name="sum_size")
    whole = value.as_signed()
    board.m.d.comb += [sign.eq(value[-1]), size.eq(Mux(sign, -whole, whole))]
    fields = Fields(len(value), 0, terms.unit, 0)
    number = board.normal(Number(fields, sign, size, C(0, 1), C(0, 1), C(0, 1)), "sum")
    number, special, c = board.cut(number, special, c)
    total, e, top = board.pair(c, number, to.format.precision, "sum")
    return total, e, top, _with_accumulator(board, special, c)


def _with_accumulator(board: Board, special: SimpleNamespace, c: Number) -> SimpleNamespace:
    """Whether the sum of terms and the accumulator is NaN or Inf."""
    fields = Fields(1, 0, 0, 0, nan=True, infinity=True)
    terms = Number(fields, special.inf_sign, C(0, 1), C(0, 1), special.nan, special.inf)
    return board.specials([terms, c], "sum")


def exact_integer(board: Board, terms: Exact, c: Value, path: Datapath) -> Value:
    """Exact terms and an integer accumulator."""
    fmt = path.accumulator
    assert isinstance(fmt, IntFormat)
    if terms.unit < fmt.exponent:
        raise LowprecError(
            f"datapath {path.name!r}: products are multiples of 2^{terms.unit}, which the "
            f"accumulator {fmt.name!r}, of units 2^{fmt.exponent}, does not hold"
        )
    total = board.cut(board.add(terms.values, "lanes"))
    part = AccumulateInteger(
        len(total),
        terms.unit - fmt.exponent,
        fmt.bits,
        fmt.signed,
        path.overflow == "saturate",
        fmt.min_integer,
        fmt.max_integer,
    )
    return board.place(part, "accumulate", total=total, c=board.now(c)).d
