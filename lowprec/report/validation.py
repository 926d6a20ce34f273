"""The page docs/validation.md: error tables and charts of the throughput model's validation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowprec.perf.validation.table import Error, Row

HEAD = """# Validation of the throughput model

Written by `lowprec validate --docs docs`. Each file under `benchmarks/validation` holds published
measurements with their sources; each row is predicted as `lowprec validate --points FILE` would.
Errors are of predicted over measured; coverage is the share of measurements within the 90 %
interval that the prediction comes with. The sets without "left out" in their name are those that
the constants were fitted to, but for servers that prefill and decode on chips of their own
("apart"), of which two shares of waiting are; in the others the matmuls of half of the (N, K)
sites, of one path of one machine, or of a whole machine were predicted from constants fitted
without them. A machine left out here is a whole generation, but for MI300X and MI308X (there is one
of each NVIDIA family, one of CDNA 4): a new member of a family that has points is closer. The
spreads that the fit allows were chosen by these same tables, so that what is left out is a little
less unseen than it looks.

Regimes are rows of the activation: small up to 256, medium up to 2048, large above. The matmuls of
`speedups.csv` are of (N, K) that the constants were not fitted to. A100's weight-only and int8
matmuls were timed one by one: 7 us between kernels are added to their predictions.
"""
SPEEDUP = "speed-up over bf16"
CHARTS = (
    ("validation.png", "Predicted over measured, by set"),
    ("validation_matmuls.png", "Matmuls with their machine left out, by machine and path"),
)


def write_page(folder: Path, errors: Sequence[Error], table: Sequence[Row], refused: int) -> None:
    """Writes validation.md and its two charts into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    sets = _chart(errors, lambda e: e.set)
    machines = [e for e in errors if e.set.endswith("machine left out")]
    for (name, title), chart in zip(
        CHARTS, (sets, _chart(machines, lambda e: f"{e.chip} {e.format}")), strict=True
    ):
        chart.properties(title=title).save(folder / name, scale_factor=1.5)
    lines = [HEAD]
    lines += [f"![{title}]({name})\n" for name, title in CHARTS]
    for by in dict.fromkeys(row.by for row in table):
        lines += [f"## By {by}", "", *_table([row for row in table if row.by == by]), ""]
    lines += ["## Speed-ups over bf16", "", *_speedups(errors), ""]
    lines.append(f"{refused} rows were answered with a reason instead of a number.")
    (folder / "validation.md").write_text("\n".join(lines) + "\n")


def _table(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| | points | median | mean | p90 | bias | coverage |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        shares = (f"{v:.1%}" for v in (r.median, r.mean, r.p90))
        lines.append(
            f"| {r.value} | {r.points} | {' | '.join(shares)} | {r.bias:+.1%} | {r.coverage:.0%} |"
        )
    return lines


def _speedups(errors: Sequence[Error]) -> list[str]:
    """Medians by chip, format and regime: measured, predicted, and with the format left out."""
    groups: dict[tuple[str, str, str], dict[str, list[Error]]] = {}
    for e in errors:
        if e.set.startswith(SPEEDUP):
            sets = groups.setdefault((e.chip, e.format, e.regime), {})
            sets.setdefault("unseen" if e.set != SPEEDUP else "seen", []).append(e)
    lines = [
        "| chip | format | M | measured | predicted | error | format left out | error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for key, sets in sorted(groups.items()):
        measured = median(e.measured for e in sets["seen"])
        cells = [f"{measured:.2f}x"]
        for name in ("seen", "unseen"):
            some = sets.get(name, [])
            if some:
                cells.append(f"{median(e.predicted for e in some):.2f}x")
                cells.append(f"{median(abs(e.relative) for e in some):.1%}")
        lines.append(f"| {' | '.join((*key, *cells))} |")
    return lines


def _chart(errors: Sequence[Error], label: Any) -> Any:
    """Quantiles of predicted over measured, one bar per label: 5 to 95 %, half, and the median."""
    import altair as alt

    make: Any = alt.Data  # altair leaves it without types
    groups: dict[str, list[float]] = {}
    for error in errors:
        groups.setdefault(label(error), []).append(error.predicted / error.measured)
    data = [{"group": name} | _quantiles(sorted(values)) for name, values in groups.items()]
    base = alt.Chart(make(values=data)).encode(
        y=alt.Y("group:N").sort(None).title(None).axis(labelLimit=320)
    )
    scale = alt.Scale(type="log", domain=[0.4, 2.5], clamp=True)
    axis = alt.Axis(values=[0.5, 0.67, 0.8, 1, 1.25, 1.5, 2])
    x = alt.X("low:Q").scale(scale).axis(axis).title("predicted / measured (log scale)")
    thin = base.mark_rule(color="#0072b2").encode(x=x, x2="high:Q")
    thick = base.mark_bar(height=8, color="#0072b2", opacity=0.5).encode(
        x=alt.X("quarter:Q").scale(scale), x2="three_quarters:Q"
    )
    tick = base.mark_tick(color="black", thickness=2).encode(x=alt.X("median:Q").scale(scale))
    exact = alt.Chart(make(values=[{"x": 1}])).mark_rule(strokeDash=[3, 3]).encode(x="x:Q")
    return (exact + thin + thick + tick).properties(width=480)


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    at = {"low": 0.05, "quarter": 0.25, "median": 0.5, "three_quarters": 0.75, "high": 0.95}
    return {name: values[min(len(values) - 1, int(q * len(values)))] for name, q in at.items()}
