"""The comparison of platforms: which record speaks, what is priced, what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowprec.errors import LowprecError
from lowprec.perf import load_workload, machine
from lowprec.perf.fleet import fleet
from lowprec.proposal.evidence import Cell, Evidence
from lowprec.proposal.platforms import compare, named_recipes, page
from lowprec.proposal.platforms.accuracy import accuracy_of
from lowprec.report.data import Candidate
from lowprec.spec import Metric, Recipe, Record, load_recipe

MXFP8 = "lm_head: keep; *: weight=mxfp8_e4m3/rceil activation=mxfp8_e4m3/rceil"
WORK = load_workload("llama-3.1-8b").at(batch=8, tokens=1, context=1024)
B200, H100 = machine("b200"), machine("h100_sxm")


def cell(name: str, text: str, kl: float, model: str = "tiny") -> Cell:
    recipe = load_recipe(text)
    record = Record(
        kind="accuracy",
        subject={"model": {"name": model}, "recipe": recipe.spell()},
        metrics={"kl": Metric(value=kl), "dnll": Metric(value=kl)},
        details={"intervals": {"kl": [kl - 0.01, kl + 0.01]}},
        environment={},
    )
    return Cell(Candidate(name, recipe, record), record, Path(f"cells/{record.name}.json"))


def evidence(*cells: Cell) -> Evidence:
    return Evidence(Path("study"), {"title": "A study"}, tuple(cells), (), 0)


OWN = cell("own", MXFP8 + " datapath=blackwell_mxf8", 0.04)
CDNA = cell("cdna", MXFP8 + " datapath=cdna4_mxf8", 0.05)
FLOAT = cell("float", MXFP8, 0.03)


def test_the_record_with_the_machine_s_own_arithmetic_speaks_first() -> None:
    recipe = load_recipe(MXFP8)
    (found,) = accuracy_of(recipe, B200, evidence(FLOAT, CDNA, OWN))
    assert (found.cell, found.own, found.words) == (OWN, True, "on blackwell_mxf8")
    (found,) = accuracy_of(recipe, machine("rtx_5090"), evidence(FLOAT, OWN))
    assert (found.cell, found.own) == (FLOAT, False)
    assert found.words == "float32 sums, not the machine's"


def test_another_machine_s_arithmetic_is_no_record() -> None:
    (found,) = accuracy_of(load_recipe(MXFP8), B200, evidence(CDNA))
    assert found.cell is None
    assert found.words == "no record; there are records on cdna4_mxf8"
    assert found.to_json() == {"measured": False, "arithmetic": found.words}


def test_every_model_that_was_measured_is_said() -> None:
    found = accuracy_of(load_recipe(MXFP8), B200, evidence(FLOAT, cell("f", MXFP8, 0.5, "other")))
    assert [each.cell.model for each in found if each.cell] == ["tiny", "other"]


def test_a_study_without_the_recipe_says_so() -> None:
    for known in (None, evidence(cell("other", "mxfp4/floor", 1.0))):
        (found,) = accuracy_of(load_recipe(MXFP8), B200, known)
        assert found.words == "no record"


def rows_of(*names: str, **more: object) -> list:
    recipes = {"mxfp8": load_recipe(MXFP8), "mxfp4": load_recipe("mxfp4/floor")}
    return compare(WORK, recipes, [machine(name) for name in names], **more)


def test_rows_are_the_estimates_and_their_fleet() -> None:
    rows = rows_of("b200", "h100_sxm", evidence=evidence(OWN))
    assert [(r.machine.name, r.recipe) for r in rows] == [
        ("b200", "mxfp8"), ("b200", "mxfp4"), ("h100_sxm", "mxfp8"), ("h100_sxm", "mxfp4"),
    ]  # fmt: skip
    first = rows[0]
    power = fleet(first.found, B200)
    data = first.to_json()
    assert data["tokens_per_second"] == first.found.tokens_per_second
    assert data["tokens_per_joule"] == power.tokens_per_joule.value
    per_hour = B200.tco.per_hour.value
    assert data["tokens_per_dollar"] == pytest.approx(
        first.found.tokens_per_second * 3600 / per_hour
    )
    assert data["memory"] == first.found.chip_bytes / B200.memory.capacity.value
    assert data["accuracy"][0]["kl"]["value"] == 0.04
    assert rows[0].fallbacks == {}
    assert 0 < sum(rows[2].fallbacks.values()) < 1
    assert any("formats that it converts" in risk for risk in rows[2].risks)
    assert any("no record" in risk for risk in rows[1].risks)
    assert not any("no record" in risk for risk in rows[0].risks)


def test_the_smallest_layout_that_fits_is_taken() -> None:
    work = load_workload("llama-3.1-70b").at(batch=1, tokens=1, context=1024)
    kept = {"bf16": load_recipe("*: keep")}
    (row,) = compare(work, kept, [H100])
    assert row.found.parallel == "tp=2"
    (row,) = compare(work, kept, [H100], parallel="tp=1")
    assert row.found is None
    assert "too much" in row.refused
    assert row.risks == (row.refused,)
    assert row.to_json()["refused"] == row.refused


def test_what_a_machine_does_not_say_is_said() -> None:
    (row, _) = rows_of("trainium2")
    assert row.power is None
    assert row.to_json()["tokens_per_joule"] is None
    assert any("power is not known" in risk for risk in row.risks)
    (row, _) = rows_of("b200", level="bound")
    assert any("roofline" in risk for risk in row.risks)


def test_recipes_are_the_study_s_or_one_s_own() -> None:
    known = evidence(FLOAT, OWN)
    assert list(named_recipes([], known)) == ["float", "own"]
    assert named_recipes(["own"], known) == {"own": OWN.recipe}
    assert isinstance(named_recipes(["mxfp4/floor"], known)["mxfp4/floor"], Recipe)
    assert list(named_recipes(["mxfp4"], None)) == ["mxfp4"]
    with pytest.raises(LowprecError, match="expected one or more, or a --study"):
        named_recipes([], None)
    with pytest.raises(LowprecError, match="unknown recipe 'flaot'; did you mean 'float'"):
        named_recipes(["flaot"], known)


def test_the_page_has_every_row_and_every_risk_and_loads_nothing() -> None:
    known = evidence(OWN)
    rows = rows_of("b200", "trainium2", evidence=known)
    text = page(WORK, rows, known)
    assert text == page(WORK, rows, known)
    for word in ("llama-3.1-8b on 2 machines", "0.0400 ± 0.0100", "on blackwell_mxf8", "A study"):
        assert word in text
    assert text.count("power is not known") >= 2
    assert "memory.bandwidth" in text
    assert "Comparison of platforms" in text
    assert "proposal" not in text.lower()
    assert "src=" not in text
    assert "http-equiv" not in text or "default-src" in text


def test_a_page_without_records_or_prices_says_so() -> None:
    rows = rows_of("h100_sxm", parallel="tp=3")
    assert all(row.refused for row in rows)
    text = page(WORK, rows, None)
    assert "No record of a study speaks of any of these recipes." in text
    assert "No recipe could be priced on any of these machines." in text
    assert "These could not be priced" in text
