"""Fits the constants of serving libraries to benchmarks/validation/serving.csv.

python benchmarks/fit_serving.py     # rewrites lowprec/perf/serving/backends.toml; 2 minutes

Seven constants per library from times per output token and times to the first one, of servers that
prefill and decode together; `held` and `waits`, which all libraries share, from those that do so
apart. Then each chip, model and format is left out in turn. The intervals come from left-out chips.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from lowprec.perf.hardware import machine
from lowprec.perf.serving import Served
from lowprec.perf.serving.backend import FILE, Backend, backend
from lowprec.perf.validation.files import read_points
from lowprec.perf.validation.point import Point
from lowprec.perf.validation.serving import Load, load_of

POINTS = Path(__file__).parent / "validation" / "serving.csv"
LIBRARIES = ("vllm", "sglang", "trtllm")
# Where each constant is before any point is seen, its standard deviation, and its largest value.
PRIOR: Mapping[str, tuple[float, float, float]] = {
    "scale": (1.0, 0.15, 2.0),
    "quantizers": (0.5, 0.4, 1.0),
    "step": (1e-3, 1e-3, 1.0),
    "sequence": (5e-6, 5e-6, 1.0),
    "first": (0.05, 0.1, 10.0),
    "prompts": (2.0, 1.0, 100.0),
    "burst": (0.1, 0.1, 10.0),
}
# What is expected of a time per output token, and of one to the first, which has queues in it.
NOISE = (0.1, 0.3)
HEAD = """# Written by benchmarks/fit_serving.py from validation/serving.csv: {points} servers of
# ai-dynamo/aiconfigurator@095f58a systems/silicon_sample.csv (InferenceX; Apache-2.0), a random
# sample of those whose users' caches fit. Median errors of the time per output token and of the
# time to the first one:
#   fitted                  {fitted}
#   a whole chip left out   {chip}
#   a whole model left out  {model}
#   a whole format left out {format}
# of {apart} servers that prefill and decode on chips of their own, fitted to by `held` alone:
#                           {other}
#   a whole chip left out   {alone}
# interval, first_interval: quantiles of measured over predicted with chips left out. held: median
# share of an answer's time in the first tokens of {full} servers apart whose places are all taken.
# waits: 95 % of the servers apart wait no longer for a first token than first_interval says and
# that share of an answer's time. chunk, mixed, page: the libraries' defaults for servers (pages:
# vLLM's block_size, SGLang's page_size, TensorRT-LLM's tokens_per_block).
"""


@dataclass(frozen=True)
class Server:
    """One published server: how it was run, and both times in seconds."""

    load: Load
    library: str
    chip: str
    model: str
    format: str
    times: tuple[float, float]

    def ratios(self, library: Backend | None = None) -> tuple[float, float]:
        """Predicted over measured: time per output token, and to the first."""
        found = self.load.served(library)
        return found.tpot.p50 / self.times[0], found.ttft.p50 / self.times[1]


def servers() -> Iterator[Server]:
    """Rows come in pairs, TTFT and TPOT of one server. Those with a note seem to be more than they
    say (speculative decoding): faster than 0.8 times another row of the same set-up."""
    points = list(read_points(POINTS))
    for first, token in zip(points[::2], points[1::2], strict=True):
        if not token.note:
            yield _server(first, token)


def _server(first: Point, token: Point) -> Server:
    model = token.what.split(" ")[0]
    assert first.value is not None
    assert token.value is not None
    load = load_of(token, model)
    return Server(
        load=load,
        library=token.conditions.split(" ")[0],
        chip=machine(token.hw).name,
        model=load.services[0].workload.model,
        format=token.format,
        times=(token.value / 1e3, first.value / 1e3),
    )


def fit(name: str, data: Sequence[Server]) -> Backend:
    """Least squares of log errors with a robust loss and a normal prior."""
    center, spread, most = (np.array(column) for column in zip(*PRIOR.values(), strict=True))

    def library(z: Any) -> Backend:
        values = np.maximum(center + spread * z, 0).round(9)
        return backend(name).model_copy(update=dict(zip(PRIOR, map(float, values), strict=True)))

    def residuals(z: Any) -> Any:
        ratios = np.log([server.ratios(library(z)) for server in data])
        return np.concatenate([(ratios / NOISE).ravel(), z])

    own = np.array([getattr(backend(name), key) for key in PRIOR])
    low, high = (0.02 * center * (center > 0.5) - center) / spread, (most - center) / spread
    start = np.clip((own - center) / spread, low + 1e-6, high - 1e-6)
    found = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", diff_step=3e-3, max_nfev=12
    )
    return library(found.x)


def left_out(data: Sequence[Server], key: Callable[[Server], str]) -> list[tuple[float, float]]:
    """Ratios of servers whose group was left out of the fit."""
    found = []
    for name in LIBRARIES:
        own = [s for s in data if s.library == name]
        for value in sorted({key(s) for s in own}):
            rest = [s for s in own if key(s) != value]
            if rest:
                library = fit(name, rest)
                found += [s.ratios(library) for s in own if key(s) == value]
        print(name, "left out by", key.__name__, file=sys.stderr, flush=True)
    return found


def chip(server: Server) -> str:
    return server.chip


def model(server: Server) -> str:
    return server.model


def fmt(server: Server) -> str:
    return server.format


def say(ratios: Sequence[tuple[float, float]]) -> str:
    errors = np.abs(np.array(ratios) - 1)
    both = zip(np.median(errors, 0), np.quantile(errors, 0.9, 0), strict=True)
    return ", ".join(f"{middle:.1%} (p90 {high:.0%})" for middle, high in both)


def interval(ratios: Sequence[tuple[float, float]], which: int) -> str:
    low, high = np.quantile(1 / np.array(ratios)[:, which], [0.05, 0.95])
    return f"[{low:.2f}, {high:.2f}]"


def full(apart: Sequence[Server]) -> list[tuple[Server, int]]:
    """Those that decode on several servers whose places are all taken, and how many servers."""
    pools = [(s, s.load.pools) for s in apart]
    return [(s, p.decode) for s, p in pools if p and p.places and p.decode > 1]


def held(servers: Sequence[tuple[Server, int]], fitted: Mapping[str, Backend]) -> float:
    """Median wait for a place, as a share of the answer's time on one of very many servers."""
    shares = []
    for server, decode in servers:
        found = server.load.served(fitted[server.library].model_copy(update={"held": 0.0}))
        wait = server.times[1] - found.ttft.p50
        shares.append(wait / (answer(server, found) * (1 - 1 / decode)))
    return max(0.0, round(float(np.median(shares)), 3))


def waits(servers: Sequence[Server], fitted: Mapping[str, Backend], most: float) -> float:
    """What users of servers apart wait for a first token beyond `most` times what is predicted: the
    share of an answer's time that 95 % of the servers stay below."""
    shares = []
    for server in servers:
        found = server.load.served(fitted[server.library])
        shares.append((server.times[1] - most * found.ttft.p50) / answer(server, found))
    return max(0.0, round(float(np.quantile(shares, 0.95)), 2))


def fit_apart(
    apart: Sequence[Server], fitted: Mapping[str, Backend], chips: Sequence[tuple[float, float]]
) -> dict[str, Backend]:
    """The libraries with both shares of servers apart."""
    own = with_share(fitted, "held", held(full(apart), fitted))
    most = float(np.quantile(1 / np.array(chips)[:, 1], 0.95))
    return with_share(own, "waits", waits(apart, own, most))


def with_share(fitted: Mapping[str, Backend], name: str, share: float) -> dict[str, Backend]:
    return {key: library.model_copy(update={name: share}) for key, library in fitted.items()}


def left_out_apart(
    apart: Sequence[Server], fitted: Mapping[str, Backend], chips: Sequence[tuple[float, float]]
) -> str:
    """Errors of servers apart whose chip was left out of `held` and `waits`, the share of first
    tokens within their intervals, and `held`."""
    ratios, inside, shares = [], [], []
    for name in sorted({chip(s) for s in apart}):
        own = fit_apart([s for s in apart if chip(s) != name], fitted, chips)
        low, high = np.quantile(1 / np.array(chips)[:, 1], [0.05, 0.95])
        for server in (s for s in apart if chip(s) == name):
            library = own[server.library]
            found = server.load.served(library)
            ratios.append(server.ratios(library))
            most = high * found.ttft.p50 + library.waits * answer(server, found)
            inside.append(low * found.ttft.p50 <= server.times[1] <= most)
        shares.append(f"{name} {library.held}")
    return f"{say(ratios)}, {np.mean(inside):.0%} inside;\n#{' ' * 27}held: {', '.join(shares)}"


def answer(server: Server, found: Served) -> float:
    return found.tpot.p50 * server.load.traffic.mean_output


def section(library: Backend, own: Sequence[Server], chips: Sequence[tuple[float, float]]) -> str:
    error = say([s.ratios(library) for s in own])
    lines = [f"\n[{library.name}]"]
    lines += [f"{key} = {getattr(library, key):.3g}" for key in (*PRIOR, "held", "waits")]
    lines += [f"chunk = {library.chunk}", f"mixed = {str(library.mixed).lower()}"]
    lines += [f"page = {library.page}"]
    lines += [f"interval = {interval(chips, 0)}", f"first_interval = {interval(chips, 1)}"]
    return "\n".join([*lines, f'source = "{len(own)} servers: {error}"', ""])


def main() -> None:
    every = list(servers())
    data = [s for s in every if s.load.pools is None]
    apart = [s for s in every if s.load.pools is not None]
    fitted = {name: fit(name, [s for s in data if s.library == name]) for name in LIBRARIES}
    chips, models, formats = (left_out(data, key) for key in (chip, model, fmt))
    alone = left_out_apart(apart, fitted, chips)
    fitted = fit_apart(apart, fitted, chips)
    text = HEAD.format(
        points=len(data),
        fitted=say([s.ratios(fitted[s.library]) for s in data]),
        chip=say(chips),
        model=say(models),
        format=say(formats),
        apart=len(apart),
        other=say([s.ratios(fitted[s.library]) for s in apart]),
        full=len(full(apart)),
        alone=alone,
    )
    print(text)
    for name in LIBRARIES:
        text += section(fitted[name], [s for s in data if s.library == name], chips)
    FILE.write_text(text)


if __name__ == "__main__":
    main()
