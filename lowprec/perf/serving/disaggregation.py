"""Prefill and decode on chips of their own, with the KV cache sent from one to the other."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lowprec.errors import LowprecError
from lowprec.perf.collective import collective
from lowprec.perf.estimates import CALIBRATIONS, find_system
from lowprec.perf.serving.service import Service
from lowprec.perf.serving.static import first_token, prompt_seconds
from lowprec.perf.serving.traffic import Percentiles, Served, Traffic
from lowprec.perf.system import System
from lowprec.spec import Spec

Workers = Annotated[int, Field(ge=1)]
_ROUNDS = 40


class Disaggregated(Spec):
    """How many copies prefill and how many decode, and the network that the cache takes: between
    the chips' own adapters ("scale_out"), or through the hosts ("front_end"). places: answers at a
    time of each copy that decodes, as its server is set up; None: what its memory holds."""

    prefill: Workers
    decode: Workers
    places: Workers | None = None
    over: Literal["scale_out", "front_end"] = "scale_out"


def disaggregated(
    prefill: Service, decode: Service, pools: Disaggregated, traffic: Traffic
) -> Served:
    """TTFT and TPOT of a closed loop of `traffic.concurrency` users, in the steady state.

    Requests pass the prefill pool, the network and the decode pool. Their rate is what the prefill
    pool can do, or the decode pool's places, or what the users ask for, whichever is least. By
    Little's law it gives the batch of the decode pool, and what is left of a user's time is the
    time to the first token; that is not less than what load generators see of the library.
    LowprecError: an open loop, or users whose caches the decode pool cannot hold.
    """
    users = traffic.concurrency
    if users is None:
        raise LowprecError(
            "rate: expected concurrency: disaggregated serving is a closed loop here"
        )
    length = round(traffic.mean_input)
    prompt, _ = prompt_seconds(prefill, length)
    loaded = _loaded_prompt(prefill, length, prompt)
    ranks = pools.prefill * prefill.plan.attention_dp * prefill.plan.dp
    most = ranks / loaded
    sent = transfer_seconds(prefill, decode, pools, length)
    queued = first_token(prefill, prompt, loaded * max(0.0, users / ranks - 1))
    output = traffic.mean_output
    context = traffic.mean_input + output / 2
    room = decode.room(traffic.input + traffic.output)
    places = pools.decode * min(room, pools.places or room)
    held = decode.backend.held * (1 - 1 / pools.decode) if users >= places else 0.0
    busy = float(min(users, places))
    batch = busy / pools.decode
    rate = step = 0.0
    for _ in range(_ROUNDS):
        step = decode.decode(max(1.0, batch), context)
        answer = output * step
        rate = min(most, places / answer, users / (queued + sent + (1 + held) * answer))
        batch = (batch + min(rate * answer, busy) / pools.decode) / 2
    tpot = step + sent / output
    first = users / rate - output * tpot
    layouts = [(pools.prefill, prefill), (pools.decode, decode)]
    chips = pools.prefill * prefill.plan.chips + pools.decode * decode.plan.chips
    low, high = decode.backend.interval
    return Served(
        machine=decode.machine.name,
        model=decode.workload.model,
        recipe=decode.recipe.name,
        parallel=" + ".join(f"{count} x {each.plan.spell()}" for count, each in layouts),
        backend=decode.backend.name,
        method="static",
        calibration=min(prefill.calibration, decode.calibration, key=CALIBRATIONS.index),
        chips=chips,
        batch=batch,
        ttft=Percentiles.constant(first),
        tpot=Percentiles.constant(tpot),
        low=low * tpot,
        high=high * tpot,
        tokens_per_second=rate * output,
        tokens_per_second_per_chip=rate * output / chips,
        utilisation=rate / most,
        queued=max(0, users - places),
    )


def _loaded_prompt(prefill: Service, length: int, alone: float) -> float:
    """Seconds of a rank per prompt while others wait: a pass takes as many as its chunk holds."""
    together = prefill.backend.chunk // length
    return min(alone, prefill.prefill(together * length) / together) if together > 1 else alone


def transfer_seconds(prefill: Service, decode: Service, pools: Disaggregated, tokens: int) -> float:
    """Seconds that the KV cache of `tokens` tokens takes from the prefill to the decode chips, all
    chips of the smaller side sending at once.

    LowprecError: a system without that network.
    """
    system = find_system(decode.system, decode.machine)
    size = tokens * prefill.cache_per_token()
    lanes = min(prefill.plan.stage_chips, decode.plan.stage_chips)
    if pools.over == "front_end":
        if system.front_end is None:
            raise LowprecError(f"system {system.name!r}: front_end is not known")
        hosts = -(-lanes // system.host)
        return size / (system.front_end.value * hosts)
    return collective("send", size / lanes, 2, system, stride=_apart(system, lanes)).seconds


def _apart(system: System, lanes: int) -> int:
    """A distance at which two chips are in different scale-up domains."""
    inner = system.levels[0].size if system.levels else None
    if inner is None:
        raise LowprecError(f"system {system.name!r} has no network between its domains")
    return max(lanes, inner)
