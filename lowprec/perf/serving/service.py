"""Service: one copy of a model on its chips, and how long its passes take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import cached_property
from math import exp, log
from pathlib import Path
from typing import Any

from lowprec.perf.capacity import check, need
from lowprec.perf.estimates import (
    CALIBRATIONS,
    Estimate,
    Pricing,
    estimate,
    find_system,
    scalar_dtype,
)
from lowprec.perf.grouping import grouped, kv_bytes
from lowprec.perf.hardware import Machine
from lowprec.perf.hardware import machine as load_machine
from lowprec.perf.parallel import Parallel
from lowprec.perf.price import Level
from lowprec.perf.serving.backend import Backend, backend
from lowprec.perf.sharding import Share, share
from lowprec.perf.validation.point import Calibration
from lowprec.spec import Format, Recipe, Workload, load_recipe


class Service:
    """Times of passes, each priced once on a grid of batches and lengths (powers of two) and
    interpolated in between, in the logarithms of sizes and seconds.

    Kernels are priced by `estimate`; the backend's constants come on top.
    """

    def __init__(
        self,
        workload: Workload,
        recipe: Recipe | Mapping[str, Any] | str | Path,
        machine: Machine | str | Path,
        *,
        parallel: Parallel | Mapping[str, Any] | str | None = None,
        backend_name: str | Backend = "vllm",
        level: Level = "kernel",
        system: Any = None,
    ) -> None:
        self.workload = workload
        self.recipe = load_recipe(recipe)
        self.machine = machine if isinstance(machine, Machine) else load_machine(machine)
        self.plan = Parallel.of(parallel)
        self.backend = backend(backend_name)
        self.level: Level = level
        self.system = system
        self.calibration: Calibration = "measured"
        # Seconds of all kernels of a pass, and those of them that are quantizers on their own.
        self._priced: dict[tuple[int, int, int], tuple[float, float]] = {}
        self._rooms: dict[int, int] = {}

    def decode(self, batch: float, context: float) -> float:
        """Seconds of a step of `batch` sequences behind `context` cached tokens each."""
        kernels = _interpolated(self._decode_at, batch, max(1.0, context))
        return self._with_overhead(kernels, batch)

    def prefill(self, tokens: float, context: float = 0.0) -> float:
        """Seconds of a pass over `tokens` new tokens of every attention rank, in one sequence
        each, behind `context` cached ones."""
        ranks = self.plan.attention_dp * self.plan.dp
        whole = _interpolated(self._prefill_at, max(1.0, tokens), context + 1.0)
        return self._with_overhead(whole, ranks)

    def mixed(self, batch: float, context: float, tokens: float, behind: float) -> float:
        """Seconds of a pass that does both: the prompt's tokens read the weights anyway, so the
        running sequences add what they take above one sequence alone."""
        alone = self.decode(1, 1)
        return self.prefill(tokens, behind) + max(0.0, self.decode(batch, context) - alone)

    def _with_overhead(self, kernels: float, batch: float) -> float:
        added = self.backend.step + self.backend.sequence * batch
        return self.backend.scale * kernels + added

    def _decode_at(self, batch: int, context: int) -> float:
        return self._seconds(batch, 1, context)

    def _prefill_at(self, tokens: int, behind: int) -> float:
        return self._seconds(self.plan.attention_dp * self.plan.dp, tokens, behind - 1)

    def _seconds(self, batch: int, tokens: int, context: int) -> float:
        """Of one pass; whether the memory holds that batch is `room`'s question."""
        key = (batch, tokens, context)
        if key not in self._priced:
            work = self.workload.at(batch=batch, tokens=tokens, context=context)
            terms = self._pricing.terms(self._share(work))
            found = min((term.calibration for term in terms), key=CALIBRATIONS.index)
            self.calibration = min(self.calibration, found, key=CALIBRATIONS.index)
            self._priced[key] = (
                sum(t.seconds for t in terms),
                sum(t.resources.quantize for t in terms),
            )
        total, quantizers = self._priced[key]
        return total - (1 - self.backend.quantizers) * quantizers

    def with_backend(self, library: Backend) -> Service:
        """The same passes, priced once for both, under other constants of a library."""
        changed = copy(self)
        changed.backend = library
        return changed

    @cached_property
    def _pricing(self) -> Pricing:
        system = find_system(self.system, self.machine)
        return Pricing(self.machine, self.dtype, self.level, self.plan, system)

    @cached_property
    def dtype(self) -> Format:
        return scalar_dtype(self.workload)

    def _share(self, work: Workload) -> Share:
        return share(grouped(work, self.recipe), work.batch, self.plan, self.dtype)

    def estimate(self, batch: int, tokens: int, context: int) -> Estimate:
        """One pass, kernel by kernel, without the backend's constants."""
        return estimate(
            self.workload.at(batch=batch, tokens=tokens, context=context),
            self.recipe,
            self.machine,
            level=self.level,
            parallel=self.plan,
            system=self.system,
        )

    def cache_per_token(self) -> float:
        """Bytes of KV cache of one token, the whole model's, as its attention keeps them."""
        near, far = (self._cache(context) for context in (1 << 14, 1 << 15))
        return (far - near) / (1 << 14)

    def _cache(self, context: int) -> int:
        work = self.workload.at(batch=1, tokens=1, context=context)
        return kv_bytes(grouped(work, self.recipe), self.dtype)

    def room(self, length: int) -> int:
        """Sequences of `length` tokens, in whole pages, that fit into the chips' memory at once, at
        most 2^20.

        LowprecError if not even one does.
        """
        length = -(-length // self.backend.page) * self.backend.page
        if length not in self._rooms:
            self._rooms[length] = self._room(length)
        return self._rooms[length]

    def _room(self, length: int) -> int:
        work = self._at_length(1, length)
        held = need(self._share(work), self.plan, self.dtype)
        check(held, self.machine, self.plan, grouped(work, self.recipe), 1, self.dtype)
        capacity = self.machine.memory.capacity.value
        fits, too_many = 1, 1 << 20
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if self._held(middle, length) <= capacity:
                fits = middle
            else:
                too_many = middle
        return fits

    def _held(self, batch: int, length: int) -> int:
        return need(self._share(self._at_length(batch, length)), self.plan, self.dtype).total

    def _at_length(self, batch: int, length: int) -> Workload:
        return self.workload.at(batch=batch, tokens=1, context=max(1, length - 1))


def _interpolated(at: Callable[[int, int], float], x: float, y: float) -> float:
    """`at` between powers of two, bilinear in the logarithms of both sizes and of the seconds."""
    (x0, x1, fx), (y0, y1, fy) = _bracket(x), _bracket(y)
    rows = []
    for each in (y0, y1) if fy else (y0,):
        low = log(at(x0, each))
        rows.append(low + fx * (log(at(x1, each)) - low) if fx else low)
    return exp(rows[0] + fy * (rows[-1] - rows[0]))


def _bracket(x: float) -> tuple[int, int, float]:
    below = 1 << (int(x).bit_length() - 1)
    return below, 2 * below, log(x / below) / log(2)
