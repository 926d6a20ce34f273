"""The structural cost model: against the synthesised units, left-out ones, and published claims."""

from __future__ import annotations

import csv
import time
from pathlib import Path

import pytest

from lowprec.errors import LowprecError
from lowprec.perf import Machine, estimate, load_workload, machine
from lowprec.perf.datapath import choose
from lowprec.perf.datapath_cost import constants, format_cost, gates, structural_cost
from lowprec.perf.pieces import PIECES
from lowprec.perf.published import predict
from lowprec.perf.silicon import swap
from lowprec.spec import (
    BlockFormat,
    FloatFormat,
    list_datapaths,
    load_datapath,
    load_format,
    load_quantizer,
)
from lowprec.spec.default_datapath import default_datapath

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
POINTS = BENCHMARKS / "datapath_costs.csv"
PUBLISHED = BENCHMARKS / "validation" / "datapath_cost.csv"


def per_lane(name: str, lanes: int | None = None) -> float:
    return structural_cost(load_datapath(name), lanes=lanes).gates_per_lane


@pytest.mark.parametrize("name", list_datapaths())
def test_every_datapath_has_a_cost(name: str) -> None:
    found = structural_cost(load_datapath(name))
    assert found.gates == pytest.approx(sum(found.components.values()))
    assert 0 < found.low < found.gates < found.high
    assert found.delay > 10


def test_it_is_quick() -> None:
    path = load_datapath("blackwell_mxf8")
    start = time.perf_counter()
    for _ in range(100):
        structural_cost(path)
    assert time.perf_counter() - start < 1


def test_the_window_is_the_knob() -> None:
    assert 1.2 < per_lane("blackwell_tcgen05_fp8") / per_lane("hopper_fp8") < 1.6
    assert 1.1 < per_lane("blackwell_nvf4") / per_lane("blackwell_mxf4") < 1.4
    assert per_lane("blackwell_mxf4") < 0.5 * per_lane("blackwell_mxf8")


def test_every_price_is_positive_or_nothing() -> None:
    assert set(constants().gates) == set(PIECES)
    assert min(constants().gates.values()) >= 0
    assert gates(dict.fromkeys(PIECES, 1.0), constants().gates) > 10


def test_codebooks_cost_what_they_are_looked_up_as_and_a_table() -> None:
    e2m1, e3m0 = (format_cost(load_format(n)) for n in ("float4_e2m1fn", "float4_e3m0"))
    assert format_cost(load_format("ternary")).gates < e3m0.gates < e2m1.gates
    assert format_cost(load_format("lns8")).gates > 20 * e2m1.gates
    # Only the bits that its values need of a float64's significand.
    assert format_cost(load_format("takum8")).gates < 3 * e2m1.gates


def test_what_blocks_share_costs_something() -> None:
    of = {n: format_cost(load_format(n)) for n in ("mx9", "msfp16", "mxfp4", "mxfp4_plus")}
    assert of["mx9"].components["align"] > of["msfp16"].components["align"]
    assert of["mxfp4_plus"].components["unpack"] > of["mxfp4"].components["unpack"]
    for zero, none in (("int8_zp_channel", "int8_channel"), ("gguf_q4_k", "gguf_q4_0")):
        wide, narrow = format_cost(load_format(zero)), format_cost(load_format(none))
        assert narrow.gates < wide.gates < 2 * narrow.gates


def test_lanes_beyond_the_step_are_refused() -> None:
    with pytest.raises(LowprecError, match="expected 1 to 32"):
        structural_cost(load_datapath("hopper_fp8"), lanes=64)


def test_the_points_are_there() -> None:
    with POINTS.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 80
    assert {row["window"] for row in rows} >= {"0", "13", "18", "25", "30", "35"}


def test_published_numbers_lie_in_their_intervals() -> None:
    with PUBLISHED.open() as file:
        rows = list(csv.DictReader(file))
    by_definition, modelled = [], []
    for row in rows:
        if (found := predict(row)) is not None:
            inside = found.low * 0.999 <= float(row["value"]) <= found.high * 1.001
            (by_definition if found.low == found.high else modelled).append(inside)
    assert len(by_definition) >= 20
    assert all(by_definition)
    assert len(modelled) >= 50
    assert sum(modelled) >= 0.8 * len(modelled)


def test_what_no_structure_gives_is_not_predicted() -> None:
    row = {"metric": "efficiency", "format": "FP8", "datapath": "cluster", "value": "575",
           "node": "12 nm", "normalised_to": "absolute", "unit": "GFLOP/s/W"}  # fmt: skip
    assert predict(row) is None


def test_another_datapath_in_the_same_area() -> None:
    b200, old, new = machine("b200"), *map(load_datapath, ["blackwell_mxf4", "blackwell_nvf4"])
    found = swap(b200, "mxf4nvf4", old, new)
    ratio = per_lane("blackwell_mxf4") / per_lane("blackwell_nvf4")
    assert found.lanes == pytest.approx(ratio)
    before = next(p for p in b200.datapaths if p.name == "mxf4nvf4").rate.value
    assert found.rate == pytest.approx(before * found.lanes * found.clock * found.power)
    assert found.low < found.rate < found.high
    assert "mxf4nvf4" not in [p.name for p in found.machine.datapaths]
    same = swap(b200, "mxf4nvf4", old, old)
    assert same.rate == pytest.approx(before)
    assert swap(b200, "mxf4nvf4", old, new, area=0.5, power=2).lanes == pytest.approx(ratio / 2)
    assert swap(b200, "mxf4nvf4", old, old, power=0.5).rate == pytest.approx(before / 2)
    beside = swap(b200, "mxf4nvf4", old, new, keep=True).machine
    assert len(beside.datapaths) == len(b200.datapaths) + 1
    with pytest.raises(LowprecError, match="unknown datapath 'mxf4'"):
        swap(b200, "mxf4", old, new)


@pytest.mark.parametrize(
    "text",
    ["mx9/floor", "hif4/amax", "uint4_zp_g32_float16/minmax", "gguf_q4_k/minmax", "gguf_q6_k/amax",
     "mxfp4_plus/floor", "vsquant_int4_s4/amax"],
)  # fmt: skip
def test_a_unit_for_what_blocks_share_runs_the_format(text: str) -> None:
    quantizer = load_quantizer(text)
    fmt = quantizer.format
    assert isinstance(fmt, BlockFormat)
    b200, old = machine("b200"), load_datapath("blackwell_mxf8")
    found = swap(b200, "mxf8f6f4", old, default_datapath(fmt), shared=fmt)
    before = next(p for p in b200.datapaths if p.name == "mxf8f6f4").rate.value
    assert found.passes == (4 if fmt.offset else 1)
    assert found.rate == pytest.approx(before * found.lanes * found.clock / found.passes)
    work = load_workload("llama-3.1-8b").at(batch=64)
    recipe = f"*: weight={text} activation={text}"
    estimates = [estimate(work, recipe, each, level="bound") for each in (b200, found.machine)]
    reasons = [{t.reason for t in each.terms if t.kind == "matmul"} for each in estimates]
    assert any("converted to bfloat16" in reason for reason in reasons[0])
    assert f"{found.datapath.name} multiplies {fmt.name} by {fmt.name}" in reasons[1]
    assert Machine.model_validate_json(found.machine.model_dump_json()) == found.machine


def test_such_a_unit_takes_nothing_else() -> None:
    fmt, bf16 = load_format("mx9"), load_format("bfloat16")
    assert isinstance(fmt, BlockFormat)
    unit = swap(
        machine("b200"), "mxf8f6f4", load_datapath("blackwell_mxf8"), default_datapath(fmt),
        shared=fmt, keep=True,
    ).machine  # fmt: skip
    assert isinstance(bf16, FloatFormat)
    choice = choose(unit.datapaths, fmt, bf16, bf16, "b200")
    assert not choice.native
    assert choice.reason.startswith("for_mx9 multiplies mx9 by itself only")
    choice = choose(machine("b200").datapaths, fmt, fmt, bf16, "b200")
    assert choice.reason.startswith("no datapath reads mx9 with its inner scales")


def test_a_machine_s_file_may_name_a_block_format(tmp_path: Path) -> None:
    text = """
based_on = "b200"
title = "what if"
[[datapaths]]
name = "mx9"
operands = [OPERAND]
rate = { value = 4e15, kind = "assumed", source = "own" }
[sources]
own = "drawn up for this test"
"""

    def written(name: str, operand: str) -> Path:
        path = tmp_path / f"{name}.toml"
        path.write_text(f'name = "{name}"{text.replace("OPERAND", operand)}')
        return path

    fmt = load_format("mx9")
    assert machine(written("known", '"mx9"')).datapaths[-1].reads(fmt)
    with pytest.raises(LowprecError, match=r"operands.0\..*'flot'.*expected tags: 'float'"):
        machine(written("wrong", '{ name = "q", kind = "flot", bits = 3 }'))
