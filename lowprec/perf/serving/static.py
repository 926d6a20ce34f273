"""Closed form of a server under steady load: mean times, without the luck of arrivals."""

from __future__ import annotations

from lowprec.errors import LowprecError
from lowprec.perf.serving.service import Service
from lowprec.perf.serving.traffic import Percentiles, Served, Traffic

_ROUNDS = 20


def static(service: Service, traffic: Traffic) -> Served:
    """TTFT and TPOT of `traffic` in the steady state.

    Of c users, those whose answer is running share every decode step; in the time of one answer
    each of the others' prompts is processed once, which every running answer waits for. So
    TPOT = step(batch) + prompts per answer * prompt / output. Throughput takes a first token to be
    its prompt, half a step to get in, and the prompts in front (the mean wait of an M/D/1 queue);
    the TTFT that is reported is what load generators see of the library (see `Backend`).
    """
    users = traffic.concurrency
    if users is None:
        return _open_loop(service, traffic)
    room = service.room(traffic.input + traffic.output)
    output = traffic.mean_output
    prompt, added = prompt_seconds(service, round(traffic.mean_input))
    ranks = service.plan.attention_dp * service.plan.dp
    context = traffic.mean_input + output / 2
    most = batch = float(min(users, room))
    tpot = ttft = 0.0
    for _ in range(_ROUNDS):
        step = service.decode(max(1.0, batch), context)
        tpot = step + max(0.0, most - 1) / ranks * added / output
        busy = min(0.95, most / ranks * added / (output * tpot + prompt))
        ttft = prompt + step / 2 * (batch > 1) + busy * prompt / (2 * (1 - busy))
        target = most * output * tpot / (output * tpot + ttft)
        batch = (batch + max(1.0, target)) / 2
    rate = most * output / (ttft + output * tpot)
    waiting = max(0, users - room)
    others = prompt * max(0.0, most / ranks - 1)
    first = first_token(service, prompt, others) + waiting / room * output * tpot
    low, high = service.backend.interval
    return Served(
        machine=service.machine.name,
        model=service.workload.model,
        recipe=service.recipe.name,
        parallel=service.plan.spell(),
        backend=service.backend.name,
        method="static",
        calibration=service.calibration,
        chips=service.plan.chips,
        batch=batch,
        ttft=Percentiles.constant(first),
        tpot=Percentiles.constant(tpot),
        low=low * tpot,
        high=high * tpot,
        tokens_per_second=rate,
        tokens_per_second_per_chip=rate / service.plan.chips,
        utilisation=1.0,
        queued=waiting,
    )


def first_token(service: Service, prompt: float, others: float) -> float:
    """Seconds to a first token as load generators see it, who start all users at once: of a prompt
    of `prompt` seconds, and `others` for the prompts of the rank's other users (see `Backend`)."""
    library = service.backend
    return library.first + library.prompts * prompt + library.burst * others


def prompt_seconds(service: Service, length: int) -> tuple[float, float]:
    """Seconds until a prompt of `length` tokens alone is processed, in chunks, and what it adds to
    steps that run anyway: less the pass that reads the weights, where both are one pass."""
    total = added = 0.0
    done = 0
    alone = service.decode(1, 1) if service.backend.mixed else 0.0
    while done < length:
        chunk = min(service.backend.chunk, length - done)
        one = service.prefill(chunk, done)
        total, added, done = total + one, added + max(0.0, one - alone), done + chunk
    return total, added


def _open_loop(service: Service, traffic: Traffic) -> Served:
    """As many users as Little's law says: rate times the time of one answer."""
    rate = traffic.rate or 0.0
    room = service.room(traffic.input + traffic.output)
    fewest, most = 1, room

    def at(users: int) -> Served:
        return static(service, traffic.model_copy(update={"rate": None, "concurrency": users}))

    top = at(most)
    if rate * traffic.output > top.tokens_per_second:
        raise LowprecError(
            f"rate: {rate:g} requests/s are more than {service.machine.name!r} serves: "
            f"{top.tokens_per_second / traffic.output:.3g}/s with {room} sequences in memory"
        )
    while fewest < most:
        middle = (fewest + most) // 2
        if at(middle).tokens_per_second < rate * traffic.output:
            fewest = middle + 1
        else:
            most = middle
    return at(fewest)
