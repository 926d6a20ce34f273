"""Sweeps: what they vary, where curves turn, what pays; and how fast they are."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowprec.cli.sweeps import show_elasticities, show_sweep
from lowprec.errors import LowprecError
from lowprec.perf import estimate, machine
from lowprec.perf.sweep import Parameter, crossovers, elasticities, sweep
from tests.perf.workloads import decoder, matmul, workload

KEEP, W4A8 = "*: keep", "*: weight=mxfp4/rceil activation=mxfp8_e4m3/rceil"
FP8 = "*: weight=float8_e4m3fn/amax:tensor activation=float8_e4m3fn/amax:tensor"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("memory.bandwidth=4e12:16e12:x2", (4e12, 8e12, 16e12)),
        ("cores=100:200:+40", (100, 140, 180)),
        ("cores=0.1:0.3:+0.1", (0.1, 0.2, 0.3)),
        ("clock=1e9,3e9", (1e9, 3e9)),
        ("clock=2e9", (2e9,)),
        ("launch=1e-6:1e-6:x2", (1e-6,)),
    ],
)
def test_values(text: str, values: tuple[float, ...]) -> None:
    parameter = Parameter.parse(text)
    assert parameter.path == text.partition("=")[0]
    assert parameter.values == pytest.approx(values)


@pytest.mark.parametrize(
    "text",
    ["", "memory.bandwidth", "=1", "a=", "a=1:2", "a=1:2:3", "a=1:2:x1", "a=1:2:+0", "a=2:1:x2",
     "a=0:1:x2", "a=one", "a=1:2:x", "a=1:1e30:+1"],
)  # fmt: skip
def test_bad_values(text: str) -> None:
    with pytest.raises(LowprecError, match="sweep"):
        Parameter.parse(text)


def test_every_combination_is_estimated() -> None:
    work = decoder(2)
    parameters = [Parameter("memory.bandwidth", (4e12, 8e12)), Parameter("launch", (1e-6, 2e-6))]
    cases = sweep([work, decoder(3)], [KEEP, W4A8], ["b200", "h100_sxm"], parameters, level="bound")
    assert len(cases) == 2 * 2 * 2 * 4
    assert cases[1].values == {"memory.bandwidth": 4e12, "launch": 2e-6}
    case = cases[13]
    chip = machine("h100_sxm").what_if("memory.bandwidth", 4e12).what_if("launch", 2e-6)
    assert (case.label, case.workload) == (W4A8, work)
    assert case.estimate == estimate(work, W4A8, chip, level="bound")


def test_what_cannot_be_swept() -> None:
    with pytest.raises(LowprecError, match=r"unknown parameter 'memory\.band'; did you mean"):
        sweep(decoder(1), [KEEP], ["b200"], [Parameter("memory.band", (1.0,))], level="bound")
    twice = [Parameter("cores", (1.0,)), Parameter("cores", (2.0,))]
    with pytest.raises(LowprecError, match="one parameter twice"):
        sweep(decoder(1), [KEEP], ["b200"], twice, level="bound")
    wide = [Parameter("cores", (1.0,) * 1001), Parameter("clock", (1.0,) * 1001)]
    with pytest.raises(LowprecError, match="more than 1000000 points"):
        sweep(decoder(1), [KEEP], ["b200"], wide, level="bound")


def test_the_bound_turns_where_compute_and_memory_meet() -> None:
    work = workload(matmul(m=8192))
    term = estimate(work, KEEP, "h100_sxm", level="bound").terms[0]
    ridge = term.bytes / (term.flops / 989e12)
    cases = sweep(
        work,
        [KEEP],
        ["h100_sxm"],
        [Parameter("memory.bandwidth", (ridge / 9, 99e12))],
        level="bound",
    )
    (turn,) = crossovers(cases, "memory.bandwidth", level="bound")
    assert (turn.what, turn.before, turn.after) == ("bound", "memory", "compute")
    assert turn.value == pytest.approx(ridge, rel=2e-3)


def test_one_recipe_overtakes_another() -> None:
    """Quantizing costs a launch per matmul; slow launches make bfloat16 the faster."""
    work = workload(matmul(m=64))
    cases = sweep(
        work, [KEEP, W4A8], ["b200"], [Parameter.parse("launch=1e-9:1e-3:x1000")], level="bound"
    )
    turn = next(t for t in crossovers(cases, "launch", level="bound") if t.what == "recipe")
    assert (turn.before, turn.after) == (W4A8, KEEP)
    chip = machine("b200")
    for factor, faster in ((0.99, W4A8), (1.01, KEEP)):
        there = chip.what_if("launch", turn.value * factor)
        seconds = {r: estimate(work, r, there, level="bound").seconds for r in (KEEP, W4A8)}
        assert min(seconds, key=seconds.__getitem__) == faster


def test_curves_that_do_not_cross_have_no_crossover() -> None:
    cases = sweep(
        decoder(1),
        [KEEP],
        ["b200"],
        [Parameter.parse("memory.bandwidth=1e12:2e12:x2")],
        level="bound",
    )
    assert crossovers(cases, "memory.bandwidth", level="bound") == []


def test_what_ten_percent_buys() -> None:
    work = workload(matmul(m=1, n=65536, k=65536))
    found = {e.path: e for e in elasticities(work, KEEP, "h100_sxm", level="bound")}
    assert next(iter(found)) == "memory.bandwidth"
    assert found["memory.bandwidth"].gain == pytest.approx(0.1, rel=0.01)
    assert 0 < found["launch"].gain < 0.001
    assert "power" not in found
    large = workload(matmul(m=65536, n=65536, k=65536))
    compute = elasticities(large, KEEP, "h100_sxm", level="bound")
    # More cores, and faster ones, are more of the rate.
    full = {e.path for e in compute if e.gain > 0.09}
    assert full == {"datapaths.bf16.rate", "cores", "clock"}
    # What the datasheet does not know: the watts hold such kernels down.
    first, *_ = elasticities(large, KEEP, "mi300x")
    assert (first.path, first.gain) == ("power", pytest.approx(0.1, rel=0.05))


@pytest.mark.parametrize("level", ["bound", "kernel"])
@pytest.mark.parametrize("chip", ["a100", "b200", "b300", "mi355x", "tpu_v6e", "maia200"])
@given(st.sampled_from([8, 512]))
@settings(max_examples=2)
def test_a_datapath_that_nothing_runs_on_buys_nothing(level: str, chip: str, m: int) -> None:
    work = decoder(1, m=m)
    used = {term.datapath for term in estimate(work, FP8, chip, level=level).terms}
    used |= {"vector"}
    # Of several that multiply the same formats, each would be taken once it is the fastest.
    same = [p for p in machine(chip).datapaths if any(f.bits == 8 for f in p.operands)]
    used |= {path.name for path in same}
    for each in elasticities(work, FP8, chip, level=level):
        part, _, rest = each.path.partition(".")
        assert part != "datapaths" or rest.partition(".")[0] in used, each


@pytest.mark.parametrize("level", ["bound", "kernel"])
@given(st.sampled_from(["b200", "mi300x", "tpu_v6e"]), st.sampled_from([KEEP, W4A8]))
@settings(max_examples=6)
def test_better_never_costs(level: str, chip: str, recipe: str) -> None:
    for each in elasticities(decoder(2), recipe, chip, level=level):
        # A decode's few blocks leave further cores idle, and a core's share of the memory shrinks.
        assert each.gain > (-0.01 if each.path == "cores" else 0), each


@pytest.mark.parametrize("level", ["bound", "kernel"])
def test_a_thousand_points_in_six_seconds(level: str) -> None:
    """The bar is 10,000 (machine, recipe, batch) points in 60 s on two cores."""
    chips = ["a100", "h100_sxm", "h200", "b200", "mi300x"]
    works = [decoder(80, m=batch) for batch in (1, 4, 16, 64)]
    start = time.process_time()
    parameter = Parameter.parse("memory.bandwidth=1e12:2e12:+80e9")
    cases = sweep(works, [KEEP, W4A8], chips[:4], [parameter], level=level)
    assert len(cases) == 4 * 2 * 4 * 13
    # Of two cores, each of which may be half of one here.
    assert time.process_time() - start < 2 * len(cases) / 10_000 * 60


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    work, chips = workload(matmul(m=64)), [machine("b200")]
    values = ["launch=1e-9:1e-3:x1000"]
    show_sweep(
        [work], [KEEP, W4A8], chips, values, {"level": "bound"}, elasticities=False, as_json=False
    )
    text = capsys.readouterr().out
    assert f"crossover: b200, batch 1: {KEEP} overtakes {W4A8} at launch = " in text
    assert text.count("\nb200 ") == 6
    show_sweep([work], [KEEP], chips, values, {"level": "bound"}, elasticities=True, as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert [point["values"]["launch"] for point in data["curve"]] == pytest.approx(
        [1e-9, 1e-6, 1e-3]
    )
    assert {turn["what"] for turn in data["crossovers"]} == {"bound"}
    assert {row["parameter"] for row in data["elasticities"]} >= {"memory.bandwidth", "launch"}
    show_elasticities([work], [KEEP], chips, {}, as_json=False)
    assert "memory.bandwidth" in capsys.readouterr().out
    show_elasticities([work], [KEEP], chips, {}, as_json=True)
    assert json.loads(capsys.readouterr().out)[0]["gain"] > 0
