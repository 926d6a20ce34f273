"""What is asked of a server, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from lowprec.perf.validation.point import Calibration
from lowprec.spec import Spec

Tokens = Annotated[int, Field(ge=1)]


class Traffic(Spec):
    """Requests of `input` tokens that are answered with `output` tokens, two at least: there is no
    time per further token of one (a prompt alone is an `estimate` of its prefill).

    concurrency: so many users, each of whom asks again as soon as they are answered (closed loop);
    rate: requests per second that arrive at random (Poisson, open loop); one of the two. requests:
    how many a simulation serves. spread: lengths are uniform between (1 - spread) times and once
    those above. seed: of arrivals and lengths.
    """

    input: Tokens
    output: Annotated[int, Field(ge=2)]
    concurrency: Tokens | None = None
    rate: Annotated[float, Field(gt=0)] | None = None
    requests: Tokens | None = None
    spread: Annotated[float, Field(ge=0, lt=1)] = 0.0
    seed: int = 0

    @model_validator(mode="after")
    def _one_load(self) -> Traffic:
        if (self.concurrency is None) == (self.rate is None):
            raise ValueError("expected either concurrency or rate")
        return self

    @property
    def count(self) -> int:
        """Requests of a simulation: by default ten per user, at least 64, as load generators do."""
        return self.requests or max(64, 10 * (self.concurrency or 20))

    @property
    def mean_input(self) -> float:
        return self.input * (1 - self.spread / 2)

    @property
    def mean_output(self) -> float:
        return self.output * (1 - self.spread / 2)


class Percentiles(Spec):
    """Seconds that half, 90 % and 99 % of the requests stay below, and their mean."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        ordered = sorted(values)

        def at(share: float) -> float:
            place = share * (len(ordered) - 1)
            below = int(place)
            above = min(below + 1, len(ordered) - 1)
            return ordered[below] + (place - below) * (ordered[above] - ordered[below])

        return cls(mean=sum(ordered) / len(ordered), p50=at(0.5), p90=at(0.9), p99=at(0.99))

    @classmethod
    def constant(cls, value: float) -> Percentiles:
        return cls(mean=value, p50=value, p90=value, p99=value)


class Served(Spec):
    """ttft: seconds from a request to its first token. tpot: seconds between its further tokens,
    the mean of each request. low, high: 90 % interval of the median tpot. tokens_per_second:
    output tokens of all chips. utilisation: share of the time in which the server runs a pass.
    queued: requests at most that wait for memory at one time."""

    machine: str
    model: str
    recipe: str
    parallel: str
    backend: str
    method: Literal["static", "simulated"]
    calibration: Calibration
    chips: int
    batch: float
    ttft: Percentiles
    tpot: Percentiles
    low: float
    high: float
    tokens_per_second: float
    tokens_per_second_per_chip: float
    utilisation: float
    queued: int = 0
