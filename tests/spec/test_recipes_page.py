"""docs/recipes.md: its examples load, and it speaks of every key."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from lowprec.spec import (
    Delayed,
    InputGradient,
    Recipe,
    Rule,
    Transform,
    WeightGradient,
    load_recipe,
)
from lowprec.spec.approximation import Approximation

PAGE = (Path(__file__).parents[2] / "docs/recipes.md").read_text()
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
TABLES = {
    "transform": Transform,
    "delayed": Delayed,
    "input_gradient": InputGradient,
    "weight_gradient": WeightGradient,
    "approximation": Approximation,
}


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: text.split('"')[1])
def test_examples_load(text):
    data = tomllib.loads(text.replace("formats/my_format.toml/", "mxfp4/"))
    assert isinstance(load_recipe(data), Recipe)


def test_every_key_has_an_example():
    used: set[str] = set()
    for text in EXAMPLES:
        for rule in tomllib.loads(text)["rules"]:
            for key, value in rule.items():
                used.add(key)
                if isinstance(value, dict):
                    used |= {f"{key}.{part}" for part in value}
    keys = set(Rule.model_fields) | {f"{t}.{k}" for t, c in TABLES.items() for k in c.model_fields}
    assert keys <= used
