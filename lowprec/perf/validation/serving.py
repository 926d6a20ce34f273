"""Published serving points, predicted: times per token and to the first one, and tokens per second.

TPOT and TTFT at a concurrency come from the closed form of a server in its steady state, with the
prompts that interrupt the answers. What a row does not say is a reason, not a guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from lowprec.errors import LowprecError
from lowprec.perf.hardware import machine
from lowprec.perf.parallel import Parallel
from lowprec.perf.serving import Disaggregated, Served, Service, Traffic, disaggregated, static
from lowprec.perf.serving.backend import Backend, backend
from lowprec.perf.serving.static import prompt_seconds
from lowprec.perf.validation.point import Calibration, Point, Prediction
from lowprec.perf.validation.served import Layout, Lengths, mode_of, recipe_of
from lowprec.perf.workloads import load_workload

# Load generators of the published points draw lengths between 80 % and all of what a row says.
_SPREAD = 0.2
_POOL = re.compile(r"(prefill|decode) (\S+) x (tp\S+ dp\S+ moe_tp\S+ ep\S+)")


def predict(point: Point) -> Prediction | None:
    """The row's value with its 90 % interval; None if it is no served point.

    LowprecError: what the row lacks, or a layout that does not fit.
    """
    if point.level not in ("", "e2e inference"):
        return None
    if found := re.fullmatch(r"(\S+) (agg|disagg) (TPOT|TTFT)", point.what):
        return _served(point, found[1], found[3])
    if "TensorRT-LLM" in point.what and "bs=" in point.shape:
        return _batch(point)
    if "vLLM" in point.what and "prompts x" in point.shape:
        return _prompts(point)
    if "MLPerf" in point.what:
        raise LowprecError("MLPerf: the row gives neither chips nor lengths nor concurrency")
    if "production" in point.what:
        raise LowprecError("production: the batch and the mix of lengths are not given")
    return None


@dataclass(frozen=True)
class Load:
    """How a row was served: by one service, or by one that prefills and one that decodes."""

    services: tuple[Service, ...]
    pools: Disaggregated | None
    traffic: Traffic

    def served(self, library: Backend | None = None) -> Served:
        """library: other constants than the backend's own."""
        several = [s.with_backend(library) if library else s for s in self.services]
        if self.pools is None:
            return static(several[0], self.traffic)
        return disaggregated(several[0], several[1], self.pools, self.traffic)


def load_of(point: Point, model: str) -> Load:
    """LowprecError: what the row does not say."""
    backend = point.conditions.split(" ")[0]
    lengths = Lengths.read(point.shape)
    traffic = Traffic(
        input=lengths.input, output=lengths.output, concurrency=lengths.users, spread=_SPREAD
    )
    pools = {name: (count, text) for name, count, text in _POOL.findall(point.shape)}
    if pools:
        return _apart(point, model, backend, pools, traffic)
    plan = Layout.read(point.shape).plan()
    return Load((_service(model, point.hw, point.format, backend, plan),), None, traffic)


def _served(point: Point, model: str, metric: str) -> Prediction:
    """The predicted time; one to the first token has an interval of its own, a wider one."""
    scale = {"ms": 1e3, "s": 1.0, "us": 1e6}.get(point.unit)
    if scale is None:
        raise LowprecError(f"unit {point.unit!r}: expected s, ms or us")
    load = load_of(point, model)
    found = load.served()
    seconds, low, high = found.tpot.p50, found.low, found.high
    if metric == "TTFT":
        seconds = found.ttft.p50
        low, high = _first_interval(found, load)
    return Prediction(
        scale * seconds, scale * low, scale * high, point.unit, _level(found.calibration)
    )


def _first_interval(found: Served, load: Load) -> tuple[float, float]:
    """Seconds; where prefill and decode are apart, users may also wait for a place to decode in,
    and how many places there are is not said: up to a share of an answer's time."""
    library = backend(found.backend)
    low, high = (share * found.ttft.p50 for share in library.first_interval)
    if load.pools is not None:
        high += library.waits * found.tpot.p50 * load.traffic.mean_output
    return low, high


def _apart(
    point: Point, model: str, backend: str, pools: dict[str, tuple[str, str]], traffic: Traffic
) -> Load:
    counts, services = [], []
    for name in ("prefill", "decode"):
        if name not in pools or not re.fullmatch(r"[1-9]\d{0,5}(\.0)?", pools[name][0]):
            raise LowprecError(f"{name}: the row does not say how many workers there are")
        counts.append(int(float(pools[name][0])))
        plan = Layout.read(pools[name][1]).plan()
        services.append(_service(model, point.hw, point.format, backend, plan))
    prefill, decode = counts
    places = _places(traffic.concurrency or 0, decode)
    layout = Disaggregated(prefill=prefill, decode=decode, places=places)
    return Load(tuple(services), layout, traffic)


def _places(users: int, decode: int) -> int | None:
    """Answers at a time that each decoding server is set up for, which rows do not say. Set-ups are
    powers of two: a load that is one on every server fills its places. Of others it is not known
    whether the places are more than the users, or some users wait for one."""
    each, rest = divmod(users, decode)
    return each if not rest and each.bit_count() == 1 else None


@lru_cache(maxsize=512)
def _service(model: str, hw: str, text: str, backend: str, plan: Parallel) -> Service:
    work, chip = load_workload(model), machine(hw)
    recipe = recipe_of(mode_of(text, work.model, chip), work, chip, backend)
    return Service(work, recipe, chip, parallel=plan, backend_name=backend, level="kernel")


def _batch(point: Point) -> Prediction:
    """A batch of equal prompts at once, and all answers together: output tokens per second."""
    lengths = Lengths.read(point.shape)
    model = point.what.split(" ")[0]
    chips = int(point.chips) if point.chips == point.chips else 1
    service = _service(model, point.hw, point.format, "trtllm", Parallel(tp=chips))
    return _together(service, lengths.users, lengths.input, lengths.output, point.unit)


def _prompts(point: Point) -> Prediction:
    found = re.match(r"(\d+) prompts x (\d+) in, (\d+) out", point.shape)
    if not found:
        raise LowprecError(f"{point.shape!r}: expected such as '32 prompts x 4096 in, 32 out'")
    count, inputs, outputs = map(int, found.groups())
    model = point.what.split(" ")[0]
    service = _service(model, point.hw, point.format, "vllm", Parallel())
    tokens = inputs if "prefill" in point.what else outputs
    return _together(service, count, inputs, outputs, point.unit, counted=tokens)


def _together(
    service: Service, batch: int, inputs: int, outputs: int, unit: str, counted: int | None = None
) -> Prediction:
    """Tokens per second of `batch` requests that start at once; `counted` tokens of each."""
    room = service.room(inputs + outputs)
    if batch > room:
        raise LowprecError(f"{batch} sequences: the memory holds {room}")
    prompts = batch * prompt_seconds(service, inputs)[0]
    answers = sum(service.decode(batch, inputs + outputs * (i + 0.5) / 8) for i in range(8))
    rate = batch * (counted or outputs) / (prompts + outputs * answers / 8)
    low, high = service.backend.interval
    return Prediction(rate, rate / high, rate / low, unit, _level(service.calibration))


def _level(kernels: Calibration) -> Calibration:
    """The backends' constants are fitted to other models and chips than any one row's."""
    return "spec only" if kernels == "spec only" else "transferred"
