"""Heat maps of what each layer's operand costs, and the chart of accuracy against bits."""

from __future__ import annotations

import re
from typing import Any

from lowprec.report.charts import compile_chart
from lowprec.report.data import Candidate, Report
from lowprec.report.tables import Table

SENSITIVITY = ("path", "layer", "kind", "operand", "measure", "kl")
# The measures of a row of `lowprec sensitivity`, and their names.
MEASURES = {
    "one": "quantized alone (measured)",
    "others": "all but it quantized (measured)",
    "fisher": "quantized alone (Fisher proxy)",
}


def sensitivity_table(report: Report) -> Table:
    """One row per searched operand of a numbered layer and measure: KL in nats per token."""
    rows = []
    for row in report.sensitivity:
        path = row["path"]
        number = re.search(r"\.(\d+)\.", path)
        for key, name in MEASURES.items():
            value = row.get(key)
            kl = value["kl"] if isinstance(value, dict) else value
            if number is not None and kl is not None:
                kind = path.rpartition(".")[2]
                rows.append((path, int(number[1]), kind, row["operand"], name, float(f"{kl:.4g}")))
    return Table(SENSITIVITY, tuple(rows))


def heat_map(report: Report) -> dict[str, Any] | None:
    """Vega of KL by layer and module, a map per operand, the measure chosen in a list; the page
    fills the data set "sensitivity". None where nothing was measured."""
    import altair as alt

    table = sensitivity_table(report)
    if not table.rows:
        return None
    measures = list(dict.fromkeys(row[4] for row in table.rows))
    operands = list(dict.fromkeys(row[3] for row in table.rows))
    bind = alt.binding_select(options=measures, name="Measure: ")
    choice = alt.param(name="the_measure", bind=bind, value=measures[0])
    make: Any = alt.Data  # altair leaves it without types
    base = (
        alt.Chart(make(values=[], name="sensitivity"))
        .transform_filter("datum.measure === the_measure")
        .mark_rect()
        .encode(
            x=alt.X("layer:O").title("Layer").axis(labelAngle=0, labelOverlap=True),
            y=alt.Y("kind:N").title(None),
            color=alt.Color("kl:Q")
            .scale(type="symlog", constant=1e-4, scheme="viridis")
            .legend(title="KL (nats/token)", format="~g"),
            tooltip=["path:N", "operand:N", alt.Tooltip("kl:Q", title="KL (nats/token)")],
        )
    )
    maps = [
        base.transform_filter(f"datum.operand === '{operand}'").properties(
            width=900, height=150, title=operand.capitalize()
        )
        for operand in operands
    ]
    return compile_chart(alt.vconcat(*maps).add_params(choice).resolve_scale(color="shared"))


def bits_rows(report: Report) -> list[dict[str, Any]]:
    """Recipes and what a search measured, with bits, loss and its 95 % interval."""
    rows = [_recipe(c) for c in report.candidates]
    for each in report.searched:
        kl = each.get("metrics", {}).get("kl")
        if kl:
            bits = sum(each["bits"].values()) / len(each["bits"])
            low, high = kl["interval"]
            rows.append({"name": each["name"], "how": each["how"], "bits": round(bits, 3),
                         "kl": kl["value"], "low": low, "high": high})  # fmt: skip
    return [row for row in rows if row and row["kl"] > 0]


def _recipe(candidate: Candidate) -> dict[str, Any]:
    metric, ends = candidate.metric("kl"), candidate.interval("kl")
    known = [bits for bits in candidate.bits if bits is not None]
    if metric is None or ends is None or not known:
        return {}
    return {"name": candidate.name, "how": "recipe", "bits": sum(known) / len(known),
            "kl": metric.value, "low": ends[0], "high": ends[1]}  # fmt: skip


def bits_chart(report: Report) -> dict[str, Any] | None:
    """Vega of KL against mean bits per element, or None where nothing was measured."""
    import altair as alt

    rows = bits_rows(report)
    if not rows:
        return None
    make: Any = alt.Data
    title = "Mean bits per quantized element, scales included"
    base = alt.Chart(make(values=rows)).encode(
        x=alt.X("bits:Q").title(title).scale(zero=False),
        color=alt.Color("how:N").title("Found as").scale(scheme="tableau10"),
    )
    scale = alt.Scale(type="symlog", constant=1e-3)
    y = alt.Y("kl:Q", scale=scale).title("KL divergence (nats/token)")
    bars = base.mark_rule(opacity=0.7).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q")
    points = base.mark_point(filled=True, size=70).encode(
        y=y,
        shape=alt.Shape("how:N").title("Found as"),
        tooltip=["name:N", "bits:Q", "kl:Q", "low:Q", "high:Q"],
    )
    return compile_chart(alt.layer(bars, points).properties(width=760, height=380))


def bits_text(report: Report) -> str:
    """The chart in words, for those who do not see it."""
    rows = sorted(bits_rows(report), key=lambda row: row["bits"])
    return "; ".join(f"{r['name']}: {r['bits']:.3g} bits, KL {r['kl']:.3g}" for r in rows)


def heat_text(report: Report) -> str:
    """The map in words: the layers that cost the most."""
    table = sensitivity_table(report)
    first = table.rows[0][4] if table.rows else ""
    worst = sorted((row for row in table.rows if row[4] == first), key=lambda row: -row[5])[:5]
    listed = ", ".join(f"{row[0]} {row[3]} {row[5]:.3g}" for row in worst)
    return f"KL divergence in nats per token, {first}; the largest: {listed}"
