"""The step of CDNA3: products are summed alone, in groups, and meet the accumulator afterwards."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import C, Cat, Value

from lowprec.rtl.accumulate import AccumulateFloor
from lowprec.rtl.align import Align, AlignDown, AlignLargest
from lowprec.rtl.board import Board, Rounding
from lowprec.rtl.multiply import MultiplyOverflow
from lowprec.rtl.numbers import Fields, Number
from lowprec.rtl.steps import Lanes, largest_of
from lowprec.spec.datapath import Datapath, TwoStage


def two_stage(board: Board, path: Datapath, lanes: Lanes, c: Number, to: Rounding) -> Value:
    """Products are summed alone, in groups, and meet the accumulator afterwards."""
    addition = path.addition
    assert isinstance(addition, TwoStage)
    numbers = [_limited(board, p, f"lane{k}") for k, p in enumerate(lanes.products)]
    special = board.specials([*numbers, board.now(c)], "terms")
    numbers, special = board.cut(numbers, special)
    groups = [g for g in (numbers[i :: addition.groups] for i in range(addition.groups)) if g]
    tops = [
        largest_of(board, [n.e for n in g], [n.nonzero for n in g], f"group{i}")
        for i, g in enumerate(groups)
    ]
    groups, tops, special = board.cut(groups, tops, special)
    sums = [
        _group_sum(board, g, top.largest, addition.term_bits, f"group{i}")
        for i, (g, top) in enumerate(zip(groups, tops, strict=True))
    ]
    sums, tops, special = board.cut(sums, tops, special)
    top = tops[0]
    if len(sums) == 2:
        every = largest_of(board, [t.largest for t in tops], [t.any for t in tops], "groups")
        sums = [
            _down(board, (s, t.largest), every.largest, (0, 0), f"group{i}")
            for i, (s, t) in enumerate(zip(sums, tops, strict=True))
        ]
        top = every
    products = board.add(sums, "products")
    products, top, special = board.cut(products, top, special)
    return _second(board, addition, products, top, numbers[0].fields, c, special, to)


def _limited(board: Board, n: Number, label: str) -> Number:
    """A product of 2^128 or more is Inf."""
    if n.fields.low + n.fields.span < 127:
        return n
    part = MultiplyOverflow(n.fields)
    inf = board.place(part, f"{label}_overflow", t=n.t, e=n.e).inf
    fields = Fields(**{**vars(n.fields), "nan": True, "infinity": True})
    return Number(fields, n.sign, n.t, n.e, n.nan, n.inf | inf)


def _group_sum(board: Board, group: list[Number], largest: Value, bits: int, label: str) -> Value:
    fields = group[0].fields
    part = Align(fields, bits, "toward-zero", fields.low, len(largest))
    values = [
        board.place(part, f"{label}_{k}_align", sign=n.sign, t=n.t, e=n.e, largest=largest).value
        for k, n in enumerate(group)
    ]
    return board.add(values, label)


def _down(
    board: Board, value: tuple[Value, Value], largest: Value, by: tuple[int, int], label: str
) -> Value:
    """A sum and its exponent, cut down to the unit of a larger exponent. by: zeros put behind it
    first, and how far below the largest exponent its own one is when both have e = 0."""
    total, e = value
    more, offset = by
    part = AlignDown(len(total), more, len(largest), offset, len(e))
    return board.place(part, f"{label}_down", value=total, e=e, largest=largest).cut


def _second(
    board: Board,
    addition: TwoStage,
    products: Value,
    top: SimpleNamespace,
    fields: Fields,
    c: Number,
    special: SimpleNamespace,
    to: Rounding,
) -> Value:
    """The products' sum and the accumulator."""
    c = board.now(c)
    base = min(fields.low, c.fields.low)
    highest = max(fields.low + fields.span, c.fields.low + c.fields.span)
    part = AlignLargest(
        x=len(top.largest),
        x_low=fields.low,
        y=c.fields.e_bits,
        y_low=c.fields.low,
        base=base,
        bits=(highest - base).bit_length(),
    )
    # The accumulator always counts: zero has the exponent emin.
    largest = board.place(
        part, "largest", x=top.largest, x_counts=top.any, y=c.e, y_counts=C(1, 1)
    ).largest
    bits, more = addition.term_bits, addition.dot_bits - addition.term_bits
    lower = board.place(
        AlignDown(len(products), more, len(largest), base - fields.low, len(top.largest)),
        "products_down",
        value=products,
        e=top.largest,
        largest=largest,
    ).cut
    within = bits + 1 if addition.groups == 2 else None
    kept = board.place(
        Align(c.fields, bits, "down", base, len(largest), within),
        "c_align",
        sign=c.sign,
        t=c.t,
        e=c.e,
        largest=largest,
    ).value
    lower, kept, largest, special = board.cut(lower, kept, largest, special)
    total = board.add([lower, Cat(C(0, more), kept)], "total")
    highest_place = base - addition.dot_bits + len(total) - 1
    floor = AccumulateFloor(
        len(total), len(largest), highest_place - c.fields.low, addition.sum_bits
    )
    total = board.place(floor, "total_floor", total=total, e=largest).cut
    total, largest, special = board.cut(total, largest, special)
    n = board.normalise(total, largest, highest_place, to, "total")
    n, special = board.cut(n, special)
    return board.round(n, special, to, "total")
