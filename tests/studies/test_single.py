"""`lp.evaluate`: a record without a study, of a model by name or in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import lowprec as lp
from lowprec.nn.wrap import recipe_of
from lowprec.studies import StudyResult

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
