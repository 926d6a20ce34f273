"""Serving: the closed form against the event simulation, queues, and what a pool sends."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowprec.errors import LowprecError
from lowprec.perf import machine
from lowprec.perf.serving import (
    Disaggregated,
    Percentiles,
    Service,
    Traffic,
    backend,
    disaggregated,
    simulate,
    static,
)
from lowprec.perf.serving.disaggregation import transfer_seconds
from lowprec.perf.serving.static import prompt_seconds
from tests.perf.workloads import symbolic


def service(chip: str = "h100_sxm", parallel: str = "tp=1", library: str = "vllm") -> Service:
    return Service(
        symbolic(), "*: keep", machine(chip), parallel=parallel, backend_name=library, level="bound"
    )


ONE = service()


def test_a_grid_point_is_the_estimate_and_the_backends_constants() -> None:
    library = ONE.backend
    kernels = ONE.estimate(16, 1, 1024).seconds
    expected = library.scale * kernels + library.step + 16 * library.sequence
    assert ONE.decode(16, 1024) == pytest.approx(expected)


@settings(deadline=None)
@given(st.floats(1, 400), st.floats(1, 20000), st.floats(1, 3))
def test_steps_are_monotone_and_between_their_grid_points(
    batch: float, context: float, factor: float
) -> None:
    step = ONE.decode(batch, context)
    assert step <= ONE.decode(batch * factor, context) * (1 + 1e-9)
    assert step <= ONE.decode(batch, context * factor) * (1 + 1e-9)
    priced = ONE.estimate(round(batch), 1, round(context)).seconds
    assert ONE.decode(round(batch), round(context)) == pytest.approx(
        ONE.backend.scale * priced + _added(round(batch)), rel=0.1
    )


def _added(batch: int) -> float:
    library = ONE.backend
    return library.step + library.sequence * batch


@pytest.mark.parametrize("users", [1, 8, 64])
@pytest.mark.parametrize("library", ["vllm", "sglang", "trtllm"])
def test_the_closed_form_agrees_with_the_simulation(users: int, library: str) -> None:
    server = service(library=library)
    traffic = Traffic(input=1024, output=256, concurrency=users, spread=0.3)
    formula, events = static(server, traffic), simulate(server, traffic)
    assert formula.tpot.p50 == pytest.approx(events.tpot.p50, rel=0.1)
    assert formula.tokens_per_second == pytest.approx(events.tokens_per_second, rel=0.1)


def test_one_user_alone_waits_for_the_prompt_only() -> None:
    traffic = Traffic(input=2048, output=64, concurrency=1, requests=4)
    prompt, _ = prompt_seconds(ONE, 2048)
    found = simulate(ONE, traffic)
    assert found.ttft.p99 == pytest.approx(prompt)
    assert found.tpot.p50 == pytest.approx(ONE.decode(1, 2048 + 32), rel=0.02)
    assert found.queued == 0
    library = ONE.backend
    assert static(ONE, traffic).ttft.p50 == pytest.approx(library.first + library.prompts * prompt)


def test_tokens_are_conserved_and_the_server_never_idles_in_a_closed_loop() -> None:
    traffic = Traffic(input=512, output=128, concurrency=16, requests=160)
    found = simulate(ONE, traffic)
    assert found.utilisation == pytest.approx(1)
    seconds = 160 * 128 / found.tokens_per_second
    assert found.batch <= 16
    assert seconds >= 160 * 128 / 16 * ONE.decode(1, 512)  # no step is shorter than that of one


def test_a_higher_rate_means_longer_waits() -> None:
    fast = static(ONE, Traffic(input=512, output=128, concurrency=256))
    limit = fast.tokens_per_second / 128
    waits = [
        simulate(ONE, Traffic(input=512, output=128, rate=share * limit, requests=400))
        for share in (0.05, 0.5, 0.9)
    ]
    assert waits[0].ttft.p99 < waits[1].ttft.p99 < waits[2].ttft.p99
    assert waits[0].tpot.p50 < waits[1].tpot.p50 < waits[2].tpot.p50
    assert waits[0].utilisation < 1
    formula = static(ONE, Traffic(input=512, output=128, rate=0.5 * limit))
    assert formula.tpot.p50 == pytest.approx(waits[1].tpot.p50, rel=0.25)


def test_a_rate_beyond_what_is_served_is_an_error() -> None:
    with pytest.raises(LowprecError, match=r"rate: .* requests/s are more than 'h100_sxm' serves"):
        static(ONE, Traffic(input=512, output=128, rate=1e7))


def test_memory_bounds_the_batch_and_the_rest_waits() -> None:
    small = machine("h100_sxm").what_if("memory.capacity", 0.6e9)
    server = Service(symbolic(), "*: keep", small, backend_name="vllm", level="bound")
    room = server.room(2048 + 256)
    assert 1 <= room < 64
    found = simulate(server, Traffic(input=2048, output=256, concurrency=64, requests=128))
    assert found.queued == pytest.approx(64 - room)
    assert found.batch <= room
    with pytest.raises(LowprecError, match="too much; the smallest plan that fits"):
        Service(symbolic(), "*: keep", small.what_if("memory.capacity", 1e8), level="bound").room(
            4096
        )


def test_a_cache_is_taken_in_whole_pages() -> None:
    small = machine("h100_sxm").what_if("memory.capacity", 0.6e9)
    vllm, sglang = (
        Service(symbolic(), "*: keep", small, backend_name=name, level="bound")
        for name in ("vllm", "sglang")
    )
    assert vllm.room(129) == vllm.room(144) < vllm.room(128)
    assert sglang.room(144) < sglang.room(129) < sglang.room(128)


def test_attention_ranks_share_the_users() -> None:
    ranks = service(parallel="attention_dp=4")
    traffic = Traffic(input=1024, output=256, concurrency=64)
    formula, events = static(ranks, traffic), simulate(ranks, traffic)
    assert formula.tpot.p50 == pytest.approx(events.tpot.p50, rel=0.1)


def test_disaggregated_pools() -> None:
    pools = Disaggregated(prefill=1, decode=1)
    traffic = Traffic(input=4096, output=256, concurrency=16)
    apart = disaggregated(ONE, ONE, pools, traffic)
    together = static(ONE, traffic)
    assert apart.chips == 2
    assert apart.tpot.p50 < together.tpot.p50  # no prompt interrupts the answers
    # The whole model's cache: 4 layers, 2 heads of 128, keys and values, 2 bytes.
    assert ONE.cache_per_token() == 4 * 2 * 2 * 128 * 2
    sent = transfer_seconds(ONE, ONE, pools, 4096)
    assert sent > 4096 * 4096 / 50e9
    more = disaggregated(ONE, ONE, Disaggregated(prefill=4, decode=1), traffic)
    assert more.ttft.p50 <= apart.ttft.p50
    assert more.tokens_per_second >= apart.tokens_per_second
    with pytest.raises(LowprecError, match="front_end is not known"):
        transfer_seconds(ONE, ONE, Disaggregated(prefill=1, decode=1, over="front_end"), 1)


def test_who_finds_no_place_to_decode_waits_by_littles_law() -> None:
    traffic = Traffic(input=512, output=256, concurrency=24)
    some = disaggregated(ONE, ONE, Disaggregated(prefill=2, decode=1, places=16), traffic)
    all_in = disaggregated(ONE, ONE, Disaggregated(prefill=2, decode=1), traffic)
    assert (some.queued, all_in.queued) == (8, 0)
    assert some.batch == pytest.approx(16, rel=1e-6)
    answer = 256 * some.tpot.p50
    assert some.ttft.p50 == pytest.approx(8 / 16 * answer, rel=0.01)
    assert some.tokens_per_second < all_in.tokens_per_second
    for found in (some, all_in):  # users = rate times what one of them waits and reads
        held = found.tokens_per_second / 256 * (found.ttft.p50 + 256 * found.tpot.p50)
        assert held == pytest.approx(24)


def test_full_decoding_servers_do_not_fill_evenly() -> None:
    traffic = Traffic(input=512, output=256, concurrency=32)
    first = {
        (decode, places): disaggregated(
            ONE, ONE, Disaggregated(prefill=2, decode=decode, places=places), traffic
        ).ttft.p50
        for decode, places in [(1, 32), (1, 33), (4, 8), (4, 9)]
    }
    assert first[1, 32] == pytest.approx(first[1, 33])  # one server has no other beside it
    assert first[4, 8] > first[4, 9] * 1.05


def test_a_busy_prefill_pool_takes_short_prompts_together() -> None:
    prompts = 8
    length = ONE.backend.chunk // prompts
    alone, _ = prompt_seconds(ONE, length)
    traffic = Traffic(input=length, output=2, concurrency=4096)
    found = disaggregated(ONE, ONE, Disaggregated(prefill=1, decode=4), traffic)
    assert found.utilisation == pytest.approx(1)
    rate = found.tokens_per_second / 2
    assert rate > 1.2 / alone
    assert rate == pytest.approx(prompts / ONE.prefill(ONE.backend.chunk))


def test_percentiles_interpolate() -> None:
    found = Percentiles.of([4.0, 1.0, 2.0, 3.0])
    assert (found.mean, found.p50) == (2.5, 2.5)
    assert found.p90 == pytest.approx(3.7)


@pytest.mark.parametrize("load", [{}, {"concurrency": 1, "rate": 1.0}])
def test_traffic_has_one_load(load: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="either concurrency or rate"):
        Traffic(input=1, output=2, **load)  # type: ignore[arg-type]


def test_one_token_has_no_time_per_further_one() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 2"):
        Traffic(input=1, output=1, concurrency=1)


def test_unknown_backend() -> None:
    with pytest.raises(LowprecError, match="unknown backend 'vlm'; did you mean 'vllm'"):
        backend("vlm")
