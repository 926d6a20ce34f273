"""Write ``report.html``, one file that needs no network, and the PNG of its main chart."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from lowprec.report.charts import layer_chart, losses, main_chart, main_text, place_labels
from lowprec.report.data import Report
from lowprec.report.outcomes import task_rows, training_rows, training_text
from lowprec.report.sensitivity import (
    bits_chart,
    bits_text,
    heat_map,
    heat_text,
    sensitivity_table,
)
from lowprec.report.tables import (
    PRICES,
    accuracy_rows,
    coverage_table,
    layer_table,
    price_table,
    source_table,
)

HTML = "report.html"
PNG = "accuracy_vs_throughput.png"


def write(report: Report, folder: Path) -> Path:
    """Write both files into `folder` and return the path of the page; there is no PNG where the
    study lacks one of the halves that the chart compares."""
    page = folder / HTML
    page.write_text(html(report))
    still = main_chart(report, interactive=False)
    if still is not None:
        import vl_convert

        (folder / PNG).write_bytes(vl_convert.vega_to_png(still, scale=2))
    else:
        (folder / PNG).unlink(missing_ok=True)
    return page


def html(report: Report) -> str:
    """The page, with its data, its style and the chart library inside."""
    import jinja2
    import vl_convert
    from markupsafe import Markup

    from lowprec import __version__

    data = {
        "prices": place_labels(price_table(report), losses(report)).to_json(),
        "layers": layer_table(report).to_json(),
        "coverage": coverage_table(report).to_json(),
        "sources": source_table(report).to_json(),
        "main_chart": main_chart(report),
        "layer_chart": layer_chart(report),
        "sensitivity": sensitivity_table(report).to_json(),
        "heat_map": heat_map(report),
        "bits_chart": bits_chart(report),
        "curves": vl_convert.vegalite_to_vega(report.curves) if report.curves else None,
    }
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    safe = Markup
    bundle: Any = vl_convert.javascript_bundle  # its types forget that no argument is needed
    return environment.from_string(_resource("template.html")).render(
        report=report,
        accuracy=accuracy_rows(report),
        main=data["main_chart"] is not None,
        layers=data["layer_chart"] is not None,
        heat=heat_text(report) if data["heat_map"] else "",
        bits=bits_text(report) if data["bits_chart"] else "",
        main_text=main_text(report),
        tasks=task_rows(report),
        training=training_rows(report),
        training_text=training_text(report),
        price_columns=len(PRICES),
        version=__version__,
        css=safe(_resource("page.css")),
        js=safe(_resource("page.js")),
        vega=safe(_script(bundle())),
        data=safe(_json(data)),
    )


def _resource(name: str) -> str:
    return files("lowprec.report").joinpath(name).read_text()


def _json(data: Any) -> str:
    """JSON that cannot end the script element that it stands in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _script(code: str) -> str:
    """JavaScript that cannot end its script element: ``</script`` occurs in strings only."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")
