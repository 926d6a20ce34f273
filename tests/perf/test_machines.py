"""Machine files: units against the printed figures, sources, strictness, the known traps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowprec.errors import LowprecError
from lowprec.perf import Machine, Quantity, list_machines, machine

# Dense TFLOPS or TOPS per chip, GB, TB/s, as the vendors' pages print them: NVIDIA A100, H100,
# H200, DGX B200, GB200 NVL72 and DGX B300 pages, AMD MI300X and MI355X pages, Google's v6e page,
# AWS's Trainium2 page. FP4 and INT8 of B300: InferenceX and aiconfigurator@095f58a; bandwidth of
# B200 and both memory figures of B300: aiconfigurator@095f58a; FP8 of v6e, bandwidth of
# Trainium2, capacity of GB200: ml-engineering@744d01e. None: not a format of the chip, or unknown.
PRINTED = {
    # name       tf32    bf16    fp8     fp6    fp4    int8    int4  GB   TB/s
    "a100":      (156,   312,    None,   None,  None,  624,    1248, 80,  2.039),
    "h100_sxm":  (494.5, 989,    1979,   None,  None,  1979,   None, 80,  3.35),
    "h200":      (494.5, 989,    1979,   None,  None,  1979,   None, 141, 4.8),
    "b200":      (1125,  2250,   4500,   4500,  9000,  4500,   None, 180, 7.7),
    "gb200":     (1250,  2500,   5000,   5000,  10000, 5000,   None, 186, 8.0),
    "b300":      (1125,  2250,   4500,   4500,  13500, 153.5,  None, 270, 7.75),
    "mi300x":    (653.7, 1307.4, 2614.9, None,  None,  2614.9, None, 192, 5.3),
    "mi355x":    (None,  2516.6, 5033,   10066, 10066, 5033,   None, 288, 8.0),
    "tpu_v6e":   (None,  918,    918,    None,  None,  1836,   None, 32,  1.638),
    "trainium2": (667,   667,    1299,   None,  None,  None,   None, 96,  2.9),
}  # fmt: skip
FAMILIES = {
    "tf32": ("tfloat32",),
    "bf16": ("bfloat16",),
    "fp8": ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3"),
    "fp6": ("float6_e2m3fn",),
    "fp4": ("float4_e2m1fn",),
    "int8": ("int8",),
    "int4": ("int4",),
}
# Cores, MHz, W, GB/s of the scale-up links one way, chips in the domain, Gb/s of the adapter, MB
# of cache, and TFLOPS of FP32 on the general units (A100 datasheet, H100 whitepaper, Blackwell
# brief for GB200; v6e is an assumption, Trainium2 8 Vector Engines of 1.0).
BODY = {
    "a100": (108, 1410, 400, 300, 8, 200, 40, 19.5),
    "h100_sxm": (132, 1830, 700, 450, 8, 400, 50, 66.9),
    "h200": (132, 1830, 700, 450, 8, 400, 50, 66.9),
    "b200": (148, 1965, 1000, 900, 8, 400, 126, 75),
    "gb200": (152, 2062, 1200, 900, 72, 800, 126, 80),
    "b300": (148, None, 1100, 900, 8, 800, 126, 75),
    "mi300x": (304, 2100, 750, 448, 8, 400, 32, 163.4),
    "mi355x": (256, 2400, 1400, 535.5, 8, 400, 32, 157.3),
    "tpu_v6e": (1, None, None, 400, 256, None, None, 14.3),
    "trainium2": (8, None, None, 640, 64, 200, 224, 8),
}


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
    assert set(list_machines()) == set(PRINTED) == set(BODY)


@pytest.mark.parametrize("name", list_machines())
def test_rates_are_the_printed_dense_ones(name: str) -> None:
    chip = machine(name)
    *rates, capacity, bandwidth = PRINTED[name]
    for (family, formats), printed in zip(FAMILIES.items(), rates, strict=True):
        expected = None if printed is None else pytest.approx(printed * 1e12)
        assert rate(chip, *formats) == expected, family
    assert chip.memory.capacity.value == pytest.approx(capacity * 1e9)
    assert chip.memory.bandwidth.value == pytest.approx(bandwidth * 1e12)


@pytest.mark.parametrize("name", list_machines())
def test_body_is_as_printed(name: str) -> None:
    chip = machine(name)
    up = chip.scale_up
    assert up is not None
    links = (up.bandwidth, up.domain, chip.scale_out.bandwidth if chip.scale_out else None)
    found = (chip.cores, chip.clock, chip.power, *links, chip.memory.cache, chip.vector.rate)
    units = (1, 1e6, 1, 1e9, 1, 1e9 / 8, 1e6, 1e12)
    for quantity, printed, unit in zip(found, BODY[name], units, strict=True):
        expected = None if printed is None else pytest.approx(printed * unit)
        assert (quantity and quantity.value) == expected


@pytest.mark.parametrize("name", list_machines())
def test_every_value_says_where_it_is_from(name: str) -> None:
    chip = machine(name)
    values = list(quantities(chip))
    assert len(values) > 8
    for value in values:
        assert len(value.source) > 10
        assert value.kind != "derived" or value.note
        assert value.kind != "assumed" or value.note
        assert all(len(claim.source) > 10 for claim in value.disputed)
    assert Machine.model_validate_json(chip.model_dump_json()) == chip


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


def test_fp8_of_v6e_buys_bytes_only() -> None:
    chip = machine("tpu_v6e")
    assert rate(chip, "float8_e4m3fn") == rate(chip, "bfloat16") == rate(chip, "int8") / 2


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


def test_unknown_machine_names_the_nearest() -> None:
    with pytest.raises(LowprecError, match="unknown machine 'h100'; did you mean 'h100_sxm'"):
        machine("h100")
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


def test_neither_torch_nor_numpy() -> None:
    code = "import sys, lowprec.perf; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
