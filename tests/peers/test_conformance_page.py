"""What peers answer: every difference has a reason, every reason a difference, and all is told."""

from __future__ import annotations

import pytest
import torch

from tests.peers import documented, page
from tests.peers.case import Case, Reason, nan_input, show


def cases() -> list[Case]:
    return [*page.scalar_cases(), *page.block_cases()]


def test_every_difference_has_a_reason_and_every_reason_a_difference() -> None:
    found = [(c, c.unexplained()) for c in cases()]
    faults = [f"{c.peer} {c.what} {c.rule}: {fault}" for c, fault in found if fault]
    assert faults == []


@pytest.mark.parametrize("each", documented.documented(), ids=lambda d: f"{d.peer} {d.what}")
def test_recorded_answers_differ_where_it_says(each: documented.Documented) -> None:
    assert list(map(show, each.different())) == list(map(show, map(float, each.except_at)))
    assert bool(each.why) == bool(each.except_at)


def test_the_page_is_what_is_committed() -> None:
    assert page.page() == page.PAGE.read_text(), "run: python -m tests.peers.page"


def test_differences_and_reasons() -> None:
    x = torch.tensor([1.0, -0.0, float("nan"), 2.0])
    theirs = torch.tensor([1.0, 0.0, 0.0, 2.0])
    zero = Reason("loses the sign of zero", lambda c: c.x == 0)
    nan = Reason("has no NaN", nan_input)
    case = Case("p", "f", "r", x, x, theirs, (zero, nan))
    assert case.differ.tolist() == [False, True, True, False]
    assert [(n, e) for _, n, e in case.explained] == [
        (1, "-0 gives 0, here -0"),
        (1, "NaN gives 0, here NaN"),
    ]
    assert case.unexplained() == ""
    assert Case("p", "f", "r", x, x, theirs, (zero,)).unexplained() == (
        "1 unexplained: NaN gives 0, here NaN"
    )
    assert Case("p", "f", "r", x, x, x, (nan,)).unexplained() == (
        "no input differs because it 'has no NaN'"
    )


@pytest.mark.parametrize(
    ("x", "text"),
    [(0.1, "0.1"), (1.0 + 2.0**-30, "1073741825 * 2^-30"), (2.0**-149, "2^-149"),
     (-(2.0**40), "-2^40"), (-0.0, "-0"), (float("-inf"), "-Inf"), (16777215.0, "16777215")],
)  # fmt: skip
def test_numbers_read_back_as_themselves(x: float, text: str) -> None:
    assert show(x) == text
