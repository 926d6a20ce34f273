"""Machine files: laws that every file keeps, the known traps, strictness of the reader.

A new machine is one file: its `[facts]` are checked as it is read, and the laws here run over it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowprec.errors import LowprecError
from lowprec.perf import Machine, Quantity, estimate, list_machines, machine
from lowprec.perf.hardware import machine_aliases
from lowprec.perf.system import load_system
from lowprec.spec import read_toml

FILES = Path(machine.__code__.co_filename).parent / "machines"


def quantities(value: object) -> Iterator[Quantity]:
    if isinstance(value, Quantity):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from quantities(item)
    elif hasattr(value, "model_fields_set"):
        for _, item in value:  # type: ignore[attr-defined]
            yield from quantities(item)


def rate(chip: Machine, *names: str) -> float | None:
    """The fastest rate at which the chip multiplies a format by itself."""
    rates = [d.rate.value for d in chip.datapaths if {f.name for f in d.operands} & set(names)]
    return max(rates, default=None)


def test_the_machines() -> None:
    assert len(list_machines()) >= 24
    facts = [name for name in list_machines() if "facts" in read_toml(FILES / f"{name}.toml")]
    assert len(facts) >= 20


@pytest.mark.parametrize("name", list_machines())
def test_every_value_says_where_it_is_from(name: str) -> None:
    chip = machine(name)
    values = list(quantities(chip))
    assert len(values) > 8
    for value in values:
        assert len(value.source) > 10
        assert value.kind == "datasheet" or value.kind == "measured" or value.note
        assert all(len(claim.source) > 10 for claim in value.disputed)
    assert Machine.model_validate_json(chip.model_dump_json()) == chip


@pytest.mark.parametrize("name", list_machines())
def test_no_unit_slipped(name: str) -> None:
    """A factor of 1000, or of 8 in the links, breaks one of these ranges, wide as they are."""
    chip = machine(name)
    assert 0.008 < chip.memory.capacity.value / chip.memory.bandwidth.value < 0.6
    peak = max(path.rate.value for path in chip.datapaths)
    assert 50 < peak / chip.memory.bandwidth.value < 3000
    assert 3 < peak / chip.vector.rate.value < 500
    if chip.cores and chip.clock:
        per_cycle = peak / chip.cores.value / chip.clock.value
        assert 1000 < per_cycle < 300_000
    if chip.power:
        assert 50 < chip.power.value < 2500
        assert 0.2e12 < peak / chip.power.value < 20e12
    for level in (chip.scale_up, chip.scale_out):
        if level:
            assert 2e9 < level.bandwidth.value < chip.memory.bandwidth.value / 2
    if chip.tco and chip.tco.watts and chip.power:
        assert chip.power.value < chip.tco.watts.value < 4 * chip.power.value


@pytest.mark.parametrize("name", list_machines())
def test_narrower_operands_are_never_slower(name: str) -> None:
    """But for INT8 where it was taken away; and bfloat16 is what all fall back to."""
    chip = machine(name)
    bf16 = rate(chip, "bfloat16")
    fp8 = rate(chip, "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3")
    fp4 = rate(chip, "float4_e2m1fn")
    assert bf16
    assert fp8 is None or fp8 >= bf16
    assert fp4 is None or (fp8 is not None and fp4 >= fp8) or name == "gb10"


@pytest.mark.parametrize("name", list_machines())
def test_a_mesh_shares_its_links_between_pairs(name: str) -> None:
    up = machine(name).scale_up
    if up and up.topology == "mesh" and up.pair and up.domain:
        assert up.pair.value * (up.domain.value - 1) == pytest.approx(up.bandwidth.value)


def test_names_by_which_chips_are_known() -> None:
    aliases = machine_aliases()
    assert set(aliases.values()) == set(list_machines())
    for alias, name in aliases.items():
        assert machine(alias) is machine(name)
    known = {
        "H100-SXM-80GB": "h100_sxm",
        "NVIDIA H200-SXM5-141GB": "h200",
        "B200-SXM (HGX/DGX)": "b200",
        "MI308X (80 CU)": "mi308x",
        "MI355X/MI350X": "mi355x",
        "gfx942/80": "mi308x",
        "H100 (HBM2e variant, lower TDP)": "h100_hbm2e",
        "b200_sxm": "b200",
        "Gaudi 2": "gaudi2",
        "TPU v6e": "tpu_v6e",
    }
    assert {alias: machine(alias).name for alias in known} == known


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("NVIDIA H200 141GB HBM3e", "h200"),
        ("H100 SXM5 80 GB", "h100_sxm"),
        ("H100 HBM2e", "h100_hbm2e"),
        ("nvidia_h100-pcie-80gb", "h100_pcie"),
        ("A100 40GB", "a100_40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100_pcie_40gb"),
        ("DGX B200 192GB", "b200"),
        ("RTX5090", "rtx_5090"),
        ("Intel Gaudi3 OAM", "gaudi3"),
        ("AMD MI300X", "mi300x"),
        ("TPUv5e", "tpu_v5e"),
    ],
)
def test_makers_boards_and_spaces_tell_no_chips_apart(spelled: str, name: str) -> None:
    assert machine(spelled) is machine(name)


@pytest.mark.parametrize(
    ("spelled", "message"),
    [
        ("A100 16GB", "a100 has 80 GB, a100_40gb has 40 GB"),
        ("NVIDIA H200 96GB", "unknown machine 'NVIDIA H200 96GB': h200 has 141 GB"),
        ("NVIDIA", "unknown machine 'NVIDIA'"),
        ("80GB", "unknown machine '80GB'"),
        ("", "unknown machine ''"),
        ("MI300", "unknown machine 'MI300'"),
    ],
)
def test_gigabytes_and_what_is_left_do(spelled: str, message: str) -> None:
    with pytest.raises(LowprecError, match=message):
        machine(spelled)


def test_two_machines_with_one_alias_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import lowprec.perf.hardware as hardware

    twice = {"aliases": ["H100!"]}
    monkeypatch.setattr(hardware, "read_toml", lambda _: twice)
    with pytest.raises(LowprecError, match="a10 and a100: both 'H100!'"):
        machine_aliases.__wrapped__()


def test_the_two_blackwells_are_two_machines() -> None:
    assert rate(machine("gb200"), "bfloat16") == pytest.approx(
        rate(machine("b200"), "bfloat16") * 10 / 9
    )
    assert (machine("b200").cores.value, machine("gb200").cores.value) == (148, 152)


def test_b300_gained_fp4_and_lost_int8() -> None:
    b200, b300 = machine("b200"), machine("b300")
    assert rate(b300, "int8") < rate(b200, "int8") / 29
    fp4 = next(d.rate for d in b300.datapaths if d.name == "mxf4nvf4")
    assert {claim.value for claim in fp4.disputed} >= {13e15, 14e15, 15e15}


def test_fp6_is_fp8_speed_on_nvidia_and_fp4_speed_on_amd() -> None:
    b200, amd = machine("b200"), machine("mi355x")
    assert rate(b200, "float6_e3m2fn") == rate(b200, "float8_e5m2")
    assert rate(amd, "float6_e3m2fn") == rate(amd, "float4_e2m1fn") == 2 * rate(amd, "float8_e5m2")


@pytest.mark.parametrize(
    ("name", "largest"), [("mi300x", 240), ("mi355x", 448), ("trainium2", 240)]
)
def test_which_e4m3(name: str, largest: float) -> None:
    e4m3 = [
        fmt
        for path in machine(name).datapaths
        for fmt in path.operands
        if fmt.bits == 8 and getattr(fmt, "precision", 0) == 4
    ]
    assert {fmt.max for fmt in e4m3} == {largest}
    assert {fmt.bias for fmt in e4m3} == {8 if name == "mi300x" else 7}


def test_dense_not_sparse() -> None:
    """What a datasheet prints with 2:4 sparsity stands in no file as a rate."""
    for name, printed in {"h100_sxm": 1979, "b200": 4500, "l40s": 733, "h100_pcie": 1513}.items():
        assert rate(machine(name), "bfloat16") == pytest.approx(printed * 1e12 / 2, rel=0.02)
    assert rate(machine("gaudi3"), "bfloat16") == 1677e12  # not the 1835 of 1750 MHz
    assert rate(machine("gb10"), "float4_e2m1fn") == 500e12
    mi455x = next(p.rate for p in machine("mi455x").datapaths if p.name == "f4_scaled")
    assert mi455x.value == 20.15e15
    assert mi455x.disputed[0].value == 2 * 20.15e15


def test_one_family_many_products() -> None:
    hopper = {n for n in list_machines() if machine(n).family == "hopper"}
    assert hopper >= {"h100_sxm", "h100_pcie", "h100_hbm2e", "h200", "h200_nvl", "h800", "gh200"}
    assert machine("h800").scale_up.bandwidth.value < machine("h100_sxm").scale_up.bandwidth.value
    assert machine("h100_hbm2e").memory.bandwidth.value == 2.4e12
    assert rate(machine("mi308x"), "bfloat16") == pytest.approx(
        rate(machine("mi300x"), "bfloat16") * 80 / 304, rel=0.001
    )


def test_formats_that_are_taken_or_never_were() -> None:
    assert rate(machine("gb300"), "int8") < rate(machine("gb200"), "int8") / 29
    for name in ("h100_sxm", "h200", "b200", "b300"):
        assert rate(machine(name), "int4") is None
    assert rate(machine("mi300x"), "float4_e2m1fn") is None
    assert rate(machine("tpu_v5e"), "float8_e4m3fn", "float8_e5m2") is None


@pytest.mark.parametrize("name", ["tpu_v5p", "tpu_v6e", "gaudi3", "inferentia2", "arc_b60"])
def test_fp8_that_buys_bytes_only(name: str) -> None:
    chip = machine(name)
    assert rate(chip, "float8_e5m2") == rate(chip, "bfloat16")


def test_mxfp4_of_trainium3_buys_bytes_only() -> None:
    chip = machine("trainium3")
    assert rate(chip, "float4_e2m1fn") == rate(chip, "float8_e4m3fn")


def test_the_accumulator_decides_the_rate() -> None:
    """FP8 of the RTX 5090 with FP32 accumulation is half of what it is with FP16."""
    consumer, workstation = machine("rtx_5090"), machine("rtx_pro_6000")
    per_core = [
        rate(c, "float8_e4m3fn") / c.cores.value / c.clock.value for c in (consumer, workstation)
    ]
    assert per_core[1] == pytest.approx(2 * per_core[0], rel=0.01)
    assert rate(consumer, "float4_e2m1fn") == pytest.approx(4 * rate(consumer, "float8_e4m3fn"))


def test_links_are_one_way_and_ports_are_shared() -> None:
    for name, both_ways in {
        "h100_sxm": 900,
        "b200": 1800,
        "rubin_r200": 3600,
        "tpu_v5p": 1200,
    }.items():
        assert machine(name).scale_up.bandwidth.value == both_ways * 1e9 / 2
    assert machine("mi300x").scale_up.pair.value == 64e9
    gaudi = machine("gaudi2")
    assert gaudi.scale_up.bandwidth.value + gaudi.scale_out.bandwidth.value == 24 * 12.5e9


def test_rubin_counts_packages_and_dense() -> None:
    chip = machine("rubin_r200")
    assert chip.scale_up.domain.value == 72
    assert rate(chip, "float4_e2m1fn") == 35e15
    assert chip.memory.bandwidth.disputed[0].value == 13e12


def test_what_sources_disagree_on_is_kept() -> None:
    disputed = {
        (name, path)
        for name in list_machines()
        for path, quantity in machine(name).parameters().items()
        if quantity.disputed
    }
    assert disputed >= {
        ("b200", "memory.capacity"),
        ("b200", "memory.bandwidth"),
        ("b300", "datapaths.mxf4nvf4.rate"),
        ("b300", "datapaths.int8.rate"),
        ("gb300", "datapaths.int8.rate"),
        ("rubin_r200", "datapaths.int8.rate"),
        ("l40s", "memory.cache"),
        ("mi355x", "scale_up.bandwidth"),
    }


def test_unknown_machine_names_the_nearest() -> None:
    with pytest.raises(LowprecError, match="unknown machine 'h200x'; did you mean 'h200'"):
        machine("h200x")
    with pytest.raises(LowprecError, match="unknown machine 'trainum2'; did you mean 'trainium2'"):
        machine("trainum2")


GOOD = """
name = "chip"
title = "A chip"
vendor = "Vendor"
launch = { value = 1e-6, kind = "assumed", source = "s" }
[sources]
s = "a source long enough"
[memory]
capacity = { value = 1e9, kind = "datasheet", source = "s" }
bandwidth = { value = 1e12, kind = "datasheet", source = "s" }
[[datapaths]]
name = "vector"
operands = ["float32"]
rate = { value = 1e12, kind = "datasheet", source = "s" }
"""


def written(folder: Path, text: str, name: str = "chip") -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    chip = machine(written(tmp_path, GOOD))
    assert chip.memory.capacity.source == "a source long enough"
    assert chip.clock is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("vendor =", "vender =", r"vender: unknown key; did you mean 'vendor'"),
        ('"float32"', '"float33"', r"datapaths.0.operands: unknown format 'float33'.*'float32'"),
        ("1e9", "-1e9", r"memory.capacity.value: .*greater than 0"),
        ("1e9", "inf", r"memory.capacity.value: .*finite"),
        ("1e9", '"80 GB"', r"memory.capacity.value: .*number"),
        ('"datasheet"', '"rumour"', r"kind: .*'datasheet'"),
        ('capacity = { value = 1e9, kind = "datasheet", source = "s" }', "", r"memory.capacity: "),
        ('source = "s" }\nb', 'source = "t" }\nb', r"capacity.source: unknown source 't'"),
        ("[memory]", 'u = "another source"\n[memory]', r"'u' is cited by no value"),
        ('s = "a source long enough"', 's = "short"', r"source"),
        ('"vector"', '"scalar"', r"'vector'"),
        ('"chip"', '"chop"', r"name: 'chop' differs from the file's 'chip'"),
        ("[sources]", "[source]", r"sources: expected a table"),
        ("[memory]", "[memory", r"chip.toml: "),
    ],
)  # fmt: skip
def test_bad_files(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new))
    with pytest.raises(LowprecError, match=message) as caught:
        machine(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    written(tmp_path, GOOD)
    with pytest.raises(LowprecError, match=r"no such file; did you mean 'chip\.toml'"):
        machine(tmp_path / "chap.toml")


def test_based_on(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
based_on = "B200-SXM"
memory.bandwidth = 16e12
[[datapaths]]
name = "mxf4nvf4"
rate = 12e15
[[datapaths]]
name = "fp6"
operands = ["float6_e3m2fn"]
rate = 9e15
""",
        "wide",
    )
    chip, base = machine(path), machine("b200")
    assert (chip.name, chip.based_on, chip.aliases) == ("wide", "b200", ())
    assert chip.memory.bandwidth == Quantity.what_if(16e12)
    assert chip.memory.capacity == base.memory.capacity
    assert rate(chip, "float4_e2m1fn") == 12e15
    changed = next(p for p in chip.datapaths if p.name == "mxf4nvf4")
    assert changed.scalings == next(p for p in base.datapaths if p.name == "mxf4nvf4").scalings
    assert rate(chip, "float6_e3m2fn") == 9e15
    assert len(chip.datapaths) == len(base.datapaths) + 1
    # On the file just written, beside it.
    twice = machine(written(tmp_path, 'based_on = "wide.toml"\ncores = 296', "twice"))
    assert (twice.based_on, twice.cores.value) == ("b200", 296)
    assert twice.memory.bandwidth.value == 16e12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('based_on = "b20"', r"based_on: unknown machine 'b20'; did you mean"),
        ("based_on = 3", r"based_on: expected the name of a machine"),
        ('based_on = "chip.toml"', r"based on itself"),
        (
            'based_on = "b200"\nmemory.bandwith = 1e12',
            r"memory.bandwith: unknown key; did you mean 'bandwidth'",
        ),
        ('based_on = "b200"\nmemory.bandwidth = -1', r"memory.bandwidth.value: .*greater than 0"),
        (
            'based_on = "b200"\n[[datapaths]]\nrate = 1',
            r"datapaths.0: expected a table with the name",
        ),
        ('based_on = "b200"\n[[datapaths]]\nname = "int9"\nrate = 1', r"datapaths.*operands"),
        (
            'based_on = "b200"\n[facts]\nsource = "as printed"\nper_cycle = { bf16 = 4096 }',
            r"facts.per_cycle.bf16: gives 1.191e\+15, the file says 2.25e\+15",
        ),
        (
            'based_on = "b200"\n[facts]\nsource = "as printed"\nbus = { bits = 1024, rate = 8e9 }',
            r"facts.bus: gives",
        ),
        (
            'based_on = "b200"\n[facts]\nsource = "as printed"\nper_cycle = { bf61 = 4096 }',
            r"unknown datapath 'bf61'; did you mean 'bf16'",
        ),
    ],
)
def test_bad_changes(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(LowprecError, match=message) as caught:
        machine(path)
    assert str(path) in str(caught.value)


def test_a_what_if_has_what_was_measured_on_its_base(tmp_path: Path) -> None:
    path = written(tmp_path, 'based_on = "b200"', "same")
    for recipe in ("*: keep", "*: weight=nvfp4/amax activation=nvfp4/amax"):
        same, base = (estimate("llama-3.1-8b", recipe, each) for each in (path, "b200"))
        assert same.seconds == base.seconds
        assert (same.calibration, base.calibration) == ("transferred", "fitted")
        assert same.low < base.low < base.high < same.high


def test_machines_of_ours_are_no_what_ifs() -> None:
    """Though their files say only what differs from another machine's."""
    assert all(machine(name).based_on is None for name in list_machines())
    mine = machine("mi308x").scaled("memory.bandwidth", 2)
    assert (mine.name, mine.based_on) == ("mi308x", "mi308x")


def test_what_if() -> None:
    base = machine("b200")
    for path, quantity in base.parameters().items():
        changed = base.scaled(path, 1.1)
        assert changed.parameters()[path].value == pytest.approx(1.1 * quantity.value)
        others = {k: v for k, v in changed.parameters().items() if k != path}
        assert others == {k: v for k, v in base.parameters().items() if k != path}
        assert changed.based_on == "b200"
    assert base.what_if("memory.cache_bandwidth", 2e13).memory.cache_bandwidth.value == 2e13


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "memory.bandwith",
            1,
            "unknown parameter 'memory.bandwith'; did you mean 'memory.bandwidth'",
        ),
        ("datapaths.bf17.rate", 1, "did you mean 'datapaths.bf16.rate'"),
        ("datapaths.bf16", 1, "unknown parameter"),
        ("memory", 1, "unknown parameter"),
        ("name", 1, "unknown parameter"),
        ("memory.bandwidth.value", 1, "unknown parameter"),
        ("cores", 0, "cores: expected a positive number"),
        ("cores", float("nan"), "cores: expected a positive number"),
    ],
)
def test_bad_parameters(path: str, value: float, message: str) -> None:
    with pytest.raises(LowprecError, match=re.escape(message)):
        machine("b200").what_if(path, value)


def test_the_documented_files(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "machines.md").read_text()
    chip, half, pod = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert rate(machine(written(tmp_path, chip)), "float8_e5m2") == 1.979e15
    assert machine(written(tmp_path, half, "half")).scale_up.bandwidth.value == 450e9
    assert load_system(written(tmp_path, pod, "pod")).machine.name == "gb200"


def test_neither_torch_nor_numpy() -> None:
    code = "import sys, lowprec.perf; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
