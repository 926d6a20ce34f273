"""Watts, joules and dollars, computed by hand."""

from __future__ import annotations

import pytest

from lowprec.errors import LowprecError
from lowprec.perf import estimate, machine
from lowprec.perf.fleet import IDLE, STREAMING, budget, fleet
from lowprec.perf.system import list_systems, load_system
from tests.perf.workloads import decoder, matmul, workload

KEEP = "*: keep"


def test_a_streaming_pass_draws_what_streaming_draws() -> None:
    chip = machine("h100_sxm").what_if("launch", 1e-12)
    found = estimate(workload(matmul(m=1, n=16384, k=16384)), KEEP, chip, level="bound")
    result = fleet(found, chip)
    (term,) = found.terms
    share = term.utilisation + STREAMING * (1 - term.utilisation)
    assert result.chip.value == pytest.approx(700 * share, rel=1e-3)
    # All-in watts of the machine's file, 1730, of which 700 are the chip's own.
    assert result.wall.value == pytest.approx(result.chip.value + 1730 - 700)
    assert result.tokens_per_joule.value == pytest.approx(
        found.tokens_per_second / result.wall.value
    )
    assert result.cost_per_million_tokens is not None
    assert result.cost_per_million_tokens.value == pytest.approx(
        1.30 / 3600 / found.tokens_per_second * 1e6
    )
    assert {result.chip.kind, result.wall.kind} == {"assumed"}


def test_computing_draws_more_than_streaming_and_waiting_less() -> None:
    chip = machine("h100_sxm")
    large, small, tiny = (
        fleet(estimate(workload(matmul(m, n, n)), KEEP, chip, level="bound"), chip).chip.value
        for m, n in ((8192, 8192), (1, 16384), (1, 64))
    )
    assert IDLE * 700 <= tiny < small < large <= 700


def test_a_machine_without_watts_is_an_error() -> None:
    chip = machine("h100_sxm").model_copy(update={"power": None})
    found = estimate(decoder(2), KEEP, chip, level="bound")
    with pytest.raises(LowprecError, match="'h100_sxm': power is not known"):
        fleet(found, chip)


def test_racks_in_a_budget() -> None:
    system = load_system("gb200_nvl72")
    assert system.rack is not None
    chip = system.machine
    found = estimate(decoder(2), KEEP, chip, level="bound", parallel="tp=8", system=system)
    held = budget(1e6, found, chip, system)
    assert held.racks == int(1e6 // system.rack.power.value)
    assert held.chips == held.racks * 72
    assert held.tokens_per_second.value == pytest.approx(held.chips // 8 * found.tokens_per_second)
    with pytest.raises(LowprecError, match="the budget is 1000 W"):
        budget(1000, found, chip, system)


def test_a_system_without_racks_is_an_error() -> None:
    plain = [s for s in map(load_system, list_systems()) if s.rack is None]
    if plain:
        found = estimate(decoder(2), KEEP, plain[0].machine, level="bound")
        with pytest.raises(LowprecError, match="has no rack"):
            budget(1e6, found, plain[0].machine, plain[0])
