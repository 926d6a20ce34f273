"""Published serving points, predicted: times per token and to the first one, and tokens per second.

TPOT and TTFT at a concurrency come from the closed form of a server in its steady state, with the
prompts that interrupt the answers. What a row does not say is a reason, not a guess.
"""

from __future__ import annotations

import re
from functools import lru_cache

from lowprec.errors import LowprecError
from lowprec.perf.hardware import machine
from lowprec.perf.parallel import Parallel
from lowprec.perf.serving import Disaggregated, Served, Service, Traffic, disaggregated, static
from lowprec.perf.serving.static import prompt_seconds
from lowprec.perf.validation.point import Calibration, Point, Prediction
from lowprec.perf.validation.served import Layout, Lengths, mode_of, recipe_of
from lowprec.perf.workloads import load_workload

# Load generators of the published points draw lengths between 80 % and all of what a row says.
_SPREAD = 0.2
# 90 % interval of times to the first token, of the points of serving/backends.toml.
_FIRST = (0.45, 2.5)
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


def _served(point: Point, model: str, metric: str) -> Prediction:
    backend = point.conditions.split(" ")[0]
    lengths = Lengths.read(point.shape)
    traffic = Traffic(
        input=lengths.input, output=lengths.output, concurrency=lengths.users, spread=_SPREAD
    )
    pools = {name: (count, text) for name, count, text in _POOL.findall(point.shape)}
    if pools:
        found = _apart(point, model, backend, pools, traffic)
    else:
        plan = Layout.read(point.shape).plan()
        found = static(_service(model, point.hw, point.format, backend, plan), traffic)
    seconds = found.tpot.p50 if metric == "TPOT" else found.ttft.p50
    return _prediction(found, seconds, metric, point.unit)


def _apart(
    point: Point, model: str, backend: str, pools: dict[str, tuple[str, str]], traffic: Traffic
) -> Served:
    counts, services = [], []
    for name in ("prefill", "decode"):
        if name not in pools or not re.fullmatch(r"[\d.]+", pools[name][0]):
            raise LowprecError(f"{name}: the row does not say how many workers there are")
        counts.append(int(float(pools[name][0])))
        plan = Layout.read(pools[name][1]).plan()
        services.append(_service(model, point.hw, point.format, backend, plan))
    sizes = Disaggregated(prefill=counts[0], decode=counts[1])
    return disaggregated(services[0], services[1], sizes, traffic)


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


def _prediction(found: Served, seconds: float, metric: str, unit: str) -> Prediction:
    """The predicted time; one to the first token has an interval of its own, a wider one."""
    scale = {"ms": 1e3, "s": 1.0, "us": 1e6}.get(unit)
    if scale is None:
        raise LowprecError(f"unit {unit!r}: expected s, ms or us")
    low, high = found.low / found.tpot.p50, found.high / found.tpot.p50
    if metric == "TTFT":
        low, high = _FIRST
    value = scale * seconds
    return Prediction(value, low * value, high * value, unit, _level(found.calibration))


def _level(kernels: Calibration) -> Calibration:
    """The backends' constants are fitted to other models and chips than any one row's."""
    return "spec only" if kernels == "spec only" else "transferred"
