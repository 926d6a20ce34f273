"""SQNR against area times memory: the catalogue and a random sweep of block formats.

    python evals/format_silicon.py [--formats 400] [--out evals/results/format-silicon]

The manner is that of the shared-microexponents study (arXiv 2302.08007): the signal-to-noise ratio
of quantized normal numbers, and the area of a dot product times the bits of an element, both
against FP8. Areas are the structural model's (`lowprec.perf.datapath_cost`); published points are
those of benchmarks/validation/datapath_cost.csv. Below it, of the formats that whole models ran
with (evals/results/whole-models), the perplexity of their linear layers over the unquantized one.
Writes points.csv and chart.png.
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from lowprec.errors import LowprecError
from lowprec.kernels import fake_quantize
from lowprec.perf.published import per_lane
from lowprec.spec import BlockFormat, FloatFormat, Format, Quantizer, list_formats, load_format
from lowprec.spec.default_datapath import passes

RECORDS = Path(__file__).parent / "results" / "whole-models"
ROWS, LENGTH, LANES = 128, 1024, 64
SEED = 0
RULES = {True: "rceil", False: "amax"}  # of scales that are powers of two, and of others


@dataclass(frozen=True)
class Point:
    """window: fraction bits of the sum, 0 for today's. cost: area per product, of units that need
    several passes for one times these, times bits per element, in those of FP8 E4M3 with a window
    of 25."""

    name: str
    kind: str
    window: int
    bits: float
    sqnr: float
    cost: float


def main(
    formats: Annotated[int, typer.Option(min=0, help="Random formats.")] = 400,
    out: Annotated[Path, typer.Option(help="Folder.")] = Path("evals/results/format-silicon"),
) -> None:
    """Measure and draw."""
    x = _numbers()
    base = per_lane(load_format("float8_e4m3fn"), LANES) * 8
    named = [(load_format(name), 0) for name in list_formats()]
    drawn = list(_random_formats(formats))
    points = [p for fmt, window in named + drawn if (p := _point(fmt, window, x, base)) is not None]
    out.mkdir(parents=True, exist_ok=True)
    with (out / "points.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(points[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(_rounded(asdict(p)) for p in points)
    _draw([*points, *_published(points)], out / "chart.png")
    print(f"{len(points)} formats in {out}")


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}


def _numbers() -> torch.Tensor:
    """Normal numbers of a variance that is drawn per row, as tensors of a network have."""
    generator = torch.Generator().manual_seed(SEED)
    spread = torch.rand(ROWS, 1, generator=generator) * 4 - 2
    return torch.randn(ROWS, LENGTH, generator=generator) * torch.exp2(spread)


def _point(fmt: Format | BlockFormat, window: int, x: torch.Tensor, base: float) -> Point | None:
    """None where there is no unit for the format, or no rule."""
    bits = fmt.bits_per_element if isinstance(fmt, BlockFormat) else float(fmt.bits)
    if bits > 16:
        return None
    try:
        cost = per_lane(fmt, LANES, window or None) * passes(fmt) * bits / base
        y = fake_quantize(x, _quantizer(fmt))
    except (LowprecError, ValueError):
        return None
    # Of each row by itself: the mean of the ratios in decibels.
    ratio = (x**2).sum(1) / ((x - y) ** 2).sum(1).clamp_min(1e-30)
    kind = "random" if window else "catalogue"
    return Point(fmt.name, kind, window, bits, float((10 * torch.log10(ratio)).mean()), cost)


def _quantizer(fmt: Format | BlockFormat) -> Quantizer:
    """With the scale rule that suits it; scalars get a float32 scale per row."""
    if not isinstance(fmt, BlockFormat):
        scaled = load_format(f"{fmt.name}_channel") if _fits(fmt) else None
        if not isinstance(scaled, BlockFormat):
            raise LowprecError(f"{fmt.name}: no scale per channel")
        return Quantizer(format=scaled, rule="amax")
    if fmt.zero_point is not None or fmt.offset is not None:
        return Quantizer(format=fmt, rule="minmax")
    powers = isinstance(fmt.scale, FloatFormat) and fmt.scale.precision == 1
    return Quantizer(format=fmt, rule=RULES[powers and fmt.outer is None])  # type: ignore[arg-type]


def _fits(fmt: Format) -> bool:
    return fmt.min_exact < 0 and fmt.bits <= 16


def _random_formats(count: int) -> Iterator[tuple[BlockFormat, int]]:
    """Elements of 1 to 5 exponent and up to 6 trailing bits, and windows of 10 to 35 bits."""
    draw = random.Random(SEED)
    scales = [load_format(name) for name in ("float8_e8m0fnu", "float8_e4m3fn", "ufloat8_e5m3")]
    for k in range(count):
        e = draw.randint(1, 5)
        m = draw.randint(max(0, 2 - e), 6)
        element = FloatFormat(
            name=f"e{e}m{m}", kind="float", bits=1 + e + m, precision=m + 1, bias=(1 << (e - 1)) - 1
        )
        scale, block = draw.choice(scales), draw.choice([8, 16, 32, 64, 128])
        name = f"e{e}m{m}_{scale.name}_{block}_{k}"
        yield (
            BlockFormat(name=name, element=element, scale=scale, block=(block,)),
            draw.randint(10, 35),
        )


def _published(points: list[Point]) -> list[Point]:
    """The study's costs, at the SQNR that we measure for the same formats."""
    found = {p.name: p for p in points}
    path = Path(__file__).parents[1] / "benchmarks" / "validation" / "datapath_cost.csv"
    with path.open() as file:
        rows = [r for r in csv.DictReader(file) if r["metric"] == "area x memory"]
    ours = {"MX9": "mx9", "MX6": "mx6", "MX4": "mx4", "FP8 (E4M3/E5M2 dual)": "float8_e4m3fn"}
    pairs = [(row, found.get(ours[row["format"]])) for row in rows]
    return [
        Point(row["format"], "published", p.window, p.bits, p.sqnr, float(row["value"]))
        for row, p in pairs
        if p is not None
    ]


def _perplexities(points: list[Point]) -> list[dict[str, Any]]:
    """Of each model and format whose linear layers have it for both operands, and nothing else."""
    known, found = {p.name: p for p in points if p.kind == "catalogue"}, []
    for path in sorted(RECORDS.glob("*/*.json")):
        record = json.loads(path.read_text())
        rows = [c for c in record["details"]["coverage"] if c["operands"] != "kept"]
        used = {(c["kind"], c["weight"].split("/")[0], c["activation"].split("/")[0]) for c in rows}
        kind, weight, activation = used.pop() if len(used) == 1 else ("", "", "")
        if kind != "linear" or weight != activation or weight not in known:
            continue
        p, model = known[weight], record["subject"]["model"]["name"]
        ratio = math.exp(record["metrics"]["dnll"]["value"])
        found.append({"name": p.name, "cost": p.cost, "model": model, "ratio": ratio})
    return found


def _draw(points: list[Point], path: Path) -> None:
    import altair as alt
    import vl_convert

    data = alt.Data(values=[asdict(p) for p in points])
    x = alt.X("cost:Q", scale=alt.Scale(type="log"), title="area x memory, FP8 E4M3 = 1")
    y = alt.Y("sqnr:Q", title="SQNR of normal numbers, dB")
    color = alt.Color(
        "kind:N",
        scale=alt.Scale(
            domain=["random", "catalogue", "published"], range=["#c8c8c8", "#1f77b4", "#d62728"]
        ),
        title=None,
    )
    size = alt.condition(alt.datum.kind == "random", alt.value(16), alt.value(45))
    dots = alt.Chart(data).mark_point(filled=True).encode(x=x, y=y, color=color, size=size)
    words = (
        alt.Chart(data)
        .transform_filter(alt.datum.kind != "random")
        .mark_text(align="left", dx=5, fontSize=8)
        .encode(x=x, y=y, text="name:N", color=color)
    )
    chart = (dots + words).properties(width=900, height=560)
    if models := _perplexities(points):
        base = alt.Chart(alt.Data(values=models)).encode(
            x=x,
            y=alt.Y("ratio:Q", scale=alt.Scale(type="log"), title="perplexity / unquantized"),
            color="model:N",
        )
        names = base.mark_text(align="left", dx=6, fontSize=8).encode(text="name:N")
        below = (base.mark_point(filled=True, size=45) + names).properties(width=900, height=220)
        chart = alt.vconcat(chart, below).resolve_scale(color="independent")
    path.write_bytes(vl_convert.vegalite_to_png(chart.to_dict(), scale=1.5))


if __name__ == "__main__":
    typer.run(main)
