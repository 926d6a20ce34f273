"""`lp.evaluate`: a record without a study, of a model by name or in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import lowprec as lp
from lowprec.nn.wrap import recipe_of
from lowprec.report.progress import SilentProgress
from lowprec.studies import StudyResult
from lowprec.studies.recipes import is_random, reseeded
from lowprec.studies.single import evaluate_one
from lowprec.studies.study import Accuracy

RECIPE = "lm_head: keep; *: weight=nvfp4/amax activation=nvfp4/amax"


def test_it_is_the_studys_record(tiny: Path, undisturbed: StudyResult) -> None:
    folder = tiny.parent
    options = {"suite": str(folder / "text.txt"), "length": 32, "windows": 3, "seed": 1}
    by_name = lp.evaluate(str(folder / "model"), RECIPE, **options)
    wanted = [
        r for r in undisturbed.records if r.subject.get("recipe") == by_name.subject["recipe"]
    ]
    assert by_name.metrics in [r.metrics for r in wanted]

    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    lp.wrap(model, RECIPE)
    wrapped = lp.evaluate(model, tokenizer=tokenizer, **options)
    assert wrapped.metrics == by_name.metrics
    assert recipe_of(model) == lp.recipe(RECIPE)


def test_what_is_missing_is_named(tiny: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny.parent / "model")
    with pytest.raises(lp.LowprecError, match="expected its tokenizer="):
        lp.evaluate(model, RECIPE)
    with pytest.raises(lp.LowprecError, match="expected a recipe"):
        lp.evaluate(str(tiny.parent / "model"))


def test_seeds_of_random_bits_widen_the_errors(tiny: Path) -> None:
    folder = tiny.parent
    asked = Accuracy(
        model=str(folder / "model"), text=str(folder / "text.txt"), length=32, windows=4
    )
    drawn = "lm_head: keep; *: weight=mxfp4/floor/stochastic:8"
    one, four = (
        evaluate_one(asked.model_copy(update={"seeds": n}), lp.recipe(drawn), SilentProgress())
        for n in (1, 4)
    )
    assert (one.details["seeds"], four.details["seeds"]) == (1, 4)
    assert one.name != four.name
    other = evaluate_one(asked, reseeded(lp.recipe(drawn), 1), SilentProgress())
    assert other.metrics["dnll"].value != one.metrics["dnll"].value
    # A recipe without random bits is the same cell whatever the seeds.
    plain = lp.recipe(RECIPE)
    assert not is_random(plain)
    assert is_random(lp.recipe(drawn))
    seeded = asked.model_copy(update={"seeds": 4})
    assert evaluate_one(seeded, plain, SilentProgress()) == evaluate_one(
        asked, plain, SilentProgress()
    )


def test_protocols_reach_the_record(tiny: Path) -> None:
    folder = tiny.parent
    record = lp.evaluate(
        str(folder / "model"), RECIPE, suite=str(folder / "text.txt"),
        protocol="strided", length=32, stride=8, windows=6,
    )  # fmt: skip
    assert record.details["tokens"] == 31 + 5 * 8
    assert record.subject["protocol"] == {
        "kind": "strided",
        "seqlen": 32,
        "stride": 8,
        "windows": 6,
    }
    # Shorter contexts occur in one window only, which says nothing of their error.
    assert [row["first"] for row in record.details["positions"]] == [16]
    assert sum(record.details["by_cluster"]["tokens"]) == record.details["tokens"]
    with pytest.raises(lp.LowprecError, match=r"protocol: .*did you mean 'strided'"):
        lp.evaluate(str(folder / "model"), RECIPE, protocol="stridd")
