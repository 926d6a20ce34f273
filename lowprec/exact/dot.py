"""Inner products under a datapath: the contract of `lowprec.spec.Datapath` in Fractions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from lowprec.errors import LowprecError
from lowprec.exact.addition import Term, add, exponent_of, special
from lowprec.exact.arith import IEEE, Arithmetic
from lowprec.exact.round import project
from lowprec.exact.values import Value, code_of, exact
from lowprec.spec.datapath import Datapath
from lowprec.spec.format import FloatFormat, Format

Number = Fraction | float | int
Pair = tuple[tuple[Value, ...], tuple[Value, ...]]


@dataclass(frozen=True)
class Operands:
    """Both operands of one inner product and, per `block`, their scales, with their formats."""

    values: Pair
    formats: tuple[Format, Format]
    scales: Pair | None = None
    scale_format: Format | None = None
    block: int = 1

    def at(self, k: int) -> tuple[Value, Value]:
        return self.values[0][k], self.values[1][k]

    def scales_at(self, k: int) -> tuple[Value, ...]:
        if self.scales is None:
            return ()
        return self.scales[0][k // self.block], self.scales[1][k // self.block]

    def exponent(self, k: int) -> int:
        return sum(exponent_of(x, f) for x, f in zip(self.at(k), self.formats, strict=True))

    def scale_exponent(self, k: int) -> int:
        fmt = self.scale_format
        return 0 if fmt is None else sum(exponent_of(s, fmt) for s in self.scales_at(k))


def dot(
    a: Sequence[Number],
    b: Sequence[Number],
    c: Number,
    datapath: Datapath,
    formats: tuple[Format, Format] | None = None,
    scales: tuple[Sequence[Number], Sequence[Number]] | None = None,
) -> Value:
    """d = c + sum a_k b_k as `datapath` computes it, a value of ``datapath.output``.

    formats: of a and of b, both among the datapath's inputs; by default, of each operand, the
    first input that holds all its values. scales: values of one of the scaling's formats, one per
    block, the last one short. LowprecError for operands of different lengths, values that are not
    in their format, and scales that the datapath does not take or lacks.
    """
    operands = _operands(a, b, datapath, formats, scales)
    total = project(exact(c), datapath.output, IEEE)
    if datapath.promotion is None:
        return _accumulate(operands, range(len(a)), total, datapath)
    for start in range(0, len(a), datapath.promotion.interval):
        ks = range(start, min(start + datapath.promotion.interval, len(a)))
        partial = _accumulate(operands, ks, Fraction(0), datapath)
        total = _promote(total, partial, operands.scales_at(start), datapath)
    return total


def _operands(
    a: Sequence[Number],
    b: Sequence[Number],
    path: Datapath,
    formats: tuple[Format, Format] | None,
    scales: tuple[Sequence[Number], Sequence[Number]] | None,
) -> Operands:
    if len(a) != len(b):
        raise LowprecError(f"operands of {len(a)} and {len(b)} elements; expected the same K")
    values = tuple(map(exact, a)), tuple(map(exact, b))
    if formats is None:
        pair = _format_of(values[0], path.inputs, "a"), _format_of(values[1], path.inputs, "b")
    else:
        pair = _format_of(values[0], formats[:1], "a"), _format_of(values[1], formats[1:], "b")
        if not set(formats) <= set(path.inputs):
            names = ", ".join(fmt.name for fmt in path.inputs)
            raise LowprecError(f"datapath {path.name!r} takes {names}")
    if (scales is None) != (path.scaling is None):
        raise LowprecError(
            f"datapath {path.name!r} {'needs' if path.scaling else 'takes no'} scales"
        )
    if scales is None or path.scaling is None:
        return Operands(values, pair)
    block = path.scaling.block
    if {len(scales[0]), len(scales[1])} != {-(-len(a) // block)}:
        raise LowprecError(f"expected a scale per {block} of {len(a)} elements")
    factors = tuple(map(exact, scales[0])), tuple(map(exact, scales[1]))
    scale_format = _format_of((*factors[0], *factors[1]), path.scaling.formats, "scales")
    return Operands(values, pair, factors, scale_format, block)


def _format_of(values: Sequence[Value], known: Sequence[Format], what: str) -> Format:
    """The first of the `known` formats that holds all `values`."""
    for fmt in known:
        if all(_holds(fmt, x) for x in values):
            return fmt
    names = " or ".join(fmt.name for fmt in known)
    raise LowprecError(f"{what}: not all its values are of {names}")


def _holds(fmt: Format, x: Value) -> bool:
    try:
        code_of(x, fmt)
    except LowprecError:
        return False
    return True


def _steps(ks: range, path: Datapath) -> Iterator[list[int]]:
    """The k of each step that has any."""
    size = path.step or max(len(ks), 1)
    order = path.order or range(size)
    for start in range(ks.start, ks.stop, len(order)):
        for first in range(0, len(order), size):
            found = [start + i for i in order[first : first + size] if start + i < ks.stop]
            if found:
                yield found


def _accumulate(operands: Operands, ks: range, start: Value, path: Datapath) -> Value:
    accumulator = start
    for step in _steps(ks, path):
        terms = list(_terms(operands, step, path))
        accumulator = add(terms, accumulator, path, operands.formats)
    return accumulator


def _terms(operands: Operands, ks: list[int], path: Datapath) -> Iterator[Term]:
    scaling = path.scaling
    if scaling is None or scaling.position == "outside":
        for k in ks:
            yield Term((operands.at(k),), operands.exponent(k))
        return
    for first in range(0, len(ks), scaling.group or 1):
        members = ks[first : first + (scaling.group or 1)]
        exponent = operands.scale_exponent(members[0])
        if scaling.group is None:
            exponent += operands.exponent(members[0])
        yield Term(tuple((*operands.at(k), *operands.scales_at(k)) for k in members), exponent)


def _promote(total: Value, partial: Value, scales: tuple[Value, ...], path: Datapath) -> Value:
    """The promoted sum after one more partial sum: a multiply-add with one rounding."""
    fmt = path.output
    if not isinstance(fmt, FloatFormat):
        raise TypeError("a promotion adds floats")
    arithmetic = Arithmetic(fmt)
    if path.scaling is None or path.scaling.position == "inside":
        return arithmetic.add(total, partial)
    scale = arithmetic.multiply(scales[0], scales[1])
    answer = special([(partial, scale)], total)
    if answer is not None:
        return answer
    product = Fraction(partial) * Fraction(scale)
    if not product or not Fraction(total) + product:
        return arithmetic.add(total, arithmetic.multiply(partial, scale))
    return project(Fraction(total) + product, fmt, IEEE)
