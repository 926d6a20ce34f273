"""What a datapath must be for a unit of it to exist: an accumulator that holds its own results."""

from __future__ import annotations

from collections.abc import Iterable

from lowprec.errors import LowprecError
from lowprec.spec.datapath import Datapath, TwoStage
from lowprec.spec.format import FloatFormat, Format, IntFormat, pow2


def check(path: Datapath, carriers: tuple[Format, Format]) -> None:
    """LowprecError with what hardware cannot keep."""
    acc = path.accumulator
    for fmt in {acc, path.output, path.result or acc}:
        if isinstance(fmt, FloatFormat) and not (fmt.signed and fmt.zero):
            raise LowprecError(
                f"datapath {path.name!r}: accumulator {fmt.name!r}: expected a sign and zero"
            )
    if isinstance(acc, IntFormat):
        _check_integer(path, acc, carriers)
    elif path.result is not None and isinstance(acc, FloatFormat) and not _within(path.result, acc):
        raise LowprecError(
            f"datapath {path.name!r}: result {path.result.name!r}: not all its values are of the "
            f"accumulator's {acc.name!r}"
        )
    if isinstance(path.addition, TwoStage):
        for fmt in carriers:
            if isinstance(fmt, FloatFormat) and fmt.emin + fmt.emax >= 127:
                raise LowprecError(f"datapath {path.name!r}: input {fmt.name!r}: biased too far")


def check_names(formats: Iterable[Format]) -> None:
    """LowprecError if two different ones are called the same, as their modules would be."""
    known: dict[str, Format] = {}
    for fmt in formats:
        if known.setdefault(fmt.name, fmt) != fmt:
            raise LowprecError(f"two formats of the unit are called {fmt.name!r}; rename one")


def _check_integer(path: Datapath, acc: IntFormat, carriers: tuple[Format, Format]) -> None:
    if any(f.has_nan or f.has_infinity for f in carriers):
        raise LowprecError(
            f"datapath {path.name!r}: the accumulator {acc.name!r} holds no NaN or Inf of inputs"
        )
    if acc.symmetric and path.overflow == "wrap":
        raise LowprecError(f"datapath {path.name!r}: accumulator {acc.name!r}: symmetric and wraps")


def _within(small: FloatFormat, wide: FloatFormat) -> bool:
    last = [pow2(f.emin - f.precision) for f in (small, wide)]
    return (
        small.precision <= wide.precision
        and last[0] >= last[1]
        and small.max_exact <= wide.max_exact
        and wide.subnormals >= small.subnormals
    )
