"""Units for several formats: each mode is the datapath of its formats, at its rate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowprec.errors import LowprecError
from lowprec.rtl import Mode, MultiUnit, Unit, multi_unit, simulate
from lowprec.spec import load_datapath, load_format
from tests.rtl.tools import needs_yosys
from tests.rtl.vectors import Codes, kernel_answers, mismatches, oracle_mismatches, vectors

pytestmark = needs_yosys

PATH = load_datapath("blackwell_tcgen05_fp8")
FP4: Any = load_format("float4_e2m1fn")


def _mode(a: str, b: str, rate: int = 1) -> Mode:
    fmt: Any = load_format(a), load_format(b)
    return Mode(*fmt, rate)


MODES = (
    _mode("float8_e4m3fn", "float8_e4m3fn"),
    _mode("float8_e5m2", "float8_e4m3fn"),
    _mode("float6_e2m3fn", "float6_e3m2fn"),
    _mode("float4_e2m1fn", "float4_e2m1fn", 2),
)


def _alone(unit: MultiUnit, mode: int) -> Unit:
    """The unit that does this mode and nothing else."""
    chosen = unit.modes[mode]
    return Unit(unit.datapath, chosen.a, chosen.b, unit.lanes(mode), unit.stages)


def _given(unit: MultiUnit, mode: int, alone: dict[str, Codes]) -> dict[str, Codes]:
    found = {"c": alone["c"], "mode": np.full(len(alone["c"]), mode, np.uint64)}
    for x in "ab":
        rate = unit.modes[mode].rate
        places = np.arange(rate, dtype=np.uint64) * np.uint64(unit.slot_bits(x) // rate)
        slots = alone[x].reshape(len(alone["c"]), unit.slots, rate) << places
        found[x] = slots.sum(-1, dtype=np.uint64)
    return found


def _check(unit: MultiUnit, cases: int) -> None:
    for mode in range(len(unit.modes)):
        single = _alone(unit, mode)
        given = vectors(single, cases, mode)
        d = simulate(unit, _given(unit, mode, given))["d"]
        assert mismatches(single, d, kernel_answers(single, given)).tolist() == []
        few = {k: v[:: cases // 8] for k, v in given.items()}
        assert oracle_mismatches(single, few, d[:: cases // 8]) == []


def test_every_mode_is_the_unit_of_its_formats() -> None:
    _check(multi_unit(PATH, MODES[::3], slots=2, stages=2), 1000)


@pytest.mark.slow
def test_every_mode_on_many_vectors() -> None:
    _check(multi_unit(PATH, MODES, slots=16), 100_000)


def test_a_pair_must_fit_the_multiplier() -> None:
    with pytest.raises(LowprecError, match="float6_e2m3fn twice: significands of 4 bits"):
        multi_unit(PATH, (MODES[0], _mode("float6_e2m3fn", "float6_e2m3fn", 2)), slots=4)
    with pytest.raises(LowprecError, match="'cdna1_fp16': several formats"):
        multi_unit(load_datapath("cdna1_fp16"), MODES, slots=2)
    with pytest.raises(LowprecError, match="'hopper_fp8' takes float8_e4m3fn, float8_e5m2"):
        multi_unit(load_datapath("hopper_fp8"), MODES, slots=2)
