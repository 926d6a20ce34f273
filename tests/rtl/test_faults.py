"""Mutations: every seeded fault of a unit is noticed by the vectors that prove the right one."""

from __future__ import annotations

import pytest

from lowprec.rtl import dot_unit, simulate
from lowprec.rtl.faults import FAULTS, Fault
from lowprec.spec import load_datapath
from tests.rtl.tools import needs_yosys
from tests.rtl.vectors import kernel_answers, mismatches, vectors

pytestmark = needs_yosys

CASES = 20_000
# One of each kind of part, on the smallest units.
FEW = {"subnormals have an implicit bit", "alignment off by one", "sticky bit of the result"}


def _caught(fault: Fault) -> int:
    unit = dot_unit(fault.datapath, lanes=min(4, load_datapath(fault.datapath).step or 4))
    given = vectors(unit, CASES, 5)
    wanted = kernel_answers(unit, given)
    assert len(mismatches(unit, simulate(unit, given)["d"], wanted)) == 0
    return len(mismatches(unit, simulate(unit, given, change=fault.change)["d"], wanted))


def test_names_differ() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 12
    assert {fault.name for fault in FAULTS} > FEW


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.name in FEW], ids=lambda f: f.name)
def test_a_fault_is_noticed(fault: Fault) -> None:
    assert _caught(fault) > 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_every_fault_is_noticed(fault: Fault) -> None:
    assert _caught(fault) > 0
