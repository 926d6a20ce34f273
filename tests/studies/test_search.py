"""Searches on a tiny random Llama: proxies against the truth, assignments against others."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from lowprec.errors import LowprecError
from lowprec.spec import load_quantizer
from lowprec.spec.load import data_dir
from lowprec.studies.assignment import Problem
from lowprec.studies.plan import Budget, FormatSpace, Search, load_search
from lowprec.studies.search import Candidate, search
from lowprec.studies.sensitivity import sensitivity
from lowprec.studies.spaces import bits_of, enumerate_formats
from lowprec.studies.study import Accuracy

CHOICES = ("nvfp4/amax", "mxfp6_e2m3/rceil", "mxfp8_e4m3/rceil")


@pytest.fixture(scope="module")
def plan(tiny: Path) -> Search:
    folder = tiny.parent
    return Search(
        name="tiny",
        seed=3,
        accuracy=Accuracy(
            model=str(folder / "model"),
            text=str(folder / "text.txt"),
            length=32,
            windows=6,
            calibration=6,
        ),
        choices=tuple(map(load_quantizer, CHOICES)),
        budget=Budget(limits=(5.0,)),
        random=2,
        sensitivity=load_quantizer("nvfp4/amax"),
    )


def problem(seed: int, sites: int = 5, count: int = 3) -> Problem:
    rng = np.random.default_rng(seed)
    bits = np.sort(rng.integers(2, 9, (sites, count)), axis=1).astype(float)
    return Problem(rng.gamma(1.0, 1.0, (sites, 1)) * 4.0**-bits, (bits / sites,))


@pytest.mark.parametrize("seed", range(8))
def test_an_assignment_is_the_best_of_all(seed: int) -> None:
    some = problem(seed)
    least, most = (float(f(some.uses[0], axis=1).sum()) for f in (np.min, np.max))
    limit = (least + most) / 2
    every = itertools.product(range(3), repeat=5)
    best = min(some.loss(c) for c in every if some.fits(c, [limit]))
    found = some.best([limit])
    assert some.fits(found, [limit])
    assert some.loss(found) <= best * 1.002
    drawn = some.random([limit], seed)
    assert some.fits(drawn, [limit])
    assert some.loss(drawn) >= best * 0.999


def test_a_budget_that_nothing_keeps_is_refused() -> None:
    with pytest.raises(LowprecError, match=r"no assignment uses as little as 0\.01; the least is"):
        problem(0).best([0.01])


def test_proxies_rank_layers_as_measuring_them_does(plan: Search, tmp_path: Path) -> None:
    found = sensitivity(plan, tmp_path, ("one", "others"))
    assert len(found.rows) == 28
    correlations = found.correlations()
    for operand in plan.operands:
        fisher = correlations[operand]["fisher"]
        assert 0.3 < fisher.low < fisher.value < fisher.high < 1
        assert fisher.value > 0.7
    total = sum(row.noise.fisher for row in found.rows)
    assert found.whole is not None
    # To second order the losses of small errors add up.
    assert found.whole.metrics["kl"].value == pytest.approx(total, rel=0.5)
    for row in found.rows:
        assert row.one is not None
        assert row.others is not None
        assert row.one.metrics["kl"].value < found.whole.metrics["kl"].value
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    assert sensitivity(plan, tmp_path, ("one", "others")) == found
    assert stamps == {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}


def kl(candidate: Candidate) -> float:
    assert candidate.record is not None
    return candidate.record.metrics["kl"].value


def test_an_assignment_beats_uniform_and_random_ones(plan: Search, tmp_path: Path) -> None:
    found = search(plan, tmp_path)
    by_how: dict[str, list[Candidate]] = {}
    for each in found:
        by_how.setdefault(each.how, []).append(each)
    (best,) = by_how["assigned"]
    assert all(bits <= 5.0 for bits in best.bits.values())
    assert best.front
    assert all(bits <= 5.0 for each in by_how["random"] for bits in each.bits.values())
    assert kl(best) < 0.8 * min(map(kl, by_how["random"]))
    affordable = [each for each in by_how["uniform"] if each.mean_bits <= 5.0]
    assert kl(best) < 0.8 * min(map(kl, affordable))
    assert [each.to_json() for each in search(plan, tmp_path)] == [e.to_json() for e in found]


def test_a_budget_of_seconds_is_that_of_the_throughput_model(plan: Search, tmp_path: Path) -> None:
    import lowprec as lp
    from lowprec.eval import load_model

    model = load_model(plan.accuracy.model).model
    work = lp.trace(model, batch=64, tokens=512, context=0)
    fast, slow = (
        lp.estimate(
            work, f"lm_head: keep; *: weight={q} activation={q}", "b200", level="bound"
        ).seconds
        for q in (CHOICES[0], "bfloat16")
    )
    limit = (fast + slow) / 2
    budget = Budget(kind="seconds", limits=(limit,), machine="b200", batch=64, tokens=512)
    (best, *_) = search(plan.model_copy(update={"budget": budget, "random": 0}), tmp_path)
    assert lp.estimate(work, best.recipe, "b200", level="bound").seconds <= limit * 1.02


def test_a_space_of_formats_is_enumerated_and_measured(plan: Search, tmp_path: Path) -> None:
    space = FormatSpace(
        exponent=(0, 2),
        significand=(1, 3),
        block=(16, 32),
        scales=("float8_e8m0fnu/rceil", "float8_e4m3fn+float32/amax"),
        bits=4.5,
        keep=2,
    )
    names = {q.format.name: bits_of(q) for q in enumerate_formats(space)}
    assert names["float4_e2m1-16-float8_e4m3fn-float32"] == 4.5
    assert names["int4_sym-32-float8_e8m0fnu"] == 4.25
    assert "float6_e2m3-32-float8_e8m0fnu" not in names
    # One exponent bit and two of significand say what a four-bit integer says.
    even = space.model_copy(update={"exponent": (0, 1), "significand": (2, 3)})
    bare = even.model_copy(update={"exponent": (1,)})
    assert {q.format.name.split("-")[0] for q in enumerate_formats(even)} == {
        "int3_sym",
        "int4_sym",
    }
    assert {q.format.name.split("-")[0] for q in enumerate_formats(bare)} == {"float4_e1m2"}
    update = {"formats": space, "budget": None, "choices": ()}
    found = search(plan.model_copy(update=update), tmp_path)
    formats, drawn = found[:2], found[2:]
    assert [each.how for each in formats] == ["format", "format"]
    assert drawn
    assert {each.how for each in drawn} == {"random format"}
    # At no fewer bits, a format drawn at random loses more on the held-out text.
    assert all(each.mean_bits >= formats[0].mean_bits for each in drawn)
    assert kl(formats[0]) < min(map(kl, drawn))
    with pytest.raises(LowprecError, match="none of the space has 1 bits or less"):
        enumerate_formats(space.model_copy(update={"bits": 1.0}))


def test_the_shipped_search_is_valid_and_errors_name_the_key(tmp_path: Path) -> None:
    folder = data_dir("evals") / "searches"
    space = load_search(folder / "smollm2-formats.toml").formats
    assert space is not None
    assert len(enumerate_formats(space)) == 16
    shipped = load_search(folder / "smollm2.toml")
    assert shipped.choices[1].format.name == "nvfp5"
    bad = tmp_path / "bad.toml"
    bad.write_text((folder / "smollm2.toml").read_text().replace('"mxfp4/rceil"', '"mxfp4/rcel"'))
    (tmp_path / "nvfp5.toml").write_bytes((folder / "nvfp5.toml").read_bytes())
    with pytest.raises(LowprecError, match=r"bad.toml: uniform.0: unknown scale rule 'rcel'"):
        load_search(bad)
