"""System files: they load, agree with their machine, and topologies give what they should."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowprec.errors import LowprecError
from lowprec.perf import Machine, estimate, list_machines, machine
from lowprec.perf.quantity import Quantity
from lowprec.perf.system import System, list_systems, load_system
from lowprec.perf.topology import Level
from tests.perf.workloads import decoder


@pytest.mark.parametrize("name", list_systems())
def test_a_system_agrees_with_its_machine(name: str) -> None:
    system = load_system(name)
    chip = system.machine
    assert system == load_system(name)
    assert System.model_validate_json(system.model_dump_json()) == system
    inner = system.levels[0]
    assert chip.scale_up
    assert inner.bandwidth.value == chip.scale_up.bandwidth.value
    assert inner.size == (chip.scale_up.domain and chip.scale_up.domain.value)
    assert inner.reduces == chip.scale_up.reduces
    assert inner.topology == chip.scale_up.topology
    if len(system.levels) > 1 and chip.scale_out:
        assert system.levels[1].bandwidth.value == chip.scale_out.bandwidth.value
    for path, quantity in system.parameters().items():
        if not path.startswith("machine."):
            assert quantity.kind in ("datasheet", "measured") or quantity.note, path
    if system.rack and chip.power:
        assert system.rack.power.value > system.rack.chips * chip.power.value * 0.7


@pytest.mark.parametrize("name", list_machines())
def test_every_machine_alone_is_a_system(name: str) -> None:
    chip = machine(name)
    system = System.of(chip)
    assert load_system(name).levels == system.levels
    assert (len(system.levels) == 0) == (not chip.scale_up and not chip.scale_out)
    assert math.isinf(system.chips) == bool(chip.scale_out)


def quantity(value: float) -> Quantity:
    return Quantity(value=value, kind="assumed", source="a test's figure")


def level(topology: str, size: int, dimensions: tuple[int, ...] = ()) -> Level:
    return Level.model_validate(
        {
            "name": "x",
            "size": size,
            "topology": topology,
            "dimensions": dimensions,
            "bandwidth": quantity(600.0),
        }
    )


def test_what_a_group_gets() -> None:
    switch, mesh = level("switch", 8), level("mesh", 8)
    assert [switch.usable(n) for n in (2, 8)] == [600, 600]
    assert mesh.usable(2) == pytest.approx(600 / 7)
    assert mesh.usable(8) == 600
    # A ring along one of three axes has a third of the links, and a line half of those.
    torus = level("torus", 512, (8, 8, 8))
    assert torus.usable(8) == pytest.approx(200)
    assert torus.usable(4) == pytest.approx(100)
    assert torus.usable(512) == 600
    tapered = level("fat_tree", 8).model_copy(update={"taper": 4.0})
    assert tapered.usable(8) == 150


def test_an_exchange_on_a_torus_passes_the_middle() -> None:
    """Half of the chips send half of their bytes over the two cuts of an axis of n."""
    torus = level("torus", 64, (8, 8))
    link = 600 / 2 / 2
    chips, links = 64, 2 * 8
    crossing_per_byte = chips / 2 / 2
    assert torus.exchange(64) == pytest.approx(links * link / crossing_per_byte)
    assert torus.exchange(64) < torus.usable(64)


def test_hops() -> None:
    assert level("switch", 8).hops(8) == 7
    assert level("mesh", 8).hops(8) == 1
    assert level("torus", 64, (8, 8)).hops(64) == 8
    assert level("torus", 64, (8, 8)).hops(4) == 3


FILE = """
name = "pod"
title = "A pod"
machine = "b200"
[sources]
s = "a source long enough"
[[levels]]
name = "node"
size = 8
topology = "switch"
bandwidth = { value = 900e9, kind = "datasheet", source = "s" }
[[levels]]
name = "cluster"
size = 64
topology = "fat_tree"
taper = 2.0
bandwidth = { value = 50e9, kind = "datasheet", source = "s" }
"""


def written(folder: Path, text: str, name: str = "pod") -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def test_a_file_of_ones_own_and_changes(tmp_path: Path) -> None:
    system = load_system(written(tmp_path, FILE))
    assert system.chips == 512
    assert system.machine is machine("b200")
    half = load_system(
        written(
            tmp_path,
            'based_on = "gb200_nvl72"\n[[levels]]\nname = "rack"\nsize = 36\nbandwidth = 450e9',
            "half",
        )
    )
    assert (half.name, half.levels[0].size, half.levels[0].bandwidth.value) == ("half", 36, 450e9)
    assert half.levels[1] == load_system("gb200_nvl72").levels[1]
    what_if = half.what_if("levels.rack.bandwidth", 1e12).what_if("machine.clock", 1e9)
    assert what_if.levels[0].bandwidth.value == 1e12
    assert what_if.machine.clock
    assert what_if.machine.clock.value == 1e9
    chip = written(tmp_path, 'based_on = "b200"\nscale_up.bandwidth = 450e9', "slow")
    assert load_system(chip).levels[0].bandwidth.value == 450e9


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"b200"', '"b20"', r"unknown machine 'b20'"),
        ("size = 8", "size = 1", r"levels.*size: .*greater than or equal to 2"),
        ("taper = 2.0", "taper = 0.5", r"taper: .*greater than or equal to 1"),
        ('topology = "switch"', 'topology = "torus"', r"dimensions: expected for a torus"),
        ('"switch"', '"torus"\ndimensions = [2, 2]', r"do not multiply to size 8"),
        ('"cluster"', '"node"', r"levels: two have one name"),
        ("size = 8\n", "", r"levels: only the outermost"),
        ('source = "s" }\n[[', 'source = "t" }\n[[', r"unknown source 't'"),
        ("taper", "tapper", r"tapper: unknown key"),
    ],
)  # fmt: skip
def test_bad_files(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in FILE
    path = written(tmp_path, FILE.replace(old, new, 1))
    with pytest.raises(LowprecError, match=message):
        load_system(path)


def test_unknown_names() -> None:
    with pytest.raises(
        LowprecError, match="unknown system 'gb200_nvl7'; did you mean 'gb200_nvl72'"
    ):
        load_system("gb200_nvl7")
    with pytest.raises(
        LowprecError, match=r"unknown parameter 'levels\.rak\.bandwidth'; did you mean"
    ):
        load_system("gb200_nvl72").what_if("levels.rak.bandwidth", 1)


def test_a_system_of_other_chips_is_refused() -> None:
    with pytest.raises(LowprecError, match=r"h100_sxm, not b200; systems of those: dgx_b200"):
        estimate(decoder(2), "*: keep", "b200", system="dgx_h100", parallel="tp=2")
    what_if = machine("h100_sxm").scaled("memory.bandwidth", 2)
    assert estimate(decoder(2), "*: keep", what_if, system="dgx_h100", parallel="tp=2").chips == 2


def halved(chip: Machine) -> Machine:
    """Half the rates and half the bandwidth of `chip`, and links that cost next to nothing."""
    for path in chip.parameters():
        if path.endswith(".rate") or path == "memory.bandwidth":
            chip = chip.scaled(path, 0.5)
        elif path.startswith("scale_up.bandwidth"):
            chip = chip.what_if(path, 1e30)
    return chip


@settings(max_examples=20)
@given(
    st.sampled_from(["h100_sxm", "b200", "mi300x", "tpu_v6e"]),
    st.sampled_from(["*: keep", "*: weight=mxfp4/rceil activation=mxfp8_e4m3/rceil"]),
    st.sampled_from([1, 8, 256]),
)
def test_two_half_machines_are_never_better_than_one(name: str, recipe: str, batch: int) -> None:
    whole, half = machine(name), halved(machine(name))
    work = decoder(2, m=batch)
    one = estimate(work, recipe, whole, parallel="tp=1")
    two = estimate(work, recipe, half, parallel="tp=2")
    assert two.chips == 2 * one.chips
    assert two.seconds >= one.seconds * (1 - 1e-9)
