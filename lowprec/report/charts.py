"""The charts, built with Altair and compiled to Vega, which can place labels without overlap."""

from __future__ import annotations

import json
from typing import Any

from lowprec.report.data import Report
from lowprec.report.labels import HEIGHT, PAD_X, PAD_Y, SYMLOG, WIDTH, Mark, place
from lowprec.report.tables import Table, layer_table, price_table

# Bits per weight, from few to many; one hue per class, readable by the colour-blind.
CLASSES = {4: "#d55e00", 6: "#cc79a7", 8: "#0072b2", 16: "#009e73", 32: "#555555"}
LOSSES = (
    ("kl", "KL divergence to the unquantized model (nats/token)", "front_kl"),
    ("dnll", "ΔNLL to the unquantized model (nats/token)", "front_dnll"),
)
TICKS = [-1, -0.1, -0.01, 0, 0.001, 0.01, 0.1, 1, 10]


def bit_class(bits: float | None) -> str:
    """The class of a weight's bits in the legend: the widest class that is not wider."""
    if bits is None:
        return "kept"
    return f"{max((c for c in CLASSES if c <= bits), default=min(CLASSES))}-bit"


def losses(report: Report) -> list[dict[str, Any]]:
    """One row per recipe that loses anything: losses with 95 % intervals, and how it is drawn.

    A recipe without any effect is the reference itself, the zero of both axes; a point for it
    would only press the others together."""
    rows = []
    for c in report.candidates:
        row: dict[str, Any] = {"recipe": c.name, "scope": c.scope, "bits": bit_class(c.bits[0])}
        for key, _, _ in LOSSES:
            metric, ends = c.metric(key), c.interval(key)
            if metric is None or ends is None:
                break
            row |= {key: metric.value, f"{key}_lo": ends[0], f"{key}_hi": ends[1]}
        else:
            if any(row[key] for key, _, _ in LOSSES):
                rows.append(row)
    return rows


def main_chart(report: Report, interactive: bool = True) -> dict[str, Any] | None:
    """Vega of loss against tokens per second per chip, or None where a half is missing.

    interactive=False filters the data to what is shown first, for an image. Otherwise the data
    set "prices" is left empty for the page to fill in.
    """
    import altair as alt

    accuracy = losses(report)
    if not accuracy or report.shown is None:
        return None
    prices = price_table(report)
    rows = [] if interactive else _shown(report, place_labels(prices, accuracy))
    params, selected = _selectors(report, prices)
    base = alt.Chart(_data(rows, "prices"))
    panels = [
        _panel(base.transform_filter(selected), accuracy, *loss).properties(
            width=WIDTH, height=HEIGHT
        )
        for loss in LOSSES
    ]
    chart = alt.hconcat(*panels, spacing=30).resolve_scale(color="shared", shape="shared")
    chart = chart.add_params(*params) if interactive else chart.properties(title=_title(report))
    if not interactive:
        chart = chart.add_params(*[alt.param(name=p.name, value=p.param.value) for p in params])
    return compile_chart(chart)


def main_text(report: Report) -> str:
    """The main chart in words, for those who do not see it."""
    speeds = {
        p.candidate: p.tokens_per_second
        for p in report.prices
        if (p.model, p.machine, p.workload) == report.shown
    }
    shown = ", ".join(report.shown or ())
    points = "; ".join(
        f"{row['recipe']}: KL {row['kl']:.3g}, {speeds[row['recipe']]:.4g} tokens/s"
        for row in losses(report)
        if row["recipe"] in speeds
    )
    return f"Loss against modelled tokens per second per chip ({shown}). {points}"


def _title(report: Report) -> Any:
    import altair as alt

    model, machine, workload = report.shown or ("", "", "")
    lines = f"throughput: modelled for {model} on {machine}, {workload} · accuracy: {report.title}"
    return alt.TitleParams(
        "Accuracy lost and throughput modelled, per number format",
        subtitle=[lines, "bars: 95 % confidence intervals; line: Pareto front"],
        anchor="start",
        fontSize=16,
    )


def _shown(report: Report, table: Table) -> list[dict[str, Any]]:
    return [
        row
        for row in table.records()
        if (row["model"], row["machine"], row["workload"]) == report.shown
    ]


def _selectors(report: Report, table: Table) -> tuple[list[Any], Any]:
    import altair as alt

    params = []
    for key, value in zip(("model", "machine", "workload"), report.shown or (), strict=True):
        at = table.columns.index(key)
        options = list(dict.fromkeys(row[at] for row in table.rows))
        bind = alt.binding_select(options=options, name=f"{key.capitalize()}: ")
        params.append(alt.param(name=f"the_{key}", bind=bind, value=value))
    tests = (f"datum.{p.name.removeprefix('the_')} === {p.name}" for p in params)
    return params, " && ".join(tests)


def _panel(base: Any, accuracy: list[dict[str, Any]], key: str, title: str, front: str) -> Any:
    import altair as alt

    fields = ["scope", "bits", key, f"{key}_lo", f"{key}_hi"]
    base = base.transform_lookup("recipe", alt.LookupData(_data(accuracy), "recipe", fields))
    base = base.transform_filter(f"isValid(datum.{key})").encode(
        x=alt.X("tokens_per_second:Q")
        .scale(type="log", nice=False, padding=PAD_X)
        .axis(format="~s", grid=True, tickCount=6)
        .title("Modelled tokens per second per chip (log scale)")
    )
    scale = alt.Scale(type="symlog", constant=SYMLOG, nice=False, padding=PAD_Y)
    y = alt.Y(f"{key}:Q", scale=scale, axis=alt.Axis(values=TICKS, format="~g")).title(title)
    names = [f"{c}-bit" for c in CLASSES] + ["kept"]
    used = [n for n in names if any(row["bits"] == n for row in accuracy)]
    hues = dict(zip(names, [*CLASSES.values(), "#999999"], strict=True))
    color = (
        alt.Color("bits:N")
        .scale(domain=used, range=[hues[n] for n in used])
        .legend(title="Weight", orient="bottom")
    )
    tooltip = [
        alt.Tooltip("recipe:N", title="recipe"),
        alt.Tooltip("tokens_per_second:Q", title="tokens/s per chip", format=".4s"),
        alt.Tooltip(f"{key}:Q", title="loss (nats/token)", format=".4g"),
        alt.Tooltip(f"{key}_lo:Q", title="95 % from", format=".4g"),
        alt.Tooltip(f"{key}_hi:Q", title="95 % to", format=".4g"),
        alt.Tooltip("bound:N", title="bound by"),
        alt.Tooltip("chips:Q", title="chips that hold the model"),
        alt.Tooltip("native:N", title="native datapath"),
    ]
    line = base.transform_filter(f"datum.{front}").mark_line(
        interpolate="linear", strokeDash=[5, 4], color="#aaaaaa", strokeWidth=1.1
    )
    bars = base.mark_rule(strokeWidth=1.6, opacity=0.7)
    points = base.mark_point(filled=True, size=75, opacity=0.95, stroke="white", strokeWidth=0.6)
    text = base.mark_text(fontSize=10.5)
    return alt.layer(
        line.encode(y=y, order="tokens_per_second:Q"),
        bars.encode(y=alt.Y(f"{key}_lo:Q", scale=scale), y2=f"{key}_hi:Q", color=color),
        points.encode(
            y=y,
            color=color,
            shape=alt.Shape("scope:N").legend(title="Quantized", orient="bottom"),
            tooltip=tooltip,
        ),
        text.encode(y=y, text="recipe:N", color=color).transform_filter(f"isValid(datum.{key}_dx)"),
    )


def layer_chart(report: Report) -> dict[str, Any] | None:
    """Vega of the signal-to-quantization-noise ratio by layer, the recipe chosen in a list; the
    page fills the data set "layers"."""
    import altair as alt

    table = layer_table(report)
    if not table.rows:
        return None
    names = list(dict.fromkeys(row[0] for row in table.rows))
    bind = alt.binding_select(options=names, name="Recipe: ")
    choice = alt.param(name="the_recipe", bind=bind, value=names[0])
    base = (
        alt.Chart(_data([], "layers"))
        .transform_filter("datum.recipe === the_recipe")
        .mark_line(point=alt.OverlayMarkDef(size=28), strokeWidth=1.2)
        .encode(
            x=alt.X("layer:Q").title("Layer").scale(nice=False).axis(format="d", tickMinStep=1),
            color=alt.Color("kind:N")
            .title("Module")
            .scale(scheme="tableau10")
            .legend(orient="bottom"),
            tooltip=["path:N", "weight_db:Q", "activation_db:Q"],
        )
        .properties(width=WIDTH, height=300)
    )
    panels = [
        base.transform_filter(f"isValid(datum.{key})")
        .encode(y=alt.Y(f"{key}:Q").title("SQNR (dB)").scale(zero=False))
        .properties(title=title)
        for key, title in (("weight_db", "Weights"), ("activation_db", "Input activations"))
    ]
    chart = alt.hconcat(*panels, spacing=30).add_params(choice).resolve_scale(y="shared")
    return compile_chart(chart)


def place_labels(table: Table, accuracy: list[dict[str, Any]]) -> Table:
    """The table of prices with the places of the labels of each loss, or nulls for no room."""
    losses = {row["recipe"]: row for row in accuracy}
    groups: dict[tuple[Any, ...], list[int]] = {}
    rows = [list(row) for row in table.rows]
    for i, row in enumerate(table.records()):
        if row["recipe"] in losses:
            groups.setdefault((row["model"], row["machine"], row["workload"]), []).append(i)
    at = table.columns.index("tokens_per_second")
    for members in groups.values():
        for key, _, _ in LOSSES:
            marks = [_mark(rows[i][0], rows[i][at], losses[rows[i][0]], key) for i in members]
            for i, spot in zip(members, place(marks), strict=True):
                rows[i] += [spot.dx, spot.dy, spot.align] if spot else [None, None, None]
    columns = [f"{key}_{part}" for key, _, _ in LOSSES for part in ("dx", "dy", "align")]
    width = len(table.columns) + len(columns)
    padded = (tuple(row + [None] * (width - len(row))) for row in rows)
    return Table((*table.columns, *columns), tuple(padded))


def _mark(recipe: str, speed: float, row: dict[str, Any], key: str) -> Mark:
    return Mark(recipe, speed, row[key], row[f"{key}_lo"], row[f"{key}_hi"])


def _data(rows: list[dict[str, Any]], name: str | None = None) -> Any:
    import altair as alt

    make: Any = alt.Data  # altair leaves it without types
    return make(values=rows, name=name) if name else make(values=rows)


def compile_chart(chart: Any) -> dict[str, Any]:
    """The Vega of an Altair chart, its text marks moved to the places of their labels."""
    import vl_convert

    chart = chart.configure(font="system-ui, 'Helvetica Neue', Arial, sans-serif")
    chart = chart.configure_axis(gridColor="#e8e8e8", labelFontSize=11, titleFontWeight="normal")
    chart = chart.configure_view(stroke="#cccccc")
    vega: dict[str, Any] = vl_convert.vegalite_to_vega(json.loads(chart.to_json()))
    for panel in vega["marks"]:
        for mark in panel.get("marks", ()):
            if mark["type"] == "text":
                _offset(mark["encode"]["update"])
    return vega


def _offset(update: dict[str, Any]) -> None:
    """Offsets out of the data, for which Vega-Lite has no words."""
    key = update["y"]["field"]
    update["x"] |= {"offset": {"field": f"{key}_dx"}}
    update["y"] |= {"offset": {"field": f"{key}_dy"}}
    update["align"] = {"field": f"{key}_align"}
