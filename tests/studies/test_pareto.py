from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lowprec.studies.pareto import pareto

NAN = float("nan")


def brute(points: list[tuple[float, float]]) -> list[bool]:
    """The definition, pair by pair."""

    def beats(a: tuple[float, float], b: tuple[float, float]) -> bool:
        return a[0] <= b[0] and a[1] >= b[1] and a != b

    real = [p for p in points if p[0] == p[0] and p[1] == p[1]]
    return [p in real and not any(beats(q, p) for q in real) for p in points]


def test_a_small_example() -> None:
    points = [(0.0, 1.0), (0.1, 5.0), (0.2, 4.0), (0.3, 9.0), (0.1, 5.0), (0.0, 0.5)]
    assert pareto(points) == [True, True, False, True, True, False]


def test_nothing_and_nan() -> None:
    assert pareto([]) == []
    assert pareto([(NAN, 9.0), (1.0, 1.0), (0.0, NAN)]) == [False, True, False]
    assert pareto([(float("inf"), 2.0), (0.0, 1.0)]) == [True, True]


few = st.integers(0, 4).map(float) | st.just(NAN)


@given(st.lists(st.tuples(few, few), max_size=12))
def test_it_is_the_definition(points: list[tuple[float, float]]) -> None:
    assert pareto(points) == brute(points)
