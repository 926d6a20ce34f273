from __future__ import annotations

import re
from pathlib import Path

import pytest

from lowprec.errors import LowprecError
from lowprec.spec import load_recipe
from lowprec.spec.load import data_dir
from lowprec.studies import load_study
from lowprec.studies.throughput import jobs, load_machines

GOOD = """
name = "x"
[throughput]
models = ["llama-3.1-70b"]
machines = ["b200"]
[[throughput.workloads]]
phase = "decode"
batch = [1, 8]
context = 2048
[[recipes]]
name = "a"
recipe = "mxfp4/floor"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "study.toml"
    path.write_text(text)
    return path


def test_a_good_one(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, GOOD))
    assert study.accuracy is None
    assert study.throughput is not None
    assert [job.batch for job in jobs(study.throughput.workloads)] == [1, 8]
    assert study.recipes[0].recipe.spell() == load_recipe("mxfp4/floor").spell()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "x"', 'name = "x"\nsede = 1', "sede: unknown key; did you mean 'seed'?"),
        ('name = "x"', "name = 3", "name: Input should be a valid string (got 3)"),
        ("machines =", "machine =", "throughput: machine: unknown key; did you mean 'machines'?"),
        ("batch = [1, 8]", "batch = [0]", "throughput.workloads.0: batch.0: "),
        ("batch = [1, 8]", 'batch = "8"', "throughput.workloads.0: batch: "),
        ('"decode"', '"decoding"', "throughput.workloads.0: phase: "),
        ("context = 2048", "", "throughput.workloads.0: phase 'decode' needs tokens = 1"),
        ("mxfp4/floor", "mxfp5/floor", "unknown format 'mxfp5'; did you mean 'mxfp4'?"),
        ("mxfp4/floor", "mxfp4/flor", "unknown scale rule 'flor'; did you mean 'floor'?"),
        ('recipe = "mxfp4/floor"', "recipe = 4", "recipes.0.recipe: expected a text"),
        ('recipe = "mxfp4/floor"', "", "recipes.0: recipe: Field required"),
        (
            "[[recipes]]",
            "[[recipes]]\nnam = 1",
            "recipes.0: nam: unknown key; did you mean 'name'?",
        ),
        ('models = ["llama-3.1-70b"]', 'models = ["a", "a"]', "'a' stands there twice"),
        ('name = "x"', "name = ", "Invalid value"),
    ],
)
def test_bad_ones_are_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(LowprecError) as caught:
        load_study(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert message in text
    assert "\n" not in text


def test_a_study_of_nothing(tmp_path: Path) -> None:
    head, _, _ = GOOD.partition("[throughput]")
    recipes = GOOD[GOOD.index("[[recipes]]") :]
    with pytest.raises(LowprecError, match=r"needs \[accuracy\] or \[throughput\]"):
        load_study(write(tmp_path, head + recipes))


def test_an_unknown_machine_names_file_and_key(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("b200", "b20"))
    with pytest.raises(LowprecError, match="did you mean 'b200'") as caught:
        load_machines(load_study(path), str(path))
    assert str(caught.value).startswith(f"{path}: throughput.machines.0: unknown machine 'b20'")


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('name = "r"\n[[rules]]\nmatch = "*"\nweight = "int8"\n')
    (tmp_path / "m.json").write_text("{}")
    text = GOOD.replace("mxfp4/floor", "mine.toml").replace("llama-3.1-70b", "m.json")
    study = load_study(write(tmp_path, text))
    assert study.recipes[0].recipe.name == "r"
    assert study.throughput is not None
    assert study.throughput.models == (str(tmp_path / "m.json"),)


def test_the_shipped_ones_are_valid_and_complete() -> None:
    evals = data_dir("evals")
    for path in (evals / "recipes").glob("*.toml"):
        assert load_recipe(path).name == path.stem
    study = load_study(evals / "studies" / "smollm2.toml")
    assert len(load_machines(study, "")) >= 10
    spelled = " ".join(named.recipe.spell() for named in study.recipes)
    both = set(re.findall(r"weight=(\S+) activation=\1(?: |$)", spelled))
    wanted = """float32/cast bfloat16/cast mxfp8_e4m3/floor mxfp8_e4m3/rceil mxfp8_e5m2/floor
        mxfp6_e2m3/floor mxfp6_e3m2/floor mxfp4/floor mxfp4/rceil nvfp4/amax mxint8/floor
        float8_e4m3fn_tensor/amax float8_e4m3fn_channel/amax int8_channel/amax int4_channel/amax"""
    for quantizer in wanted.split():
        assert f"{quantizer}/nearest-even/SatFinite" in both
    alone = {
        n.recipe.rules[-1].weight.format.name
        for n in study.recipes
        if n.recipe.rules[-1].weight and not n.recipe.rules[-1].activation
    }
    assert alone == {"mxfp4", "nvfp4"}
