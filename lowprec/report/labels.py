"""Where the labels of a scatter chart go: beside their points, and over nothing else.

Vega's own label transform needs a browser's canvas, so the image beside the page would have none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 480, 460  # of a panel, in pixels
PAD_X, PAD_Y = 40, 12
SYMLOG = 0.001  # the loss up to which the axis is linear
CHARACTER, LINE = 6.4, 12.0  # of a label at 10.5 px
POINT = 5.5  # half the width of a point

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Mark:
    """A point with its interval and label, in data units: x positive, the others any."""

    label: str
    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Place:
    """Pixels from a point to where its label is anchored: left edge, middle or right edge."""

    dx: int
    dy: int
    align: str


def place(marks: Sequence[Mark]) -> list[Place | None]:
    """A place for each mark's label, or None where it finds room nowhere. Deterministic.

    The panel is as the chart draws it: x logarithmic, y symmetric-logarithmic (linear to
    `SYMLOG`), both padded. Those with the fewest neighbours are placed last.
    """
    spots = pixels(marks)
    taken = [(x - POINT, y - POINT, x + POINT, y + POINT) for x, y, _, _ in spots]
    taken += [(x - 1.5, high, x + 1.5, low) for x, _, low, high in spots]
    crowd = [sum(math.dist(a[:2], b[:2]) < 60 for b in spots) for a in spots]
    places: list[Place | None] = [None] * len(marks)
    for i in sorted(range(len(marks)), key=lambda i: -crowd[i]):
        for candidate in _candidates():
            box = label_box(marks[i].label, spots[i], candidate)
            if _inside(box) and not any(_overlap(box, other) for other in taken):
                places[i] = candidate
                taken.append(box)
                break
    return places


def pixels(marks: Sequence[Mark]) -> list[tuple[float, float, float, float]]:
    """(x, y, y of low, y of high) of each mark, from the top left corner of the panel."""
    if not marks:
        return []
    xs = [math.log(m.x) for m in marks]
    ys = [_symlog(v) for m in marks for v in (m.low, m.high)]

    def across(v: float) -> float:
        return PAD_X + (WIDTH - 2 * PAD_X) * _share(v, min(xs), max(xs))

    def down(v: float) -> float:
        return HEIGHT - PAD_Y - (HEIGHT - 2 * PAD_Y) * _share(_symlog(v), min(ys), max(ys))

    return [(across(math.log(m.x)), down(m.y), down(m.low), down(m.high)) for m in marks]


def label_box(label: str, spot: tuple[float, ...], place: Place) -> Box:
    """Left, top, right, bottom of a label."""
    width = CHARACTER * len(label)
    left = spot[0] + place.dx - {"left": 0.0, "center": width / 2, "right": width}[place.align]
    top = spot[1] + place.dy - LINE / 2
    return left, top, left + width, top + LINE


def _candidates() -> list[Place]:
    """Beside the point first, then above and below, then the same farther off."""
    found = []
    for far in (0, 5, 11, 17, 23, 30):
        for dy in (0, -far, far) if far else (0,):
            found += [Place(9, dy, "left"), Place(-9, dy, "right")]
        found += [Place(0, -12 - far, "center"), Place(0, 13 + far, "center")]
    return found


def _symlog(v: float) -> float:
    return math.copysign(math.log1p(abs(v) / SYMLOG), v)


def _share(v: float, low: float, high: float) -> float:
    return (v - low) / (high - low) if high > low else 0.5


def _inside(box: Box) -> bool:
    return box[0] >= 0 and box[1] >= 0 and box[2] <= WIDTH and box[3] <= HEIGHT


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
