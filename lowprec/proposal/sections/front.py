"""The Pareto front of loss and throughput, from the study's records."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from lowprec.errors import LowprecError
from lowprec.perf import estimate, load_workload
from lowprec.perf import machine as load_machine
from lowprec.perf.datapath import choose
from lowprec.proposal.charts import ACCENT, DECADES, GREY, SECOND, data, drawn
from lowprec.proposal.document import Block, Figure, Paragraph
from lowprec.proposal.evidence import Cell
from lowprec.proposal.pricing import datapath, uniform
from lowprec.proposal.sections import words
from lowprec.proposal.subject import Comparison, Proposal, kl
from lowprec.spec import Format, load_format

# How near two points are whose names would cross, as shares of the chart's sides.
NEAR = (0.16, 0.07)


@dataclass(frozen=True)
class Place:
    """Where the study's throughput is compared: its first model, machine and pass."""

    model: str
    machine: str
    workload: str


@dataclass(frozen=True)
class Point:
    """kind: proposed, baseline or other. native: a datapath takes the operands as stored. front:
    no other point is as fast and as accurate. below: its name stands under it."""

    name: str
    kl: float
    speed: float
    native: bool
    kind: str
    front: bool = True
    below: bool = False


def front(p: Proposal) -> list[Block] | None:
    """Text and figure; None where fewer than two recipes have both records."""
    if not p.comparisons or not p.evidence.plan.get("throughput"):
        return None
    c = p.comparisons[0]
    place, points = _points(p, c)
    if place is None or len(points) < 2:
        return None
    points += _what_if(p, c, place) if not _is_native(points) else []
    points = _named(_marked(points))
    dominated = [f"`{point.name}`" for point in points if not point.front]
    return [
        Paragraph(
            f"Accuracy on {c.model} ({c.ours.record.details['tokens']:,} tokens); throughput by "
            f"the datasheet roofline, as in the study's records: {place.model} on {place.machine}, "
            f"{place.workload}, per chip. Recipes that quantize the same operands. Dominated "
            "(another one is as fast and as accurate, and better in one): "
            f"{words.listed(dominated) or 'none'}."
        ),
        Figure(
            "pareto",
            f"Loss on {c.model} against modelled throughput of {place.model} on {place.machine} "
            f"({place.workload}). Line: the Pareto front. Rings: converted on the way. What-if: "
            "with a datapath for the format, as fast as the one that runs the baseline.",
            _draw(points),
            "; ".join(f"{r.name}: KL {r.kl:.3g}, {r.speed:.4g} tokens/s" for r in points),
            "accuracy and throughput records in `records/`; the what-if is `lowprec.perf.estimate`",
        ),
    ]


def _points(p: Proposal, c: Comparison) -> tuple[Place | None, list[Point]]:
    """Each compared cell with the speed of its recipe."""
    asked = p.evidence.plan["throughput"]
    model, machine = str(asked["models"][0]), str(asked["machines"][0])
    by_recipe = {
        cell.record.subject["recipe"]: cell.record.details["workloads"][0]
        for cell in p.evidence.throughput
        if cell.model == model and cell.record.subject["machine"]["name"] == machine
    }
    place, points = None, []
    for cell in c.cells:
        line = by_recipe.get(cell.record.subject["recipe"])
        if line is not None and kl(cell) > 0:
            place = Place(model, machine, line["workload"])
            speed, native = line["tokens_per_second_per_chip"], not line["fallbacks"]
            points.append(Point(cell.candidate.name, kl(cell), speed, native, _kind(p, cell)))
    return place, points


def _kind(p: Proposal, cell: Cell) -> str:
    if cell.only(p.ours.format):
        return "proposed"
    return "baseline" if p.baseline is not None and cell.only(p.baseline.format) else "other"


def _is_native(points: list[Point]) -> bool:
    return all(point.native for point in points if point.kind == "proposed")


def _what_if(p: Proposal, c: Comparison, place: Place) -> list[Point]:
    """The format with a datapath of its own; nothing where the baseline or the model is unknown."""
    unit, baseline = p.ours.unit, p.baseline
    if unit is None or baseline is None:
        return []
    grid = p.evidence.plan["throughput"]["workloads"][0]
    try:
        machine = load_machine(place.machine)
        work = load_workload(place.model).at(grid["batch"][0], grid["tokens"], grid["context"])
        dtype = load_format("bfloat16")
        assert isinstance(dtype, Format)
        path = choose(machine.datapaths, baseline.format, baseline.format, dtype, machine.name)
        paths = (*machine.datapaths, datapath(unit, path.datapath.rate.value))
        changed = machine.model_copy(update={"datapaths": paths, "aliases": ()})
        found = estimate(work, uniform(p.ours.quantizer), changed, level="bound")
    except LowprecError:
        return []
    speed = found.tokens_per_second_per_chip
    return [Point(f"{p.name}, what-if", kl(c.ours), speed, True, "proposed")]


def _marked(points: list[Point]) -> list[Point]:
    def beaten(point: Point) -> bool:
        return any(
            other.kl <= point.kl
            and other.speed >= point.speed
            and (other.kl, other.speed) != (point.kl, point.speed)
            for other in points
        )

    return [replace(point, front=not beaten(point)) for point in points]


def _named(points: list[Point]) -> list[Point]:
    """Names go under their points where one above would cross another's."""
    wide = max(x.speed for x in points) - min(x.speed for x in points) or 1.0
    high = math.log(max(x.kl for x in points) / min(x.kl for x in points)) or 1.0
    placed: list[Point] = []
    for point in sorted(points, key=lambda x: -x.kl):
        near = [
            other
            for other in placed
            if abs(other.speed - point.speed) < NEAR[0] * wide
            and abs(math.log(other.kl / point.kl)) < NEAR[1] * high
        ]
        placed.append(replace(point, below=any(not other.below for other in near)))
    return placed


def _draw(points: list[Point]) -> str:
    import altair as alt

    x = alt.X("speed:Q", title="modelled tokens per second per chip").scale(zero=False, padding=40)
    y = alt.Y("kl:Q", title="KL, nats per token (log)").scale(type="log", padding=18)
    y = y.axis(values=DECADES, format="~g")
    kinds = ["proposed", "baseline", "other"]
    color = alt.Color("kind:N", legend=None).scale(domain=kinds, range=[ACCENT, SECOND, GREY])
    text = alt.Color("kind:N", legend=None).scale(domain=kinds, range=[ACCENT, SECOND, "#4d565f"])
    base = alt.Chart(data([asdict(point) for point in points])).encode(x=x, y=y)
    line = base.transform_filter("datum.front").mark_line(
        strokeDash=[5, 4], color="#7b8590", strokeWidth=1.2
    )
    dots = base.transform_filter("datum.native").mark_point(filled=True, size=80, opacity=1)
    rings = base.transform_filter("!datum.native").mark_point(
        filled=False, size=70, strokeWidth=1.8, opacity=1
    )
    names = [
        base.transform_filter(f"{'' if below else '!'}datum.below")
        .mark_text(dy=dy, fontSize=11)
        .encode(text="name:N", color=text)
        for below, dy in ((False, -12), (True, 14))
    ]
    layers = [line.encode(order="speed:Q"), dots.encode(color=color), rings.encode(color=color)]
    return drawn(alt.layer(*layers, *names).resolve_scale(color="independent"), height=340)
