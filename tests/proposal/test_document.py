"""The document: fourteen sections in three forms, nothing overfull, nothing missing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path

import pypdfium2 as pdfium
import pytest

from lowprec.proposal.document import Absent, Document, Figure, Paragraph, Section, Table
from lowprec.proposal.document.html import html
from lowprec.proposal.document.markdown import markdown
from lowprec.proposal.document.model import spans
from lowprec.proposal.document.pdf import pages, pdf
from lowprec.proposal.evidence import load_evidence
from lowprec.proposal.pricing import crossing, price
from lowprec.proposal.sections import document
from lowprec.proposal.subject import Proposal, make_proposal
from lowprec.proposal.vectors import generate
from tests.proposal.small_study import write_study
from tests.report.test_page import CHROMIUM, FLAGS

TITLES = (
    "Claim",
    "Encoding",
    "Scale",
    "Conversion",
    "Arithmetic",
    "Accuracy",
    "Storage and traffic",
    "Datapath cost",
    "Kernel and system throughput",
    "Pareto front and break-even",
    "Memory hierarchy, scale-up and network",
    "Software",
    "Conformance and reproducibility",
    "Risks, and what was not tested",
)
# A4 and its margins in points, with a hair for rules and italics.
WIDTH, HEIGHT, MARGIN = 595.3, 841.9, 66.0


def make(study: Path, fmt: str, baseline: str | None) -> tuple[Proposal, Document]:
    proposal = make_proposal(load_evidence(study), fmt, baseline)
    sets = generate(proposal.ours.quantizer)
    return proposal, document(proposal, price(proposal), sets)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Proposal, Document]:
    study, file = write_study(tmp_path_factory.mktemp("study"))
    return make(study, str(file), "mxfp8_e4m3")


@pytest.fixture(scope="module")
def paper(made: tuple[Proposal, Document]) -> Iterator[pdfium.PdfDocument]:
    found = pdfium.PdfDocument(pdf(made[1]))
    yield found
    found.close()


def text_of(section: Section) -> str:
    """All words of a section, cells included."""
    found = []
    for block in section.blocks:
        match block:
            case Table():
                found += [block.caption, *block.columns, *(c for row in block.rows for c in row)]
            case Figure():
                found += [block.caption, block.alternative]
            case _:
                found.append(str(block))
    return "\n".join(found)


def test_all_fourteen_sections_say_something(made: tuple[Proposal, Document]) -> None:
    _, found = made
    assert tuple(section.title for section in found.sections) == TITLES
    for section in found.sections:
        assert any(not isinstance(block, Absent) for block in section.blocks), section.title
        for block in section.blocks:
            if isinstance(block, Table):
                assert block.rows
                assert block.source
                assert {len(row) for row in block.rows} == {len(block.columns)}


def test_the_measured_figures_are_the_records(made: tuple[Proposal, Document]) -> None:
    _, found = made
    accuracy = text_of(found.sections[5])
    assert "0.080 ± 0.0040" in accuracy
    assert "0.030 ± 0.0015" in accuracy
    assert "loses 2.67 times the KL of `mxfp8_e4m3`" in accuracy
    assert "Paired on the same tokens the difference is +0.050 ±" in accuracy
    assert "clear of zero" in accuracy
    assert "Training: no run with this format" in accuracy
    assert "five weights" in accuracy
    claim = text_of(found.sections[0])
    assert "5.5 against 8.25: 0.67×" in claim
    assert "does **not** keep `mxfp8_e4m3`'s accuracy: 2.7 times its KL" in claim
    assert "`nvfp4`, 5.0 times that" in claim


def test_the_whole_value_table_is_there(made: tuple[Proposal, Document]) -> None:
    encoding = made[1].sections[1]
    tables = {b.caption: b for b in encoding.blocks if isinstance(b, Table)}
    (table,) = (t for caption, t in tables.items() if "float5_e2m2` (hexadecimal)" in caption)
    cells = dict(zip(*[iter(c for row in table.rows for c in row)] * 2, strict=True))
    assert len(cells) == 32
    assert [cells[f"`{code}`"] for code in ("00", "01", "0f", "10", "1f")] == [
        "0",
        "0.25",
        "7",
        "−0",
        "−7",
    ]
    (scale,) = (t for caption, t in tables.items() if "ufloat8_e5m3` (hexadecimal)" in caption)
    assert sum(bool(c) for row in scale.rows for c in row) == 512


def test_without_records_the_sections_say_so(tmp_path: Path) -> None:
    study, file = write_study(tmp_path)
    data = json.loads((study / "study.json").read_text())
    del data["study"]["throughput"]
    (study / "study.json").write_text(json.dumps(data))
    for cell in study.glob("cells/*.json"):
        cell.unlink()
    _, found = make(study, f"{file}/amax", None)
    assert tuple(section.title for section in found.sections) == TITLES
    absent = {
        section.title: " ".join(b.text for b in section.blocks if isinstance(b, Absent))
        for section in found.sections
    }
    assert "No accuracy record of the study quantizes with `five` alone" in absent["Accuracy"]
    assert "No baseline was named" in absent["Kernel and system throughput"]
    assert "No study cell" in absent["Pareto front and break-even"]
    assert "No baseline was named" in absent["Claim"]
    assert len(pdf(found)) > 50_000


def test_a_format_without_a_unit_says_why(tmp_path: Path) -> None:
    study, _ = write_study(tmp_path)
    data = json.loads((study / "study.json").read_text())
    del data["study"]["throughput"]
    (study / "study.json").write_text(json.dumps(data))
    made, _ = make(study, "hif4/amax", "mxfp8_e4m3")
    bare = replace(made, ours=replace(made.ours, unit=None, no_unit="codes of a secret shape"))
    found = document(bare, price(bare), ())
    for section in (found.sections[4], found.sections[7]):
        assert "codes of a secret shape" in text_of(section)
    assert "microexponent" in text_of(found.sections[1])


def test_bookmarks_and_contents(paper: pdfium.PdfDocument) -> None:
    toc = list(paper.get_toc())
    top = [re.sub(r"^\d+\s+", "", b.get_title()) for b in toc if b.level == 0]
    assert tuple(top) == TITLES
    first = paper[0].get_textpage().get_text_range()
    assert all(title in first for title in TITLES)
    places = [b.get_dest().get_index() for b in toc]
    assert places == sorted(places)
    assert places[-1] < len(paper)


def test_its_text_can_be_selected(paper: pdfium.PdfDocument) -> None:
    text = "\n".join(page.get_textpage().get_text_range() for page in paper)
    plain = text.replace("\u200b", "")
    for words in ("We propose five", "KL 0.080 ± 0.0040", "fraction bits kept", "llama-3.1-8b"):
        assert words in " ".join(plain.split()), words


def test_nothing_stands_in_the_margins(paper: pdfium.PdfDocument) -> None:
    for number, page in enumerate(paper, 1):
        assert page.get_size() == pytest.approx((WIDTH, HEIGHT), abs=0.5)
        ends = [each.get_bounds() for each in page.get_objects(max_depth=1)]
        assert ends, number
        assert min(left for left, _, _, _ in ends) >= MARGIN - 3, number
        assert max(right for _, _, right, _ in ends) <= WIDTH - MARGIN + 3, number
        assert min(bottom for _, bottom, _, _ in ends) >= 20, number


def test_an_overfull_table_would_be_seen(made: tuple[Proposal, Document]) -> None:
    wide = Table("Wide.", ("a", "b"), (("x" * 90, "y" * 60),), "a test")
    broken = replace(made[1], sections=(Section("Claim", (wide,)),))
    with pytest.raises(AssertionError):
        test_nothing_stands_in_the_margins(pdfium.PdfDocument(pdf(broken)))


def test_every_figure_is_drawn(made: tuple[Proposal, Document], paper: pdfium.PdfDocument) -> None:
    _, found = made
    assert [figure.name for figure in found.figures] == [
        "layout",
        "loss-tiny-llama",
        "window",
        "pareto",
    ]
    text = " ".join(
        " ".join(page.get_textpage().get_text_range().split()) for page in paper
    ).replace("\u200b", "")
    for i, figure in enumerate(found.figures, 1):
        assert f"Figure {i}." in text
        assert len(figure.alternative) > 40
        drawn = re.findall(r">([A-Za-z][^<>]{5,})</text>", figure.svg)
        assert drawn
        assert all(unescape(each) in text for each in drawn), figure.name


def test_the_pdf_is_the_same_again(made: tuple[Proposal, Document]) -> None:
    assert pdf(made[1]) == pdf(made[1])
    images = pages(made[1], 40)
    assert len(images) > 5
    assert all(image.startswith(b"\x89PNG") for image in images)


def test_the_page_is_one_file_that_loads_nothing(made: tuple[Proposal, Document]) -> None:
    text = html(made[1])
    assert len(text) < 1_000_000
    assert not re.search(r"<(script|img|iframe|link)\b|@import|\bsrc=", text)
    assert not re.search(r"url\((?!#)", text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)
    assert "kept <b>" not in text
    assert "kept &lt;b&gt;" in text


def test_the_page_works_in_a_browser(made: tuple[Proposal, Document], tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH; on Debian: apt install chromium")
    page = tmp_path / "proposal.html"
    page.write_text(html(made[1]))
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}"]
    run = subprocess.run(
        [*command, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert len(re.findall(r"<section id=", run.stdout)) == 14
    assert run.stdout.count('<div role="img"') == len(made[1].figures)
    assert run.stdout.count("<svg") == len(made[1].figures)
    assert run.stdout.count("<table>") == sum(
        isinstance(block, Table) for section in made[1].sections for block in section.blocks
    )
    shot = tmp_path / "page.png"
    subprocess.run(
        [*command, f"--screenshot={shot}", "--window-size=1000,1400", page.as_uri()],
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert shot.stat().st_size > 50_000


def test_markdown_links_what_is_written(made: tuple[Proposal, Document]) -> None:
    text = markdown(made[1])
    assert [f"## {i}. {title}" for i, title in enumerate(TITLES, 1)] == re.findall(
        r"^## .*$", text, re.M
    )
    linked = set(re.findall(r"\]\(figures/([^)]+)\.svg\)", text))
    assert linked == {figure.name for figure in made[1].figures}
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) > 100


def test_marks_within_text() -> None:
    kinds = [(s["kind"], s["text"]) for s in spans("a `b*c` **d** 2^(e − 1) and 2^−3.")]
    assert kinds == [
        ("plain", "a "),
        ("code", "b*c"),
        ("plain", " "),
        ("strong", "d"),
        ("plain", " 2"),
        ("raised", "e − 1"),
        ("plain", " and 2"),
        ("raised", "−3"),
        ("plain", "."),
    ]


def test_text_is_never_markup() -> None:
    rough = '#import "x" $a$ <b> & _c_ \\ *d* [e](f) @g'
    found = Document("t", rough, (("n", rough),), (Section("Claim", (Paragraph(rough),)),))
    text = pdfium.PdfDocument(pdf(found))[0].get_textpage().get_text_range()
    assert text.replace("\r\n", " ").count('#import "x" $a$ <b> & _c_') == 3
    assert "<b> &amp;" not in html(found)
    assert "&lt;b&gt; &amp; _c_" in html(found)


def test_break_even_is_found_where_it_is() -> None:
    assert crossing(lambda x: x / 3) == pytest.approx(3, rel=0.01)
    assert crossing(lambda _: 2.0) == 0.0
    assert crossing(lambda _: 0.5) is None


def test_break_even_lies_between_slower_and_faster(tmp_path: Path) -> None:
    study, file = write_study(tmp_path)
    proposal = make_proposal(load_evidence(study), str(file), "mxfp8_e4m3")
    pricing = price(proposal)
    (quote,) = pricing.quotes
    assert pricing.pricer is not None
    rate = pricing.pricer.break_even_rate(quote)
    assert rate is not None
    work = quote.job.workload()
    for factor, faster in ((rate * 0.95, False), (rate * 1.05, True)):
        pair = pricing.pricer._what_if(work, quote.machine, quote.plan, factor)
        assert pair is not None
        assert (pair[1].tokens_per_second > pair[0].tokens_per_second) == faster


def test_no_chromium_is_no_silence() -> None:
    assert (CHROMIUM is None) == (
        not shutil.which("chromium") and not shutil.which("chromium-browser")
    )


def test_a_search_beside_the_study_is_shown(tmp_path: Path) -> None:
    study, file = write_study(tmp_path)
    data = json.loads((study / "study.json").read_text())
    del data["study"]["throughput"]
    (study / "study.json").write_text(json.dumps(data))
    measured = {"value": 0.5, "interval": [0.4, 0.6]}
    candidates = [
        {"name": "later", "bits": {"weight": 4.5, "activation": 4.5}, "predicted_kl": 0.7,
         "metrics": {"kl": measured, "dnll": measured}},
        {"name": "sooner", "bits": {"weight": 5.5, "activation": 5.5}, "predicted_kl": 0.1},
    ]  # fmt: skip
    (study / "search.json").write_text(json.dumps({"candidates": candidates}))
    _, found = make(study, str(file), "mxfp8_e4m3")
    tables = [b for b in found.sections[5].blocks if isinstance(b, Table)]
    (table,) = (each for each in tables if "search" in each.caption)
    assert table.rows == (
        ("`sooner`", "5.5 / 5.5", "0.100", "–", "–"),
        ("`later`", "4.5 / 4.5", "0.700", "0.500 ± 0.100", "+0.500 ± 0.100"),
    )
