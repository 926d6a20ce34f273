"""The paired difference is that of lowprec.eval, from records alone."""

from __future__ import annotations

import random

import pytest

from lowprec.eval.power import compare_records
from lowprec.proposal.paired import difference
from lowprec.spec import Record


def record(seed: int, windows: str = "w") -> Record:
    draw = random.Random(seed)
    tokens = [random.Random(7 + i).randrange(20, 300) for i in range(25)]
    sums = {name: [n * abs(draw.gauss(0.1, 0.05)) for n in tokens] for name in ("kl", "dnll")}
    return Record(
        kind="accuracy",
        subject={"model": {"name": "m", "digest": "d"}, "windows": windows, "recipe": str(seed)},
        metrics={},
        details={"by_cluster": {"tokens": tokens, **sums}},
        environment={},
    )


@pytest.mark.parametrize("metric", ["kl", "dnll"])
def test_it_is_that_of_eval(metric: str) -> None:
    first, second = record(1), record(2)
    found, wanted = difference(first, second, metric), compare_records(first, second, metric)
    assert found is not None
    ends = wanted.difference
    assert (found.value, found.low, found.high) == pytest.approx((ends.value, ends.low, ends.high))


def test_other_tokens_are_not_paired() -> None:
    assert difference(record(1), record(2, "others")) is None
    bare = record(3).model_copy(update={"details": {}})
    assert difference(record(1), bare) is None


def test_equal_records_do_not_differ() -> None:
    found = difference(record(1), record(1))
    assert found is not None
    assert not found.is_clear
    assert found.half == 0
