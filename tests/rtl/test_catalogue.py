"""All that the package ships as hardware: generated, simulated, synthesised.

    LOWPREC_CACHE=$(mktemp -d) pytest tests/rtl/test_catalogue.py -m slow -n 2

starts from nothing; docs/rtl.md says how long that takes. Without LOWPREC_CACHE, modules that were
mapped before are taken from the cache.
"""

from __future__ import annotations

import pytest

from lowprec.perf.datapath_cost import structural_cost
from lowprec.rtl import Unit, dot_unit, format_unit
from lowprec.rtl.cost import cost
from lowprec.spec import BlockFormat, list_datapaths, list_formats, load_format
from tests.rtl.tools import needs_yosys
from tests.rtl.vectors import check

pytestmark = [needs_yosys, pytest.mark.slow]


def _bits(name: str) -> int:
    fmt = load_format(name)
    return (fmt.element if isinstance(fmt, BlockFormat) else fmt).bits


def proven(unit: Unit) -> None:
    """100,000 vectors without a mismatch, and gates."""
    check(unit, 100_000, oracle=60)
    found = cost(unit)
    assert found.gates_per_lane > 0
    model = structural_cost(
        unit.datapath, unit.a, unit.b, unit.lanes, unit.scale, unit.shared
    ).gates_per_lane
    print(f"{unit.name}: {found.gates_per_lane:.0f} gates per lane, by the model {model:.0f}")


@pytest.mark.parametrize("name", list_datapaths())
def test_every_datapath(name: str) -> None:
    """At its full width."""
    proven(dot_unit(name))


@pytest.mark.parametrize("name", [name for name in list_formats() if _bits(name) <= 8])
def test_every_format_of_up_to_eight_bits(name: str) -> None:
    """Scalars and blocks, at the width of the default unit."""
    proven(format_unit(name))
