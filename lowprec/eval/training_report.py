"""What training runs say together: differences to the baseline over seeds, and their curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowprec.errors import LowprecError
from lowprec.eval import statistics
from lowprec.spec.record import Record

# Distinct for the colour-blind (Okabe and Ito), the baseline's first.
COLOURS = (
    "#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999",
    "#8c564b", "#f0e442",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A recipe over its seeds. nll: mean final loss on what is held out, nats per byte. difference:
    to the baseline's with the same seeds, with its 95 % interval where there are two or more."""

    recipe: str
    seeds: tuple[int, ...]
    diverged: int
    nll: float | None
    difference: float | None
    interval: tuple[float, float] | None


def summarize(records: Sequence[Record], baseline: str) -> list[Row]:
    """One row per recipe, in the order of the records.

    Seeds stand for independent runs: a pair has the same initial weights and the same batches, so
    the difference of a pair says what the recipe did, and the spread of the pairs how sure that is
    (`statistics.mean`: Student's t over the seeds). Runs that diverged are counted and left out.
    LowprecError: no run of the baseline.
    """
    by_recipe: dict[str, dict[int, Record]] = {}
    for record in records:
        by_recipe.setdefault(record.subject["name"], {})[record.subject["seed"]] = record
    if baseline not in by_recipe:
        raise LowprecError(f"no run of the baseline {baseline!r} among {', '.join(by_recipe)}")
    finals = {
        name: {seed: r.metrics["nll"].value for seed, r in sorted(runs.items()) if r.metrics}
        for name, runs in by_recipe.items()
    }
    return [_row(name, by_recipe[name], finals[name], finals[baseline]) for name in by_recipe]


def _row(
    name: str, runs: dict[int, Record], final: dict[int, float], base: dict[int, float]
) -> Row:
    pairs = np.array([final[seed] - base[seed] for seed in final if seed in base])
    found = _interval(pairs)
    return Row(
        recipe=name,
        seeds=tuple(sorted(runs)),
        diverged=len(runs) - len(final),
        nll=float(np.mean(list(final.values()))) if final else None,
        difference=float(pairs.mean()) if len(pairs) else None,
        interval=found,
    )


def _interval(x: np.ndarray) -> tuple[float, float] | None:
    if len(x) < 2:
        return None
    found = statistics.mean(x, np.arange(len(x)))
    return found.low, found.high


def points(records: Sequence[Record], baseline: str) -> list[dict[str, Any]]:
    """Per recipe and scored step: the mean loss over seeds and the mean difference to the baseline,
    each with its 95 % interval (None with fewer than two seeds)."""
    scores: dict[str, dict[int, dict[int, float]]] = {}
    for record in records:
        steps = scores.setdefault(record.subject["name"], {})
        for step, value in record.details["scores"].items():
            if value is not None:
                steps.setdefault(int(step), {})[record.subject["seed"]] = value
    found = []
    for recipe, steps in scores.items():
        for step, values in sorted(steps.items()):
            base = scores.get(baseline, {}).get(step, {})
            pairs = np.array([v - base[s] for s, v in values.items() if s in base])
            nll = np.array(list(values.values()))
            row: dict[str, Any] = {"recipe": recipe, "step": step, "nll": float(nll.mean())}
            row["nll_low"], row["nll_high"] = _interval(nll) or (None, None)
            row["difference"] = float(pairs.mean()) if len(pairs) else None
            row["low"], row["high"] = _interval(pairs) or (None, None)
            found.append(row)
    return found


def write_chart(records: Sequence[Record], baseline: str, folder: Path) -> tuple[Path, Path]:
    """``curves.html``, which needs no network, and ``curves.png`` in `folder`."""
    import vl_convert

    spec = chart(points(records, baseline), baseline).to_dict()
    page, image = folder / "curves.html", folder / "curves.png"
    page.write_text(vl_convert.vegalite_to_html(spec, bundle=True))
    image.write_bytes(vl_convert.vegalite_to_png(spec, scale=2))
    return page, image


def chart(rows: list[dict[str, Any]], baseline: str) -> Any:
    """Altair's chart of `points`: the loss, and its difference to the baseline."""
    import altair as alt

    names = list(dict.fromkeys([baseline, *(row["recipe"] for row in rows)]))
    hues = [COLOURS[i % len(COLOURS)] for i in range(len(names))]
    colour = alt.Color("recipe:N").scale(domain=names, range=hues).legend(symbolOpacity=1)
    colour = colour.title("Recipe")
    data: Any = alt.Data
    base = alt.Chart(data(values=rows)).encode(
        x=alt.X("step:Q").title("Step").axis(tickMinStep=1, format="d"), color=colour
    )

    def panel(y: str, low: str, high: str, title: str, keep: str) -> Any:
        at = alt.Y(f"{y}:Q").title(title).scale(zero=False)
        shown = base.transform_filter(keep)
        band = shown.transform_filter(f"isValid(datum.{low})").mark_area(opacity=0.15)
        line = shown.mark_line(point=alt.OverlayMarkDef(size=18), strokeWidth=1.6)
        tips = ["recipe:N", "step:Q", *(f"{key}:Q" for key in (y, low, high))]
        return alt.layer(
            band.encode(y=alt.Y(f"{low}:Q"), y2=f"{high}:Q"), line.encode(y=at, tooltip=tips)
        ).properties(width=420, height=320)

    left = panel("nll", "nll_low", "nll_high", "Held-out loss (nats/byte)", "isValid(datum.nll)")
    keep = f"isValid(datum.difference) && datum.recipe !== '{baseline}'"
    right = panel("difference", "low", "high", f"Difference to {baseline} (nats/byte)", keep)
    title = alt.TitleParams(
        "Training loss by recipe",
        subtitle="mean over seeds; bands: 95 % intervals (Student's t over seeds)",
        anchor="start",
    )
    return (
        alt.hconcat(left, right, spacing=30)
        .properties(title=title)
        .configure(font="system-ui, 'Helvetica Neue', Arial, sans-serif")
    )
