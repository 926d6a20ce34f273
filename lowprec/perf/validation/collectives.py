"""Published collectives: NCCL, custom all-reduce and DeepEP rows, predicted.

Which bytes a row means was found by physics, since sources count differently:
  nccl rows      count elements of the whole tensor, as nccl-tests print it: of all-gather what
                 every rank ends with. (Eight A100 gather 67 MB in 352 us, 167 GB/s of their 300;
                 if it were one rank's part they would move 1336.)
  custom rows    elements of the tensor that every rank holds
  vidur rows     bytes, though called elements (else 8 A100 would move 328 of 300 GB/s), and some
                 were measured over several servers, which they do not say: not predicted
  DeepEP rows    tokens of one rank times top-k, one hidden vector each; fp8 with a float32 scale
                 per 128; low-latency ones all by the adapters, whoever shares a server
"""

from __future__ import annotations

import re
from functools import cache

from lowprec.errors import LowprecError
from lowprec.perf.collective import Kind, Software, collective, reached
from lowprec.perf.hardware import machine
from lowprec.perf.system import System
from lowprec.perf.validation.point import Point, Prediction

_KINDS: dict[str, Kind] = {
    r"all[-_ ]?reduce": "all_reduce",
    r"all[-_ ]?gather": "all_gather",
    r"reduce[-_ ]?scatter": "reduce_scatter",
    r"all[-_ ]?to[-_ ]?all": "all_to_all",
    r"broadcast": "broadcast",
}
_BYTES = {
    **dict.fromkeys(("float32", "fp32", "float"), 4),
    **dict.fromkeys(("half", "float16", "fp16", "bfloat16", "bf16"), 2),
    **dict.fromkeys(("int8", "uint8", "fp8", "float8_e4m3fn", "float8_e5m2"), 1),
}
_UNITS = {"b": 1.0, "bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_UNITS |= {"kb": 1e3, "mb": 1e6, "gb": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def predict(point: Point) -> Prediction | None:
    """The point's value and 90 % interval; None if it is no collective.

    LowprecError says what the row lacks.
    """
    if "DeepEP" in point.what:
        return _deepep(point)
    kind = next((k for words, k in _KINDS.items() if re.search(words, point.what.lower())), None)
    if kind is None or point.level not in ("", "collective"):
        return None
    if "vidur" in point.source:
        raise LowprecError(
            "some of these rows were measured over several servers, ten times slower, and the row "
            "does not say whether this one was"
        )
    ranks = _ranks(point)
    system = _system(point.hw)
    engine: Software = "engine" if "custom" in point.what else "library"
    nbytes = _nbytes(point)
    # NVLink's switches add no int8.
    in_network = point.format not in ("int8", "uint8")
    found = collective(kind, nbytes, ranks, system, software=engine, in_network=in_network)
    times = found.seconds, found.low, found.high
    if point.unit in _SECONDS:
        value, low, high = (t / _SECONDS[point.unit] for t in times)
    elif point.unit == "GB/s":
        moved = nbytes * (_bus(kind, ranks) if "busbw" in point.what else 1)
        value, high, low = (moved / t / 1e9 for t in times)
    else:
        raise LowprecError(f"unit: expected us, ms, s or GB/s, got {point.unit!r}")
    return Prediction(value, low, high, point.unit, found.calibration)


@cache
def _system(name: str) -> System:
    return System.of(machine(name))


def _bus(kind: Kind, ranks: int) -> float:
    """Bytes on the busiest link over bytes of the tensor: nccl-tests' bus bandwidth."""
    share = (ranks - 1) / ranks
    return {"all_reduce": 2 * share, "broadcast": 1.0}.get(kind, share)


def _ranks(point: Point) -> int:
    if not 2 <= point.chips < 1e9 or point.chips != int(point.chips):
        raise LowprecError(f"chips: expected a whole number of 2 or more, got {point.chips!r}")
    return int(point.chips)


def _nbytes(point: Point) -> float:
    found = re.match(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", point.shape)
    if not found:
        raise LowprecError(f"shape: expected a number of elements or bytes, got {point.shape!r}")
    count, unit = float(found[1]), found[2].lower()
    if count <= 0:
        raise LowprecError(f"shape: expected more than nothing, got {point.shape!r}")
    if unit in _UNITS:
        return count * _UNITS[unit]
    if unit != "elements":
        raise LowprecError(f"shape: expected elements or bytes, got {point.shape!r}")
    if point.format not in _BYTES:
        raise LowprecError(f"format: expected one of {', '.join(_BYTES)}, got {point.format!r}")
    return count * _BYTES[point.format]


def _deepep(point: Point) -> Prediction:
    ranks, system = _ranks(point), _system(point.hw)
    if "bandwidth" in point.what and point.unit == "GB/s":
        # Bytes of long messages over time, at the level that is the bottleneck.
        rate, low, high = (rate / 1e9 for rate in reached(ranks, system))
        return Prediction(rate, low, high, "GB/s", "transferred")
    if "low-latency" not in point.what or point.unit not in _SECONDS:
        raise LowprecError(f"no model of {point.what!r} in {point.unit!r}")
    if system.levels[-1].size is not None:
        raise LowprecError(f"{point.hw}: no adapter between servers is known")
    found = re.search(r"(\d+) tokens.*H=(\d+).*topk=(\d+)", point.shape)
    if not found:
        raise LowprecError(f"shape: expected tokens, H= and topk=, got {point.shape!r}")
    tokens, hidden, top = map(int, found.groups())
    if not tokens * hidden * top:
        raise LowprecError(f"shape: expected more than nothing, got {point.shape!r}")
    element = 1 + 4 / 128 if "fp8" in point.format else 2
    # One rank per server and adapter: none of this traffic takes the links inside.
    apart = 1 if len(system.levels) == 1 else system.levels[0].size or 1
    time = collective("all_to_all", tokens * top * hidden * element, ranks, system, stride=apart)
    scale = _SECONDS[point.unit]
    return Prediction(
        time.seconds / scale, time.low / scale, time.high / scale, point.unit, time.calibration
    )
