"""Drawings: SVG from one source, which the HTML and the PDF both show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

FONT = "Libertinus Serif, Charter, Georgia, serif"
ACCENT, SECOND, GREY, INK = "#14477a", "#c05a00", "#9aa3ad", "#1c1f24"
# Where logarithmic axes of losses have their labels.
DECADES = [m * 10.0**e for e in range(-6, 2) for m in (1, 3)]


def drawn(chart: Any, width: int = 620, height: int = 300) -> str:
    """The SVG of an Altair chart in the document's look."""
    import vl_convert

    chart = chart.properties(width=width, height=height).configure(font=FONT)
    chart = chart.configure_axis(
        gridColor="#e9edf1", labelFontSize=12, titleFontSize=13, titleFontWeight="normal",
        labelColor=INK, titleColor=INK, domainColor="#7b8590", tickColor="#7b8590",
    )  # fmt: skip
    chart = chart.configure_view(stroke=None).configure_legend(
        labelFontSize=12, titleFontSize=12, titleFontWeight="normal"
    )
    svg: str = vl_convert.vegalite_to_svg(json.loads(chart.to_json()))
    # Vega writes a browser's generic word in front of every family.
    return svg.replace("&quot;", "'")


def data(rows: Sequence[dict[str, Any]]) -> Any:
    import altair as alt

    make: Any = alt.Data  # altair leaves it without types
    return make(values=list(rows))


FIELDS = {"sign": "#c9d3de", "exponent": "#f2d6b8", "trailing": "#cfe3d4", "integer": "#cfe3d4"}


def bit_layout(rows: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> str:
    """Boxes of bits, the highest first: per row its name and per bit (field, label)."""
    size, left, top = 34, 120, 22
    most = max(len(bits) for _, bits in rows)
    size = min(size, 640 // max(most, 1))
    width, height = left + most * size + 10, 14 + len(rows) * (size + top + 14)
    size_of = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    look = f'font-family="{FONT}" font-size="12"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size_of} {look}>']
    for i, (name, bits) in enumerate(rows):
        y = 12 + i * (size + top + 14) + top - 8
        parts.append(f'<text x="0" y="{y + size / 2 + 4}" fill="{INK}">{escape(name)}</text>')
        for k, (field, label) in enumerate(bits):
            x = left + k * size
            fill = FIELDS.get(field, "#ffffff")
            parts.append(
                f'<rect x="{x}" y="{y}" width="{size}" height="{size}" fill="{fill}" '
                f'stroke="{INK}" stroke-width="0.8"/>'
            )
            parts.append(
                f'<text x="{x + size / 2}" y="{y + size / 2 + 4}" text-anchor="middle" '
                f'fill="{INK}">{escape(label)}</text>'
            )
        parts += _heads(bits, left, y, size)
    return "".join([*parts, "</svg>"])


def _heads(bits: Sequence[tuple[str, str]], left: int, y: float, size: int) -> list[str]:
    """The name of each field above its boxes, where it fits."""
    found, start = [], 0
    for k in range(1, len(bits) + 1):
        if k == len(bits) or bits[k][0] != bits[start][0]:
            name, middle = bits[start][0], left + (start + k) / 2 * size
            if len(name) * 5.6 <= (k - start) * size + 8:
                found.append(
                    f'<text x="{middle}" y="{y - 5}" text-anchor="middle" font-size="10.5" '
                    f'fill="#5b6470">{escape(name)}</text>'
                )
            start = k
    return found
