"""Rows of experts under a router that likes some of them more."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lowprec.perf import machine
from lowprec.perf.kernel.routing import spread
from lowprec.perf.price import price
from lowprec.spec import Format, Matmul, load_format

BF16 = load_format("bfloat16")
assert isinstance(BF16, Format)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([256, 4096, 65536]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([8, 64, 256]),
    st.sampled_from([0.0, 0.5, 1.0, 1.01, 1.2, 2.0]),
)
def test_rows_are_all_given_out(tokens: int, top_k: int, experts: int, skew: float) -> None:
    rows = spread(tokens * top_k, tokens, experts, 1, skew)
    busy = sum(count for _, count in rows)
    assert 0 < busy <= experts
    assert all(1 <= m <= max(tokens, tokens * top_k / experts) for m, _ in rows)
    given_out = sum(m * count for m, count in rows)
    # An expert takes a token once, so that very uneven shares of many rows don't fit.
    assert given_out <= 1.05 * tokens * top_k + experts
    if top_k == 1:
        assert given_out == pytest.approx(tokens, rel=0.05, abs=experts)


def test_more_skew_reaches_fewer_experts() -> None:
    busy = [sum(c for _, c in spread(512, 64, 256, 1, skew)) for skew in (0.0, 0.8, 1.2)]
    assert busy == sorted(busy, reverse=True)
    assert busy[-1] < 0.8 * busy[0]


def test_price_takes_the_skew() -> None:
    op = Matmul(kind="matmul", path="experts", m=512, n=4096, k=4096, experts=128, top_k=8)
    chip = machine("h100_sxm")
    even = price(op, None, chip, BF16, "kernel")
    assert price(op, None, chip, BF16, "kernel", skew=0.0) == even
    skewed = price(op, None, chip, BF16, "kernel", skew=1.2)
    assert skewed.bytes < even.bytes
    assert skewed.seconds.total < even.seconds.total
    dense = op.model_copy(update={"experts": 1, "top_k": 1})
    assert price(dense, None, chip, BF16, "kernel", skew=1.2) == price(
        dense, None, chip, BF16, "kernel"
    )


def test_busiest_of_many_groups_has_more_rows() -> None:
    alone = sum(m * c for m, c in spread(4096, 8192, 32, 1, 1.2))
    busiest = sum(m * c for m, c in spread(4096, 8192, 32, 8, 1.2))
    assert busiest > 1.1 * alone
