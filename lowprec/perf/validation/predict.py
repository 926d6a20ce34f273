"""One row to one prediction or one reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from lowprec.errors import LowprecError
from lowprec.perf.validation import (
    attention,
    collectives,
    experts,
    gemm,
    layers,
    quantizers,
    serving,
    training,
    vectors,
)
from lowprec.perf.validation.point import Point, Prediction

# Who may know a row, in this order; None from one asks the next.
READERS: tuple[Callable[[Point], Prediction | None], ...] = (
    collectives.predict,
    layers.predict,
    experts.predict,
    attention.predict,
    quantizers.predict,
    vectors.predict,
    gemm.predict,
    training.predict,
    serving.predict,
)
_LONGEST = 2000  # characters that are searched for sizes: more is no measurement

_LONGEST_ERROR = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """A prediction, or the reason why there is none."""

    point: Point
    prediction: Prediction | None
    reason: str = ""


def answer(point: Point) -> Answer:
    """What the model says of `point`; it never guesses what a row leaves out."""
    for name in ("hw", "what", "shape", "format", "unit", "conditions"):
        if (length := len(getattr(point, name))) > _LONGEST:
            return Answer(point, None, f"{name}: {length} characters, more than {_LONGEST}")
    try:
        for reader in READERS:
            found = reader(point)
            if found is not None:
                return _checked(point, found)
    except LowprecError as error:
        return Answer(point, None, " ".join(str(error).split()))
    except (ValueError, ArithmeticError) as error:
        # One row must not take the others with it.
        text = " ".join(str(error).split())[:_LONGEST_ERROR]
        return Answer(point, None, f"the row's numbers are none that the model takes: {text}")
    return Answer(point, None, f"what: {point.what!r} is nothing that the model knows")


def _checked(point: Point, found: Prediction) -> Answer:
    if 0 < found.low <= found.value <= found.high < math.inf:
        return Answer(point, found)
    return Answer(point, None, f"the model gives {found.value:g} {found.unit}, which nothing takes")


def answers(points: Iterable[Point]) -> Iterator[Answer]:
    """`answer` of each point, in their order."""
    return map(answer, points)
