"""Trees of rounded operations, promotion, and codes from one format to another."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import C, Cat, Mux, Value

from lowprec.rtl.board import Board, Rounding
from lowprec.rtl.numbers import Number
from lowprec.rtl.unpack import unpack
from lowprec.spec.datapath import Datapath, Tree
from lowprec.spec.format import FloatFormat, Format


def code_number(board: Board, code: Value, fmt: Format, label: str) -> Number:
    """The number of a code of an accumulator."""
    return board.unpack(unpack(fmt, fmt, True), code, f"{label}_unpack")


def convert(board: Board, code: Value, of: FloatFormat, to: FloatFormat) -> Value:
    """A code of a result's format as the accumulator, which holds all its values, has it."""
    if of == to:
        return code
    same = (of.exponent_bits, of.bias, of.subnormals, of.nan) == (
        to.exponent_bits,
        to.bias,
        to.subnormals,
        "ieee",
    )
    if same and of.nan == to.nan:
        return Cat(C(0, to.precision - of.precision), code)
    x = code_number(board, code, of, "convert")
    rounding = Rounding(to, "nearest-even", True)
    top = x.fields.unit + len(x.t) - 1
    n = board.normalise(x.t, x.e, top, rounding, "convert", sign=x.sign)
    special = SimpleNamespace(nan=x.nan, inf=x.inf, inf_sign=x.sign)
    return board.round(n, special, rounding, "convert", zero_sign=x.sign)


# ---- trees ----


def tree(board: Board, path: Datapath, a: list[Number], b: list[Number], c: Value) -> Value:
    """Products and sums, each rounded to the accumulator's format."""
    assert isinstance(path.addition, Tree)
    assert isinstance(path.accumulator, FloatFormat)
    to = Rounding(path.accumulator, "nearest-even", True)
    flush = path.addition.flush
    if flush:
        a, b = [_flushed_number(x) for x in a], [_flushed_number(x) for x in b]
    pairs = enumerate(zip(a, b, strict=True))
    products = board.cut([board.multiply(x, y, f"lane{k}") for k, (x, y) in pairs])
    sums = [_product(board, p, to, flush, f"lane{k}") for k, p in enumerate(products)]
    sums = board.cut(sums)
    level = 0
    while len(sums) > 1:
        level += 1
        pairs_of = [sums[i : i + 2] for i in range(0, len(sums), 2)]
        sums = [
            float_add(board, p, to, flush, f"sum{level}_{i}") if len(p) == 2 else p[0]
            for i, p in enumerate(pairs_of)
        ]
        sums = board.cut(sums)
    start = board.now(c)
    if flush:
        start = _flushed_code(start, path.accumulator, signed=False)
    return float_add(board, [start, sums[0]], to, flush, "total")


def _product(board: Board, p: Number, to: Rounding, flush: bool, label: str) -> Value:
    top = p.fields.unit + len(p.t) - 1
    n = board.normalise(p.t, p.e, top, to, label, sign=p.sign)
    special = SimpleNamespace(nan=p.nan, inf=p.inf, inf_sign=p.sign)
    code = board.round(n, special, to, label, zero_sign=p.sign)
    return _flushed_code(code, to.format) if flush else code


def float_add(board: Board, pair: list[Value], to: Rounding, flush: bool, label: str) -> Value:
    """The IEEE 754 sum of two codes of a format."""
    x, y = (
        code_number(board, code, to.format, f"{label}_{side}")
        for side, code in zip("xy", pair, strict=True)
    )
    code = number_add(board, x, y, to, label)
    return _flushed_code(code, to.format) if flush else code


def number_add(board: Board, x: Number, y: Number, to: Rounding, label: str) -> Value:
    """x + y, rounded once; two zeros of one sign keep it."""
    special = board.specials([x, y], label)
    n = board.normalise(*board.pair(x, y, to.format.precision, label), to, label)
    return board.round(n, special, to, label, zero_sign=x.sign & y.sign)


def _flushed_number(x: Number) -> Number:
    """Subnormal operands count as +0."""
    normal = x.inf | x.nan | x.t[x.fields.fraction :].any()
    sign, t = x.sign & normal, Mux(normal, x.t, 0)
    return Number(x.fields, sign, t, x.e, x.nan, x.inf)


def _flushed_code(code: Value, fmt: FloatFormat, signed: bool = True) -> Value:
    """Subnormal codes become zeros."""
    if not fmt.subnormals:
        return code
    tiny = ~code[fmt.precision - 1 : -1].any()
    sign = code[-1] if signed else C(0, 1)
    return Mux(tiny, Cat(C(0, fmt.bits - 1), sign), code)


# ---- promotion ----


def promote(
    board: Board, path: Datapath, partial: Value, total: Value, scales: list[Number] | None
) -> Value:
    """The promoted sum after one more partial sum, times both scales: rounded once."""
    fmt = path.output
    assert isinstance(fmt, FloatFormat)
    to = Rounding(fmt, "nearest-even", True)
    x = code_number(board, total, fmt, "promoted")
    y = code_number(board, partial, path.accumulator, "partial")
    if scales is not None:
        product = board.multiply(scales[0], scales[1], "outer")
        code = _product(board, product, to, False, "outer")
        y = board.multiply(y, code_number(board, code, fmt, "outer"), "promote")
    if scales is not None or path.accumulator != fmt:
        y = board.normal(y, "partial")
    return number_add(board, x, y, to, "promote")
