"""Continuous batching pass by pass, as an event simulation: queues, chunks, percentiles."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from lowprec.perf.serving.service import Service
from lowprec.perf.serving.traffic import Percentiles, Served, Traffic


@dataclass
class Request:
    """One request, and when it came, had its first token and was done."""

    arrived: float
    input: int
    output: int
    done_tokens: int = 0
    first: float = 0.0
    finished: float = 0.0

    @property
    def tpot(self) -> float:
        return (self.finished - self.first) / max(1, self.output - 1)


@dataclass
class Server:
    """The scheduler's state. A running answer is kept in `ends` by the number of the decode step
    after which it is done, so that a step costs the same whatever the batch."""

    service: Service
    room: int
    waiting: deque[Request] = field(default_factory=deque)
    prompts: list[Request] = field(default_factory=list)
    ends: list[tuple[int, int, Request]] = field(default_factory=list)
    step: int = 0
    context: float = 0.0
    busy: float = 0.0
    batches: float = 0.0
    most_waiting: int = 0

    @property
    def running(self) -> int:
        return len(self.ends)

    def admit(self) -> None:
        """Moves requests from the queue while the chips' memory holds them to their end."""
        while self.waiting and self.running + len(self.prompts) < self.room:
            self.prompts.append(self.waiting.popleft())
        self.most_waiting = max(self.most_waiting, len(self.waiting))

    def next_pass(self) -> tuple[float, list[Request], bool]:
        """Seconds of the next pass, the prompts that it completes, and whether answers advance."""
        ranks = self.service.plan.attention_dp * self.service.plan.dp
        # One rank's budget; with several ranks, each takes its own prompts of the same sizes.
        budget = self.service.backend.chunk
        mixed = self.service.backend.mixed
        tokens = behind = 0
        complete: list[Request] = []
        for request in list(self.prompts):
            if tokens >= budget * ranks:
                break
            take = min(request.input - request.done_tokens, budget * ranks - tokens)
            behind = max(behind, request.done_tokens)
            tokens += take
            request.done_tokens += take
            if request.done_tokens == request.input:
                complete.append(request)
        for request in complete:
            self.prompts.remove(request)
        decodes = self.running > 0 and (mixed or not tokens)
        mean = self.context / self.running if self.running else 0.0
        share = tokens / ranks
        if tokens and decodes:
            seconds = self.service.mixed(self.running, mean, share, behind)
        elif tokens:
            seconds = self.service.prefill(share, behind)
        else:
            seconds = self.service.decode(self.running, mean)
        return seconds, complete, decodes

    def advance(self, now: float) -> list[Request]:
        """One more token for every running answer; those that are done."""
        self.step += 1
        self.context += self.running
        done = []
        while self.ends and self.ends[0][0] <= self.step:
            request = heapq.heappop(self.ends)[2]
            request.finished = now
            self.context -= request.input + request.output
            done.append(request)
        return done

    def start(self, request: Request, now: float) -> Request | None:
        """The prompt's pass gave the first token; the request, if that was all."""
        request.first = request.finished = now
        if request.output == 1:
            return request
        self.context += request.input + 1
        heapq.heappush(self.ends, (self.step + request.output - 1, id(request), request))
        return None


def simulate(service: Service, traffic: Traffic) -> Served:
    """TTFT and TPOT of every request of `traffic`, served in passes of one server.

    First come, first served; a request enters when the memory holds it to its end. The first token
    comes from the pass that completes the prompt.
    """
    import simpy

    environment = simpy.Environment()
    server = Server(service, service.room(traffic.input + traffic.output))
    requests = _requests(traffic)
    arrival: dict[str, Any] = {"event": environment.event()}
    done: list[Request] = []
    process = environment.process(_passes(environment, server, arrival, requests, done, traffic))
    if traffic.rate is not None:
        environment.process(_arrivals(environment, server, arrival, requests, traffic))
    environment.run(until=process)
    return _served(service, server, done, environment.now)


def _requests(traffic: Traffic) -> deque[Request]:
    draw = random.Random(traffic.seed)

    def length(most: int) -> int:
        return draw.randint(max(1, round(most * (1 - traffic.spread))), most)

    return deque(
        Request(0.0, length(traffic.input), length(traffic.output)) for _ in range(traffic.count)
    )


def _arrivals(
    environment: Any,
    server: Server,
    arrival: dict[str, Any],
    requests: deque[Request],
    traffic: Traffic,
) -> Generator[Any, Any, None]:
    draw = random.Random(traffic.seed + 1)
    while requests:
        yield environment.timeout(draw.expovariate(traffic.rate or 1.0))
        _ask(environment, server, requests)
        if not arrival["event"].triggered:
            arrival["event"].succeed()


def _ask(environment: Any, server: Server, requests: deque[Request]) -> None:
    if requests:
        request = requests.popleft()
        request.arrived = environment.now
        server.waiting.append(request)


def _passes(
    environment: Any,
    server: Server,
    arrival: dict[str, Any],
    requests: deque[Request],
    done: list[Request],
    traffic: Traffic,
) -> Generator[Any, Any, None]:
    closed = traffic.concurrency is not None
    for _ in range(traffic.concurrency or 0):
        _ask(environment, server, requests)
    while len(done) < traffic.count:
        server.admit()
        if not (server.running or server.prompts):
            arrival["event"] = environment.event()
            yield arrival["event"]
            continue
        batch = server.running
        seconds, complete, decodes = server.next_pass()
        yield environment.timeout(seconds)
        server.busy += seconds
        server.batches += seconds * batch
        finished = server.advance(environment.now) if decodes else []
        finished += [r for r in (server.start(p, environment.now) for p in complete) if r]
        done += finished
        for _ in finished if closed else ():
            _ask(environment, server, requests)


def _served(service: Service, server: Server, done: list[Request], seconds: float) -> Served:
    rate = sum(request.output for request in done) / seconds
    tpot = Percentiles.of([r.tpot for r in done if r.output > 1] or [0.0])
    low, high = service.backend.interval
    return Served(
        machine=service.machine.name,
        model=service.workload.model,
        recipe=service.recipe.name,
        parallel=service.plan.spell(),
        backend=service.backend.name,
        method="simulated",
        calibration=service.calibration,
        chips=service.plan.chips,
        batch=server.batches / server.busy,
        ttft=Percentiles.of([r.first - r.arrived for r in done]),
        tpot=tpot,
        low=low * tpot.p50,
        high=high * tpot.p50,
        tokens_per_second=rate,
        tokens_per_second_per_chip=rate / service.plan.chips,
        utilisation=server.busy / seconds,
        queued=server.most_waiting,
    )
