"""A study's folder with every part that a proposal reads, from made-up numbers that no test takes
for measured ones."""

from __future__ import annotations

import json
from pathlib import Path

from lowprec.spec import Metric, Recipe, Record, digest, load_recipe

FORMAT = """\
name = "five"
scale = "ufloat8_e5m3"
block = [16]

[element]
name = "float5_e2m2"
kind = "float"
bits = 5
precision = 3
bias = 1

[facts]
source = "none: a format of a test"
"""
LOSS = {
    "five": ("{five}/amax", 0.08),
    "mxfp8": ("mxfp8_e4m3/rceil", 0.03),
    "nvfp4": ("nvfp4/amax", 0.4),
    "five weights": ("*: weight={five}/amax", 0.05),
    "kept <b>": ("*: weight=bfloat16 activation=bfloat16", 0.0001),
}
SPEED = {
    "five": 3900.0,
    "mxfp8": 3500.0,
    "nvfp4": 4200.0,
    "five weights": 3000.0,
    "kept <b>": 2400.0,
}
MODEL = {"name": "tiny-llama", "digest": "a" * 64}


def write_study(folder: Path) -> tuple[Path, Path]:
    """The study's folder and the format's file, both in `folder`."""
    file = folder / "five.toml"
    file.write_text(FORMAT)
    study = folder / "study"
    (study / "cells").mkdir(parents=True)
    recipes = {name: load_recipe(text.format(five=file)) for name, (text, _) in LOSS.items()}
    for name, recipe in recipes.items():
        for record in (_accuracy(recipe, LOSS[name][1]), _throughput(recipe, SPEED[name])):
            data = record.model_dump(mode="python")
            text = json.dumps({**data, "sha256": digest(data)}, sort_keys=True, indent=1) + "\n"
            (study / "cells" / f"{record.name}.json").write_text(text)
    plan = {
        "name": "small",
        "title": "A small study",
        "accuracy": {"model": "tiny-llama"},
        "throughput": {
            "models": ["llama-3.1-8b"],
            "machines": ["b200"],
            "workloads": [{"phase": "decode", "batch": [8], "tokens": 1, "context": 512}],
        },
        "recipes": [{"name": n, "recipe": r.to_json()} for n, r in recipes.items()],
    }
    (study / "study.json").write_text(json.dumps({"study": plan, "cells": {}}))
    return study, file


def _accuracy(recipe: Recipe, kl: float) -> Record:
    values = {"kl": kl, "dnll": kl * 0.9, "top1": 1 - kl}
    layers = [
        {"path": f"model.layers.{i}.mlp.up_proj", "weight_db": 20.0 + i, "activation_db": 15.0 - i}
        for i in range(3)
    ]
    coverage = [
        {"modules": "*", "count": 3, "share_of_flops": 1.0, "weight": "x", "activation": "x"}
    ]
    return Record(
        kind="accuracy",
        subject={
            "model": MODEL,
            "text": {"name": "some-text", "digest": "b" * 64},
            "windows": "c" * 64,
            "recipe": recipe.spell(),
            "seed": 0,
            "code": "d" * 64,
        },
        metrics={name: Metric(value=v, se=kl / 50) for name, v in values.items()},
        details={
            "tokens": 1000,
            "clusters": 10,
            "intervals": {name: [v - kl / 20, v + kl / 20] for name, v in values.items()},
            "by_cluster": {
                "tokens": [100] * 10,
                "kl": [100 * kl * (0.9 + 0.02 * i) for i in range(10)],
                "dnll": [90 * kl] * 10,
            },
            "layers": layers,
            "coverage": coverage,
        },
        environment={"python": "3.11", "threads": "1"},
    )


def _throughput(recipe: Recipe, speed: float) -> Record:
    line = {
        "workload": "decode, batch 8, context 512",
        "tokens_per_second_per_chip": speed,
        "chips": 1,
        "bound": "memory",
        "fallbacks": [],
        "notes": [],
    }
    return Record(
        kind="throughput",
        subject={
            "model": {"name": "llama-3.1-8b", "digest": "e" * 64},
            "machine": {"name": "b200", "digest": "f" * 64},
            "recipe": recipe.spell(),
        },
        metrics={},
        details={"calibration": "spec only", "workloads": [line]},
        environment={},
    )
