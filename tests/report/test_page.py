from __future__ import annotations

import dataclasses
import json
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from lowprec.report.charts import losses, main_chart, place_labels
from lowprec.report.data import Report
from lowprec.report.page import html, write
from lowprec.report.tables import accuracy_rows, layer_table, price_table

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--virtual-time-budget=15000",
]


@pytest.fixture(scope="module")
def folder(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    assert write(report, folder) == folder / "report.html"
    return folder


def dom(page: Path, tmp_path: Path, *flags: str) -> str:
    """The page's document after its scripts ran, as Chromium has it."""
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH; on Debian: apt install chromium")
    profile = f"--user-data-dir={tmp_path}"
    command = [CHROMIUM, *FLAGS, *flags, profile, "--dump-dom", page.as_uri()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return run.stdout


def test_the_page_works_in_a_browser(folder: Path, report: Report, tmp_path: Path) -> None:
    text = dom(folder / "report.html", tmp_path)
    root = re.match(r"\s*<!DOCTYPE html>\s*<html([^>]*)>", text)
    assert root is not None
    assert 'data-ready="yes"' in root[1]
    assert "data-error" not in root[1]
    chart = text[text.index('id="main-chart-controls"') : text.index('id="accuracy"')]
    # Both panels have a point for each recipe but float32, which is the reference itself.
    points = re.findall(r'aria-roledescription="point"', chart)
    assert len(points) == 2 * (len(report.candidates) - 1)
    for candidate in report.candidates[1:5]:
        assert chart.count(f">{candidate.name}<") == 2
    assert chart.count("<select") == 3
    rows = dict(re.findall(r'data-table="(\w+)"[^>]*data-rows="(\d+)"', text))
    assert int(rows["prices"]) == len(report.prices)
    assert int(rows["coverage"]) == len(report.candidates) * 2
    assert int(rows["layers"]) == len(report.candidates) * 12
    assert int(rows["sensitivity"]) == 2 * len(report.sensitivity)
    heat = text[text.index('id="heat-map"') : text.index('id="coverage"')]
    # A cell per layer, module and operand, of the measure that the list opens with.
    assert heat.count('aria-roledescription="rect mark container"') == 2
    assert len(re.findall(r'aria-roledescription="rect mark"', heat)) == len(report.sensitivity)
    bits = text[text.index('id="bits-chart"') : text.index('id="tasks"')]
    assert len(re.findall(r'aria-roledescription="point"', bits)) == len(report.candidates)
    assert "its logits are &lt;not&gt; finite" in text
    curves = text[text.index('id="curves"') : text.index('id="training-table"')]
    # Two recipes' losses, and one difference: the baseline's to itself is not drawn.
    assert curves.count('aria-roledescription="line mark container"') == 3
    tasks = text[text.index('id="task-table"') : text.index('id="training"')]
    assert "-0.050 (-0.110 to +0.010)" in tasks
    assert tasks.count("<td") == 2 * 12
    for place in ("main-chart", "bits-chart", "layer-chart", "heat-map", "curves"):
        label = re.search(rf'id="{place}"[^>]*aria-label="([^"]*)"', text)
        assert label is not None
        assert len(label[1]) > 40
    layers = text[text.index('id="layer-chart"') : text.index('id="coverage"')]
    assert "<svg" in layers


# What a reader does, once the page is ready: type, sort, turn the page, choose in the lists.
VISIT = """
<script>
const said = document.documentElement.dataset;
const wait = setInterval(async () => {
  if (said.ready !== "yes") return;
  clearInterval(wait);
  const prices = document.querySelector("[data-table=prices]");
  const first = () => prices.querySelector("tbody tr").textContent;
  prices.querySelector(".pager button:last-child").click();
  said.second = prices.querySelector(".pager span").textContent;
  const filter = prices.querySelector("[aria-label='filter recipe']");
  filter.value = "MXINT8";
  filter.dispatchEvent(new Event("input"));
  said.kept = prices.dataset.rows;
  filter.value = "";
  filter.dispatchEvent(new Event("input"));
  const speed = prices.querySelectorAll("th")[4];
  speed.click();
  said.slowest = first();
  speed.click();
  said.fastest = first();
  const table = document.getElementById("accuracy-table");
  table.tHead.rows[0].cells[3].click();
  said.least = table.tBodies[0].rows[0].cells[0].textContent;
  table.tHead.rows[0].cells[3].click();
  said.most = table.tBodies[0].rows[0].cells[0].textContent;
  const points = () => [...document.querySelectorAll("#main-chart [aria-roledescription=point]")];
  const before = points().map((p) => p.getAttribute("aria-label")).join();
  const list = document.querySelectorAll("#main-chart-controls select")[1];
  list.value = "h100";
  list.dispatchEvent(new Event("input"));
  list.dispatchEvent(new Event("change"));
  setTimeout(() => {
    const after = points().map((p) => p.getAttribute("aria-label")).join();
    said.moved = before !== after && points().length > 0 ? "yes" : "no";
    said.wide = document.documentElement.scrollWidth > window.innerWidth ? "yes" : "no";
    said.width = window.innerWidth;
    said.visited = "yes";
  }, 500);
}, 50);
</script>
"""


@pytest.mark.parametrize("size", ["1300,900", "390,844"])
def test_it_answers_a_reader_on_a_desk_and_on_a_phone(
    folder: Path, report: Report, tmp_path: Path, size: str
) -> None:
    visited = tmp_path / "visited.html"
    page, end, rest = (folder / "report.html").read_text().rpartition("</body>")
    visited.write_text(page + VISIT + end + rest)
    found = dom(visited, tmp_path / "profile", f"--window-size={size}")
    said = dict(re.findall(r'data-(\w+)="([^"]*)"', found[: found.index("<head>")]))
    assert "error" not in said
    assert said["visited"] == "yes"
    assert said["second"] == f"26 to 50 of {len(report.prices)}"
    assert int(said["kept"]) == sum(p.candidate == "mxint8" for p in report.prices)
    assert "400" in said["slowest"]
    assert "13,000" in said["fastest"]
    assert (said["least"], said["most"]) == ("float32", "int4 &lt;/script&gt; channel")
    assert said["moved"] == "yes"
    # Wide tables and charts scroll by themselves, and not the page with them.
    assert said["wide"] == "no"


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="pdftotext reads the print")
def test_it_prints(folder: Path, tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH; on Debian: apt install chromium")
    pdf = tmp_path / "report.pdf"
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", f"--print-to-pdf={pdf}"]
    subprocess.run(
        [*command, (folder / "report.html").as_uri()], capture_output=True, timeout=120, check=True
    )
    text = subprocess.run(["pdftotext", "-layout", pdf, "-"], capture_output=True, check=True)
    printed = text.stdout.decode()
    for heading in ("Accuracy against bits", "Tasks", "Training", "Sensitivity", "Digests"):
        assert heading in printed
    assert "0.4680 ± 0.0520" in printed
    # Lists and buttons are for the screen.
    assert "Previous" not in printed


def test_an_error_in_the_page_would_be_seen(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    text = (folder / "report.html").read_text()
    broken.write_text(text.replace('"use strict";', '"use strict"; missing();'))
    found = dom(broken, tmp_path / "profile")
    assert "data-error" in found[:2000]
    assert 'data-ready="yes"' not in found[:2000]


def test_it_is_one_file_that_loads_nothing(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    assert len(text) < 3_000_000
    assert not re.search(r"<(script|img|iframe)[^>]+src=|<link|@import|url\(", text[:20_000])
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert not re.search(r"https?:", policy[1])


def test_names_cannot_break_out_of_their_place(report: Report) -> None:
    text = html(report)
    assert "<title>A study of &lt;formats&gt; &amp; rules" in text
    start = text.index('id="data">') + len('id="data">')
    data = json.loads(text[start : text.index("</script>", start)])
    assert "int4 </script> channel" in {row[0] for row in data["prices"]["rows"]}


def test_the_image_is_a_png_of_some_size(folder: Path) -> None:
    data = (folder / "accuracy_vs_throughput.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width > 1500
    assert height > 700


def test_halves_alone_have_no_chart(report: Report, tmp_path: Path) -> None:
    for half in (
        dataclasses.replace(report, prices=(), shown=None, sources=()),
        dataclasses.replace(
            report, candidates=tuple(dataclasses.replace(c, record=None) for c in report.candidates)
        ),
    ):
        assert main_chart(half) is None
        (tmp_path / "accuracy_vs_throughput.png").write_bytes(b"old")
        assert "this study has one of them" in write(half, tmp_path).read_text()
        assert not (tmp_path / "accuracy_vs_throughput.png").exists()


def test_tables_hold_the_numbers(report: Report) -> None:
    first, *_ = price_table(report).records()
    assert first["tokens_per_second"] == report.prices[0].tokens_per_second
    row = next(row for row in accuracy_rows(report) if row["Recipe"] == "nvfp4")
    assert row["KL (nats/token)"] == {"value": 0.468, "text": "0.4680 ± 0.0520"}
    assert row["ΔNLL (nats/token)"]["text"] == "+0.4660 ± 0.0518"
    assert row["Bits W"]["value"] == 4.5
    assert row["Covered"]["text"] == "75.0%"
    assert (row["p (ΔNLL), Holm"]["text"], row["q (ΔNLL), BH"]["text"]) == ("0.47", "0.052")
    weights = next(row for row in accuracy_rows(report) if row["Recipe"] == "nvfp4 weights")
    assert weights["Bits A"]["text"] == "kept"
    assert layer_table(report).records()[0] == {
        "recipe": "float32",
        "path": "model.layers.0.self_attn.q_proj",
        "layer": 0,
        "kind": "q_proj",
        "weight_db": 20.0,
        "activation_db": 18.0,
    }


def test_labels_are_placed_per_choice_of_the_lists(report: Report) -> None:
    table = place_labels(price_table(report), losses(report))
    placed = [row for row in table.records() if row["kl_align"]]
    assert len(placed) > 0.85 * len(report.prices)
    same = {(r["kl_dx"], r["kl_dy"]) for r in placed if r["recipe"] == "mxint8"}
    # All selections have the same relative speeds here, so the same picture.
    assert len(same) == 1
