from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowprec.report.labels import HEIGHT, PAD_X, PAD_Y, WIDTH, Mark, label_box, pixels, place

losses = st.floats(-0.01, 10)


@st.composite
def marks(draw: st.DrawFn) -> list[Mark]:
    speeds = st.sampled_from([100.0, 200.0, 210.0, 400.0]) | st.floats(1, 1e6)
    found = []
    for i in range(draw(st.integers(0, 20))):
        low, y, high = sorted(draw(st.tuples(losses, losses, losses)))
        found.append(Mark(f"format {i}", draw(speeds), y, low, high))
    return found


@given(marks())
def test_no_label_covers_another_or_leaves_the_panel(found: list[Mark]) -> None:
    spots, places = pixels(found), place(found)
    boxes = [
        label_box(m.label, spot, p) for m, spot, p in zip(found, spots, places, strict=True) if p
    ]
    for left, top, right, bottom in boxes:
        assert left >= 0
        assert top >= 0
        assert right <= WIDTH
        assert bottom <= HEIGHT
    for a, b in combinations(boxes, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    for x, y, _, _ in spots:
        assert not any(a[0] < x < a[2] and a[1] < y < a[3] for a in boxes)


def test_pixels_are_of_a_logarithmic_and_a_symlog_axis() -> None:
    a, b, c = (Mark("m", x, y, y, y) for x, y in ((1.0, 0.0), (10.0, 0.001), (100.0, 0.003)))
    (xa, ya, _, _), (xb, yb, _, _), (xc, yc, _, _) = pixels([a, b, c])
    assert (xa, xc) == (PAD_X, WIDTH - PAD_X)
    assert xb == pytest.approx((xa + xc) / 2)
    assert (ya, yc) == (HEIGHT - PAD_Y, PAD_Y)
    # log1p(y / 0.001) is log 2 and log 4.
    assert (ya - yb) / (ya - yc) == pytest.approx(math.log(2) / math.log(4))


def test_a_lonely_point_has_its_label_to_the_right_and_a_crowd_has_most() -> None:
    (only,) = place([Mark("only", 3.0, 0.1, 0.05, 0.2)])
    assert only is not None
    assert (only.align, only.dy) == ("left", 0)
    crowd = [Mark(f"format {i}", 100.0, y, y, y) for i, y in enumerate((0.03, 0.031, 0.032, 0.037))]
    assert all(place([*crowd, Mark("far", 1e4, 3.0, 3.0, 3.0)]))
